import os
import time
from pathlib import Path

import pytest

from unshuffle import cli
from unshuffle.data.cache import entry_sentence, list_cache
from unshuffle.data.inventory import skipped_file, write_skipped
from unshuffle.data.pack import cached_store
from unshuffle.data.store import Store
from unshuffle.errors import UserError
from unshuffle.files import locked

DIGEST = "0123456789abcdef01234567"
INDEX = "0123456789abcdef" * 2


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(image_folder: Path, cache: Path) -> Store:
    return cached_store("images", image_folder, cache, short_side=16, progress=False)


def write_loose(cache: Path) -> list[Path]:
    files = [
        cache / "shards" / f"{DIGEST}-images-64-1-3.index",
        cache / "shards" / f"{DIGEST}-labels.index",
        cache / "shards" / "images" / f"{DIGEST}.tar",
        cache / "shards" / "videos" / f"{DIGEST}.tar",
        cache / "shards" / "videos" / f"{DIGEST}.tar.0123456789abcdef.tmp",
        cache / "indexes" / INDEX / "job.txt",
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(100))
    return [*files, write_skipped(skipped_file("photos", cache), [("a.jpg", "empty")])]


def test_stores_are_listed_with_source_size_and_last_use(store: Store, cache: Path, image_folder: Path) -> None:
    (entry,) = list_cache(cache)
    assert (entry.name, entry.source) == (store.path.name, str(image_folder))
    assert entry.size == sum(path.stat().st_size for path in store.path.iterdir())
    assert entry_sentence(entry) == f"images as raw pixels, short side 16 px, of {image_folder}; last used today"
    os.utime(store.path / "store.json", (0, time.time() - 3.5 * 86400))
    assert entry_sentence(list_cache(cache)[0]).endswith("last used 3 days ago")
    cached_store("images", image_folder, cache, short_side=16, progress=False)
    assert entry_sentence(list_cache(cache)[0]).endswith("last used today")


def test_everything_that_is_written_is_listed(store: Store, cache: Path) -> None:
    files = write_loose(cache)
    entries = {entry.name: entry for entry in list_cache(cache)}
    assert set(entries) == {store.path.name, "shards", "shards/images", "shards/videos", "skipped", f"indexes/{INDEX}"}
    assert [entries[name].what for name in ("shards", "shards/images", "skipped")] == [
        "2 shard indices",
        "1 copied remote shard",
        "1 skipped-file list",
    ]
    sizes = sum(path.stat().st_size for path in [*files, *store.path.iterdir()])
    assert sum(entry.size for entry in entries.values()) == sizes
    assert sum(entry.clear() for entry in entries.values()) == sizes
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert list_cache(cache) == [] and list_cache(cache / "nowhere") == []


def test_only_what_unshuffle_wrote_is_deleted(store: Store, cache: Path, image_folder: Path, tmp_path: Path) -> None:
    write_loose(cache)
    precious = [
        cache / "thesis.tex",
        cache / "photos" / "a.jpg",
        cache / "mine-images-0123456789ab" / "a.jpg",
        cache / "shards" / "mine.tar",
        cache / "shards" / "images" / "mine.tar",
        cache / "skipped" / "mine.csv",
        store.path / "notes.txt",
        tmp_path / "elsewhere" / "data.bin",
        tmp_path / "elsewhere" / "store.json",
    ]
    for file in precious:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    (cache / "linked-images-0123456789ab").symlink_to(tmp_path / "elsewhere")
    (cache / "shards" / "videos" / f"{DIGEST[::-1]}.tar").symlink_to(tmp_path / "elsewhere" / "data.bin")
    for entry in list_cache(cache):
        entry.clear()
    assert all(file.read_text() == "precious" for file in precious)
    assert not (store.path / "data.bin").exists() and list_cache(cache) == []
    assert (image_folder / "a.png").exists()


def test_a_damaged_store_and_one_that_was_only_begun_can_be_cleared(store: Store, cache: Path) -> None:
    (store.path / "store.json").write_text("{")
    begun = cache / "x-videos-0123456789ab"
    begun.mkdir()
    (begun / "data.bin").touch()
    for entry in list_cache(cache):
        assert entry.what == "packed store that is damaged or was only begun"
        entry.clear()
    assert list(cache.iterdir()) == []


def test_a_store_that_is_being_packed_is_refused(store: Store, cache: Path) -> None:
    (entry,) = list_cache(cache)
    with locked(store.path / "data.bin"), pytest.raises(UserError, match="is being packed by another process"):
        entry.clear()
    assert len(Store(store.path)) == 6


# the command


def test_the_command_lists_and_clears(
    store: Store, cache: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = cached_store("images", image_folder, cache, short_side=24, progress=False)
    os.utime(other.path / "store.json", (0, 0))
    assert cli.run(["cache", "--cache", str(cache)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].startswith(f"{cache}: ") and listed[1].startswith(f"  {other.path.name}  ")
    assert listed[4] == f"    images as raw pixels, short side 16 px, of {image_folder}; last used today"
    assert cli.run(["cache", "clear", "--older_than", "30", "--cache", str(cache)]) == 0
    assert f"deleted {other.path.name}" in capsys.readouterr().out
    assert not other.path.exists() and store.path.exists()
    assert cli.run(["cache", "clear", store.path.name, "--cache", str(cache)]) == 0
    assert not store.path.exists()
    assert capsys.readouterr().out.endswith(f"freed in {cache}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("clear", "say what to clear: give names (unshuffle cache lists them), --older_than DAYS, or --all"),
        ("clear x --all", "say what to clear"),
        ("clear pictures", "there is no pictures in "),
        ("list --all", "use them with unshuffle cache clear"),
        ("delete", "list, clear"),
    ],
)
def test_nothing_is_deleted_by_mistake(
    words: str, sentence: str, store: Store, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["cache", *words.split(), "--cache", str(cache)]) == 2
    assert sentence in capsys.readouterr().err and len(Store(store.path)) == 6
