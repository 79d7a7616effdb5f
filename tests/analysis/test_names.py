from pathlib import Path

import pytest

from unshuffle.analysis.names import chosen_names, short_names


def test_as_few_parts_as_tell_paths_apart(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "c/other"):
        (tmp_path / name).mkdir(parents=True)
    assert short_names([tmp_path / "a/run", tmp_path / "c/other"]) == ["run", "other"]
    assert short_names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]
    assert short_names([str(tmp_path / "a/run"), "random:tiny"]) == ["run", "random:tiny"]
    with pytest.raises(ValueError, match="twice"):
        short_names(["random", "random"])


def test_names_that_the_user_chose() -> None:
    assert chosen_names((), ["random:tiny"]) == ["random:tiny"]
    assert chosen_names(("one", "two"), ["random", "random"]) == ["one", "two"]
    for names in (("one",), ("one", "one"), ("one", "two", "three")):
        with pytest.raises(ValueError, match="give 2 different names"):
            chosen_names(names, ["x", "y"])
