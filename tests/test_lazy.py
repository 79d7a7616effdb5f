import subprocess
import sys
from fractions import Fraction

import pytest

from unshuffle.errors import UserError
from unshuffle.lazy import LazyClass, find_class

REGISTRY = {
    "fraction": LazyClass("fractions", "Fraction", "A rational number."),
    "absent": LazyClass("no_such_module", "Absent", "A class whose module cannot be imported."),
}


def test_a_class_is_found_by_its_name() -> None:
    assert find_class("fraction", REGISTRY, "number") is Fraction
    assert REGISTRY["fraction"].load() is Fraction


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fracton", r"there is no number 'fracton' \(did you mean fraction\?\)"),
        ("xyz", "there is no number 'xyz'; choose one of fraction, absent"),
    ],
)
def test_an_unknown_name_is_a_user_error(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_class(name, REGISTRY, "number")


def test_a_module_is_imported_only_when_its_class_is_loaded() -> None:
    program = (
        "import sys; from unshuffle.lazy import LazyClass\n"
        "registry = {'table': LazyClass('sqlite3', 'Connection', 'A table.')}\n"
        "assert registry['table'].summary == 'A table.' and 'sqlite3' not in sys.modules\n"
        "registry['table'].load(); assert 'sqlite3' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
