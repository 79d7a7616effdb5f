import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from unshuffle.data.shard_files import STALE_SECONDS, ShardCache, ShardFile, stat_shard
from unshuffle.errors import UserError

SIZE = 1000


@pytest.fixture
def files() -> Iterator[dict[str, ShardFile]]:
    """Remote files of a thousand equal bytes."""
    fs: Any = fsspec.filesystem("memory")
    for name in "abc":
        fs.pipe(f"/remote/{name}.tar", name.encode() * SIZE)
    yield {name: stat_shard(fs, f"/remote/{name}.tar") for name in "abc"}
    fs.rm("/", recursive=True)


def cached_shards(cache: ShardCache, files: dict[str, ShardFile]) -> set[str]:
    return {name for name, file in files.items() if (cache.folder / f"{file.digest}.tar").exists()}


def test_the_least_recently_used_copy_is_deleted_first(files: dict[str, ShardFile], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 2 * SIZE)
    for name in "aba":
        assert cache.read(files[name], 10, 5) == 5 * name.encode()
        time.sleep(0.02)  # file systems keep time in steps
    assert cached_shards(cache, files) == {"a", "b"}
    cache.read(files["c"], 0, 1)
    assert cached_shards(cache, files) == {"a", "c"}
    assert cache.read(files["b"], SIZE - 1, 1) == b"b", "a deleted copy is downloaded again"


def test_an_existing_copy_is_reused_and_a_deleted_one_is_replaced(
    files: dict[str, ShardFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path, 9 * SIZE)
    cache.read(files["a"], 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(files["a"].fs), "get_file", None)  # nothing may be downloaded
        assert ShardCache(tmp_path, 9 * SIZE).read(files["a"], 0, 2) == b"aa"
    (tmp_path / f"{files['a'].digest}.tar").unlink()
    assert cache.read(files["a"], 0, 2) == b"aa"


def test_a_copy_of_the_wrong_length_is_refused(files: dict[str, ShardFile], tmp_path: Path) -> None:
    files["a"].fs.pipe("/remote/a.tar", b"shorter")
    with pytest.raises(UserError, match=r"a\.tar has changed since it was indexed"):
        ShardCache(tmp_path, 9 * SIZE).read(files["a"], 0, 1)
    assert not list(tmp_path.iterdir())


def test_only_stale_drafts_are_deleted(tmp_path: Path) -> None:
    for name, age in (("old", STALE_SECONDS + 60), ("new", 0)):
        draft = tmp_path / f"{name}.tar.1.tmp"
        draft.touch()
        os.utime(draft, (time.time() - age,) * 2)
    ShardCache(tmp_path, SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["new.tar.1.tmp"]
