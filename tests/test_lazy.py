import subprocess
import sys
from collections.abc import Sized

import pytest

from unshuffle.errors import UserError
from unshuffle.lazy import LazyClass, find_entry

REGISTRY = {
    "sized": LazyClass("collections", "abc", "Sized", "Has a length."),
    "absent": LazyClass("unshuffle", "no_such_module", "Absent", "A class whose module cannot be imported."),
}


def test_a_class_is_found_by_its_name() -> None:
    assert find_entry("sized", REGISTRY, "type").load() is Sized
    assert REGISTRY["sized"].load() is Sized


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("size", r"there is no type 'size' \(did you mean sized\?\)"),
        ("xyz", "there is no type 'xyz'; choose one of sized, absent"),
    ],
)
def test_an_unknown_name_is_a_user_error(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_entry(name, REGISTRY, "type").load()


def test_a_module_is_imported_only_when_its_class_is_loaded() -> None:
    program = (
        "import sys; from unshuffle.lazy import LazyClass\n"
        "registry = {'table': LazyClass('sqlite3', 'dbapi2', 'Connection', 'A table.')}\n"
        "assert registry['table'].summary == 'A table.' and 'sqlite3' not in sys.modules\n"
        "registry['table'].load(); assert 'sqlite3' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_only_clustering_and_statistics_need_is_not_imported() -> None:
    program = (
        "import sys, unshuffle.pretraining, unshuffle.doctor, unshuffle.evaluation.index, unshuffle.report.page\n"
        "sys.exit(bool({'sklearn', 'scipy'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
