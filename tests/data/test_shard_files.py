import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from unshuffle.data.shard_files import (
    STALE_SECONDS,
    Member,
    ShardCache,
    ShardFile,
    expand_braces,
    find_shards,
    read_index,
    stat_shard,
    write_index,
)
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


def member(text: str, offset: int = 0) -> Member:
    return Member(offset, len(text), zlib.crc32(text.encode()))


def cached_shards(cache: ShardCache, files: dict[str, ShardFile]) -> set[str]:
    return {name for name, file in files.items() if (cache.folder / f"{file.digest}.tar").exists()}


def test_the_least_recently_used_copy_is_deleted_first(files: dict[str, ShardFile], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 2 * SIZE)
    for name in "aba":
        assert cache.read(files[name], member(5 * name, 10)) == 5 * name.encode()
        time.sleep(0.02)  # file systems keep time in steps
    assert cached_shards(cache, files) == {"a", "b"}
    cache.read(files["c"], member("c"))
    assert cached_shards(cache, files) == {"a", "c"}
    assert cache.read(files["b"], member("b", SIZE - 1)) == b"b", "a deleted copy is downloaded again"


def test_an_existing_copy_is_reused_and_a_deleted_one_is_replaced(
    files: dict[str, ShardFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path, 9 * SIZE)
    cache.read(files["a"], member("a"))
    with monkeypatch.context() as patch:
        patch.setattr(type(files["a"].fs), "get_file", None)  # nothing may be downloaded
        assert ShardCache(tmp_path, 9 * SIZE).read(files["a"], member("aa")) == b"aa"
    (tmp_path / f"{files['a'].digest}.tar").unlink()
    assert cache.read(files["a"], member("aa")) == b"aa"


def test_a_copy_of_the_wrong_length_is_refused(files: dict[str, ShardFile], tmp_path: Path) -> None:
    files["a"].fs.pipe("/remote/a.tar", b"shorter")
    with pytest.raises(UserError, match=r"a\.tar has changed since it was indexed"):
        ShardCache(tmp_path, 9 * SIZE).read(files["a"], member("a"))
    assert not list(tmp_path.iterdir())


def test_only_stale_drafts_are_deleted(tmp_path: Path) -> None:
    for name, age in (("old", STALE_SECONDS + 60), ("new", 0)):
        draft = tmp_path / f"{name}.tar.1.tmp"
        draft.touch()
        os.utime(draft, (time.time() - age,) * 2)
    ShardCache(tmp_path, SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["new.tar.1.tmp"]


@pytest.mark.parametrize(
    "address",
    [
        "reference://x.tar::file:///tmp/ref.json",
        "reference::/tmp/ref.tar",
        "simplecache::https://host/0.tar",
        "/tmp/a.tar::/tmp/b.tar",
        "simplecache{:,}:https://host/0.tar",
    ],
)
def test_chained_addresses_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fsspec.core, "url_to_fs")  # they do not reach fsspec
    with pytest.raises(UserError, match=r"chains addresses by ::, which is not supported"):
        find_shards(address)


@pytest.mark.parametrize(
    "protocol", ["reference", "memory", "ssh", "ftp", "github", "zip", "dask", "FILE", "cached", "{memory,ftp}"]
)
def test_other_protocols_are_refused(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fsspec.core, "url_to_fs")
    with pytest.raises(UserError, match=r"not at an address that is supported \(file://, http://"):
        find_shards(f"{protocol}://x/0.tar")


def test_braces_hide_no_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fsspec.core, "url_to_fs")
    with pytest.raises(UserError, match=r"memory://x/0.tar is not at an address that is supported"):
        find_shards("memory{:,:}//x/0.tar")


def test_a_file_address_is_read(tmp_path: Path) -> None:
    (tmp_path / "0.tar").touch()
    (_, path), *others = find_shards(f"file://{tmp_path}/0.tar")
    assert Path(path) == tmp_path / "0.tar" and not others


def test_braces() -> None:
    assert expand_braces("a-{08..10}.{x,y}") == ["a-08.x", "a-08.y", "a-09.x", "a-09.y", "a-10.x", "a-10.y"]
    assert expand_braces("{2..0}{}") == ["2", "1", "0"]
    assert expand_braces("plain") == ["plain"]


@pytest.mark.parametrize(
    "pattern", ["{0..99999999}.tar", "{0..999}{0..999}.tar", "{999999999999..0}.tar", "{a,b}" * 20]
)
def test_braces_that_stand_for_too_many_shards_are_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=r"stands for more than 100000 shards"):
        expand_braces(pattern)


def test_an_index_is_whole_or_not_there(tmp_path: Path) -> None:
    """Every wrong bit is noticed, and so are all shorter files."""
    path, value = tmp_path / "new" / "0.index", {"entries": [["ä\ud800.jpg", 1, True, [512]]], "skipped": []}
    assert read_index(path) is None
    write_index(path, value)
    assert read_index(path) == value
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        path.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        assert read_index(path) is None, bit
    for length in range(len(good)):
        path.write_bytes(good[:length])
        assert read_index(path) is None, length
