import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from unshuffle.data.addresses import ShardFile, look_up
from unshuffle.data.shard_cache import FORGOTTEN, ShardCache
from unshuffle.errors import UserError

SIZE = 1000


@pytest.fixture
def files() -> Iterator[dict[str, ShardFile]]:
    """Far files of a thousand equal bytes."""
    fs: Any = fsspec.filesystem("memory")
    for name in "abc":
        fs.pipe(f"/far/{name}.tar", name.encode() * SIZE)
    yield {name: look_up(fs, f"/far/{name}.tar") for name in "abc"}
    fs.rm("/", recursive=True)


def locked(cache: ShardCache, files: dict[str, ShardFile]) -> set[str]:
    return {name for name, file in files.items() if (cache.folder / f"{file.digest}.tar").exists()}


def test_the_longest_unused_copy_makes_room(files: dict[str, ShardFile], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 2 * SIZE)
    for name in "aba":
        assert cache.read(files[name], 10, 5) == 5 * name.encode()
        time.sleep(0.02)  # file systems keep time in steps
    assert locked(cache, files) == {"a", "b"}
    cache.read(files["c"], 0, 1)
    assert locked(cache, files) == {"a", "c"}
    assert cache.read(files["b"], SIZE - 1, 1) == b"b", "what made room is fetched again"


def test_a_copy_is_found_again_and_one_that_vanished_is_replaced(
    files: dict[str, ShardFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path, 9 * SIZE)
    cache.read(files["a"], 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(files["a"].fs), "get_file", None)  # nothing may be fetched
        assert ShardCache(tmp_path, 9 * SIZE).read(files["a"], 0, 2) == b"aa"
    (tmp_path / f"{files['a'].digest}.tar").unlink()
    assert cache.read(files["a"], 0, 2) == b"aa"


def test_a_copy_of_the_wrong_length_is_refused(files: dict[str, ShardFile], tmp_path: Path) -> None:
    files["a"].fs.pipe("/far/a.tar", b"shorter")
    with pytest.raises(UserError, match=r"a\.tar has changed since it was looked up"):
        ShardCache(tmp_path, 9 * SIZE).read(files["a"], 0, 1)
    assert not list(tmp_path.iterdir())


def test_only_old_pieces_are_cleared_away(tmp_path: Path) -> None:
    for name, age in (("old", FORGOTTEN + 60), ("new", 0)):
        part = tmp_path / f"{name}.1.part"
        part.touch()
        os.utime(part, (time.time() - age,) * 2)
    ShardCache(tmp_path, SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["new.1.part"]
