import errno
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import unshuffle.data.pack
from unshuffle.config import LimitsConfig
from unshuffle.data import media
from unshuffle.data.media import BadMedia
from unshuffle.data.pack import cached_store, pack
from unshuffle.data.store import Header, Record, Store, Writer
from unshuffle.errors import UserError

OPTIONS: dict[str, Any] = {"short_side": 16, "progress": False, "workers": 2}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mark_incomplete(store: Path) -> None:
    replace(Header.load(store), complete=False).save(store)


def read_failing_at(name: str, error: BaseException) -> Callable[..., Any]:
    real = unshuffle.data.pack.read_image

    def read(path: Path, short_side: int | None = None, *limits: Any) -> Any:
        if path.name == name:
            raise error
        return real(path, short_side)

    return read


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
@pytest.mark.parametrize("kind", ["images", "videos"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    kind: str, encoding: str, image_folder: Path, video_folder: Path, tmp_path: Path
) -> None:
    src = image_folder if kind == "images" else video_folder
    packed = []
    for workers in (1, 2, 7):
        out = tmp_path / f"{workers}"
        pack(kind, src, out, **OPTIONS | {"workers": workers, "encoding": encoding})
        packed.append(contents(out))
    assert packed[0] == packed[1] == packed[2]


def test_skipped_files_have_their_reasons(image_folder: Path, tmp_path: Path) -> None:
    store = pack("images", image_folder, tmp_path / "out", **OPTIONS)
    assert store.skipped == [
        ("b/cc.jpg", "not a supported image format"),
        ("g.png", "the file is empty"),
    ]


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_resuming_after_a_kill_at_any_point_gives_the_same_bytes(
    encoding: str, image_folder: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"encoding": encoding}
    whole = contents(pack("images", image_folder, tmp_path / "whole", **options).path)
    rows = [json.loads(line) for line in whole["index.jsonl"].splitlines()]
    lines = whole["index.jsonl"].splitlines(keepends=True)
    out = tmp_path / "out"
    for done in range(len(lines) + 1):
        index = b"".join(lines[:done])
        end = rows[done]["offset"] if done < len(rows) else len(whole["data.bin"])
        next_line = lines[done] if done < len(lines) else b""
        all_data = len(whole["data.bin"])
        for data_size, tail in [
            (end, b""),
            (end + 100, b""),
            (all_data, next_line[:-5]),
            (all_data, next_line[:-1]),
        ]:
            for skipped_size in (0, 40, None):
                shutil.copytree(tmp_path / "whole", out)
                mark_incomplete(out)
                (out / "data.bin").write_bytes(whole["data.bin"][:data_size])
                (out / "index.jsonl").write_bytes(index + tail)
                (out / "skipped.jsonl").write_bytes(whole["skipped.jsonl"][:skipped_size])
                pack("images", image_folder, out, **options | {"workers": 1})
                assert contents(out) == whole
                shutil.rmtree(out)


def test_items_whose_bytes_were_lost_are_packed_again(image_folder: Path, tmp_path: Path) -> None:
    out = pack("images", image_folder, tmp_path / "out", **OPTIONS).path
    whole = contents(out)
    for size in range(0, len(whole["data.bin"]), 777):
        mark_incomplete(out)
        os.truncate(out / "data.bin", size)
        pack("images", image_folder, out, **OPTIONS)
        assert contents(out) == whole


@pytest.mark.parametrize("name", ["a.png", "c.png", "cc.jpg", "d.png", "e.png", "f.png", "g.png", "h.png"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("killed")])
def test_an_interrupted_pack_can_be_finished(
    name: str, error: BaseException, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("unshuffle.data.pack.read_image", read_failing_at(name, error))
        with pytest.raises(type(error)):
            pack("images", image_folder, out, **OPTIONS)
    with pytest.raises(UserError, match="incomplete"):
        Store(out)
    pack("images", image_folder, out, **OPTIONS)
    pack("images", image_folder, tmp_path / "whole", **OPTIONS)
    assert contents(out) == contents(tmp_path / "whole")


def test_no_thread_survives_an_interruption(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unshuffle.data.store.Writer.add", interrupt)
    before = threading.active_count()
    try:
        pack("images", image_folder, tmp_path / "out", **OPTIONS)
    except KeyboardInterrupt:
        after = threading.active_count()  # while the traceback still holds everything alive
    assert after == before


def test_resuming_tries_neither_packed_nor_skipped_files_again(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("unshuffle.data.pack.read_image", read_failing_at("f.png", RuntimeError()))
        with pytest.raises(RuntimeError):
            pack("images", image_folder, out, **OPTIONS | {"workers": 1})
    tried = []
    real = unshuffle.data.pack.read_image

    def read(path: Path, short_side: int | None = None, *limits: Any) -> Any:
        tried.append(path.name)
        return real(path, short_side)

    monkeypatch.setattr("unshuffle.data.pack.read_image", read)
    pack("images", image_folder, out, **OPTIONS | {"workers": 1})
    assert tried == ["f.png", "g.png", "h.png"]


def test_only_a_few_files_are_in_progress_at_a_time(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        shutil.copy(image_folder / "a.png", image_folder / f"copy{number:02}.png")
    started = 0
    outstanding = []
    real_read = unshuffle.data.pack.read_image

    def read(path: Path, short_side: int | None = None, *limits: Any) -> Any:
        nonlocal started
        started += 1
        return real_read(path, short_side)

    def counting(real: Callable[..., None]) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            outstanding.append(started - len(outstanding))
            real(*arguments)

        return write

    monkeypatch.setattr("unshuffle.data.pack.read_image", read)
    monkeypatch.setattr(Writer, "add", counting(Writer.add))
    monkeypatch.setattr(Writer, "skip", counting(Writer.skip))
    pack("images", image_folder, tmp_path / "out", **OPTIONS)
    assert len(outstanding) == 38 and max(outstanding) <= 4


def test_a_complete_store_is_returned_without_reading_any_file(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack("images", image_folder, tmp_path / "out", **OPTIONS)
    monkeypatch.delattr("unshuffle.data.pack.read_image")
    assert len(pack("images", image_folder, tmp_path / "out", **OPTIONS | {"quality": 5, "every": 3})) == 6


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"short_side": 24}, "short_side 16, not 24"),
        ({"quality": 80}, "quality 90, not 80"),
        ({"encoding": "raw"}, "encoding jpeg, not raw"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_other_options_are_refused_by_name(
    option: dict[str, Any], words: str, complete: bool, image_folder: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"encoding": "jpeg"}
    out = pack("images", image_folder, tmp_path / "out", **options).path
    if not complete:
        mark_incomplete(out)
    before = contents(out)
    with pytest.raises(UserError, match=f"{words}.*delete"):
        pack("images", image_folder, out, **options | option)
    assert contents(out) == before


def test_every_is_an_option_of_videos_only(video_folder: Path, tmp_path: Path) -> None:
    pack("videos", video_folder, tmp_path / "out", **OPTIONS)
    with pytest.raises(UserError, match="every 1, not 2"):
        pack("videos", video_folder, tmp_path / "out", every=2, **OPTIONS)
    store = pack("videos", video_folder, tmp_path / "every_second", every=2, **OPTIONS)
    assert [store.num_frames(item) for item in range(3)] == [2, 3, 3]


def test_a_changed_source_is_refused(image_folder: Path, tmp_path: Path) -> None:
    pack("images", image_folder, tmp_path / "out", **OPTIONS)
    os.utime(image_folder / "a.png", ns=(1, 1))
    with pytest.raises(UserError, match="other files"):
        pack("images", image_folder, tmp_path / "out", **OPTIONS)


def test_a_folder_with_other_files_is_left_unchanged(image_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="contains other files"):
        pack("images", image_folder, other, **OPTIONS)
    with pytest.raises(UserError, match="is a file"):
        pack("images", image_folder, other / "thesis.tex", **OPTIONS)
    assert contents(other) == {"thesis.tex": b"precious"}


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_no_readable_file_is_a_user_error_with_the_first_reason(kind: str, tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    for name in ("a.gif", "b.gif", "c.gif"):
        (src / name).touch()
    for _ in range(2):
        with pytest.raises(UserError, match=rf"no readable {kind[:-1]} in .*src \(3 files .*a\.gif: .*empty"):
            pack(kind, src, tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize(("kind", "suffix"), [("images", r"\.jpg"), ("videos", r"\.mkv")])
def test_no_file_of_the_kind_is_a_user_error_that_lists_the_suffixes(kind: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(UserError, match=rf"no {kind} found in .*src .*{suffix}.*check the path, or use pack"):
        pack(kind, tmp_path / "src", tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [{"short_side": 8}, {"quality": 0}, {"every": 0}, {"workers": 0}])
def test_options_out_of_range_are_user_errors(option: dict[str, int], image_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        pack("images", image_folder, tmp_path / "out", **OPTIONS | option)
    assert not (tmp_path / "out").exists()


def test_a_user_error_while_reading_is_not_a_skipped_file(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.data.pack.read_image", read_failing_at("e.png", UserError("no decoder")))
    with pytest.raises(UserError, match="no decoder"):
        pack("images", image_folder, tmp_path / "out", **OPTIONS)


def test_concurrent_packings_of_one_store_do_not_interfere(image_folder: Path, tmp_path: Path) -> None:
    stores: list[Store] = []

    def work() -> None:
        stores.append(pack("images", image_folder, tmp_path / "out", **OPTIONS))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pack("images", image_folder, tmp_path / "alone", **OPTIONS)
    assert len(stores) == 4 and contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_progress_goes_to_the_error_stream(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.console.SECONDS_BETWEEN_LINES", -1.0)
    pack("images", image_folder, tmp_path / "loud", **OPTIONS | {"progress": True})
    loud = capsys.readouterr()
    assert "packing images 8/8 2 skipped" in loud.err and not loud.out
    pack("images", image_folder, tmp_path / "quiet", **OPTIONS)
    assert capsys.readouterr() == ("", "")


def test_the_cache_has_a_store_for_each_folder_options_and_state(image_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = cached_store("images", image_folder, cache, **OPTIONS)
    assert first.path.parent == cache and first.path.name.startswith("pictures-images-")
    assert cached_store("images", image_folder, cache, **OPTIONS).path == first.path
    other = cached_store("images", image_folder, cache, **OPTIONS | {"short_side": 24})
    Image.new("RGB", (32, 32)).save(image_folder / "z.png")
    changed = cached_store("images", image_folder, cache, **OPTIONS)
    assert len({first.path, other.path, changed.path}) == 3
    assert len(changed) == len(first) + 1


def test_a_store_given_as_the_folder_is_opened_if_its_kind_is_right(image_folder: Path, tmp_path: Path) -> None:
    packed = pack("images", image_folder, tmp_path / "out", **OPTIONS)
    assert cached_store("images", packed.path, tmp_path / "cache").path == packed.path
    assert not (tmp_path / "cache").exists()
    with pytest.raises(UserError, match="store of images"):
        cached_store("videos", packed.path, tmp_path / "cache")
    with pytest.raises(UserError, match="does not exist"):
        cached_store("images", tmp_path / "nowhere", tmp_path / "cache")


def test_a_bad_file_does_not_stop_the_others(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.data.pack.read_image", read_failing_at("a.png", BadMedia("odd")))
    store = pack("images", image_folder, tmp_path / "out", **OPTIONS)
    assert store.skipped[0] == ("a.png", "odd") and len(store) == 5


def test_a_long_video_is_not_held_in_memory(
    video_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_frames(*given: Any) -> Iterator[np.ndarray]:
        return (np.full((128, 160, 3), number % 256, np.uint8) for number in range(400))

    monkeypatch.setattr("unshuffle.data.pack.read_frames", read_frames)
    monkeypatch.setattr("unshuffle.data.store.SPOOL_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        store = pack("videos", video_folder, tmp_path / "out", **OPTIONS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    one_video = 400 * 128 * 160 * 3
    assert (store.path / "data.bin").stat().st_size == 4 * one_video
    assert peak < one_video / 2


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_frames_spooled_to_disk_give_the_same_bytes(
    encoding: str, video_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = OPTIONS | {"encoding": encoding}
    rolled_into = []
    real = tempfile.TemporaryFile

    def temporary_file(*args: Any, **kwargs: Any) -> Any:
        rolled_into.append(kwargs["dir"])
        return real(*args, **kwargs)

    monkeypatch.setattr("tempfile.TemporaryFile", temporary_file)
    in_memory = contents(pack("videos", video_folder, tmp_path / "memory", **options).path)
    assert not rolled_into
    monkeypatch.setattr("unshuffle.data.store.SPOOL_BYTES", 1)
    on_disk = contents(pack("videos", video_folder, tmp_path / "disk", **options).path)
    assert rolled_into == [str(tmp_path / "disk")] * 3
    assert on_disk == in_memory


def test_a_kill_leaves_no_spooled_frames(video_folder: Path, tmp_path: Path) -> None:
    killed = """
import os, signal, sys
from pathlib import Path
import unshuffle.data.pack, unshuffle.data.store

def add(*_):
    os.kill(os.getpid(), signal.SIGKILL)

unshuffle.data.store.SPOOL_BYTES = 1
unshuffle.data.store.Writer.add = add
unshuffle.data.pack.pack("videos", Path(sys.argv[1]), Path(sys.argv[2]), short_side=16, progress=False)
"""
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", killed, str(video_folder), str(out)]).returncode == -9
    assert set(contents(out)) == {"store.json", "data.bin", "index.jsonl", "skipped.jsonl"}
    pack("videos", video_folder, out, **OPTIONS)
    pack("videos", video_folder, tmp_path / "whole", **OPTIONS)
    assert contents(out) == contents(tmp_path / "whole")


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free()))


def pack_to_folder(kind: str, src: Path, out: Path, **options: Any) -> Store:
    return pack(kind, src, out, **OPTIONS | options)


def pack_into_cache(kind: str, src: Path, out: Path, **options: Any) -> Store:
    return cached_store(kind, src, out, **OPTIONS | options)


@pytest.mark.parametrize(
    ("kind", "packer", "encoding", "advice"),
    [
        ("images", pack_to_folder, "raw", "--encoding jpeg, a smaller --short_side or an output folder"),
        ("images", pack_to_folder, "jpeg", "choose a smaller --short_side or an output folder"),
        ("images", pack_into_cache, "raw", "--data.encoding jpeg, a smaller --data.image_short_side or a --data.cache"),
        ("videos", pack_into_cache, "jpeg", "choose a smaller --data.frame_short_side or a --data.cache"),
    ],
)
def test_packing_stops_early_without_enough_space_and_can_be_finished(
    kind: str,
    packer: Callable[..., Store],
    encoding: str,
    advice: str,
    image_folder: Path,
    video_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src = image_folder if kind == "images" else video_folder
    suffix = "png" if kind == "images" else "mp4"
    for number in range(30):
        shutil.copy2(next(src.glob(f"*0.{suffix}"), src / "a.png"), src / f"copy{number:02}.{suffix}")
    whole = packer(kind, src, tmp_path / "whole", encoding=encoding).path
    size = (whole / "data.bin").stat().st_size
    with monkeypatch.context() as patch:
        set_free_space(patch, lambda: size // 2)
        patch.setattr("unshuffle.data.pack._raw_bytes", lambda *given: 1)  # headers may be wrong
        with pytest.raises(UserError, match=r"needs about [\d.]+ kB as a store .* only [\d.]+ kB are free") as caught:
            packer(kind, src, tmp_path / "out", encoding=encoding)
    assert advice in str(caught.value)
    out = tmp_path / "out" / (whole.name if packer is pack_into_cache else "")
    assert str(out) in str(caught.value)
    assert 0 < (out / "data.bin").stat().st_size < size // 2
    packer(kind, src, tmp_path / "out", encoding=encoding)
    assert contents(out) == contents(whole)


@pytest.mark.parametrize(
    ("kind", "packer", "advice"),
    [
        ("images", pack_to_folder, "or choose --encoding jpeg, a smaller --short_side or an output folder"),
        ("videos", pack_into_cache, "--data.encoding jpeg, fewer --data.clips_per_video, a smaller --data.frame_short"),
    ],
)
def test_nothing_is_packed_that_will_not_fit(
    kind: str,
    packer: Callable[..., Store],
    advice: str,
    image_folder: Path,
    video_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"encoding": "raw", "clip_frames": 2} if kind == "videos" else {"encoding": "raw"}
    src = image_folder if kind == "images" else video_folder
    size = (packer(kind, src, tmp_path / "whole", **options).path / "data.bin").stat().st_size
    monkeypatch.setattr("unshuffle.data.pack._encode_file", None)
    set_free_space(monkeypatch, lambda: size // 2)
    with pytest.raises(
        UserError, match=r"needs about [\d.]+ kB as a store in .*, and only [\d.]+ kB are free"
    ) as caught:
        packer(kind, src, tmp_path / "out", **options)
    assert advice in str(caught.value) and "continues" not in str(caught.value)


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_the_size_is_said_before_packing_and_is_about_right(
    kind: str, image_folder: Path, video_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src = image_folder if kind == "images" else video_folder
    store = pack(kind, src, tmp_path / "out", short_side=16, workers=1, clip_frames=2)
    size = (store.path / "data.bin").stat().st_size
    told = capsys.readouterr().err.splitlines()[0]
    found = re.fullmatch(r"packing (\d) (\w+) of (.*) into (.*): about ([\d.]+) kB as raw pixels; .* are free", told)
    assert found is not None, told
    assert found.groups()[:4] == ("8" if kind == "images" else "4", kind, str(src), str(store.path))
    assert float(found[5]) * 1000 == pytest.approx(size, rel=0.1)
    pack(kind, src, tmp_path / "out", short_side=16, workers=1, clip_frames=2)
    assert capsys.readouterr().err == "", "nothing is packed the second time"


def test_of_many_files_some_are_measured(image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    real = unshuffle.data.pack._raw_bytes

    def raw_bytes(path: Path, header: Header) -> int:
        probed.append(path.name)
        return real(path, header)

    monkeypatch.setattr("unshuffle.data.pack._raw_bytes", raw_bytes)
    monkeypatch.setattr("unshuffle.data.pack.PROBED_FILES", 3)
    job = unshuffle.data.pack._plan("images", image_folder, cached=False, short_side=16)[0]
    assert job.expected_bytes == pytest.approx(8 * 16 * 22 * 3, rel=0.1)
    assert len(probed) == 3


def test_a_large_store_is_compressed(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images take 6 kB raw."""
    small = pack("images", image_folder, tmp_path / "raw", **OPTIONS, max_raw_gb=8e-6)
    large = pack("images", image_folder, tmp_path / "jpeg", **OPTIONS | {"progress": True}, max_raw_gb=4e-6)
    assert (small.encoding, large.encoding) == ("raw", "jpeg")
    assert "as JPEG, since raw pixels would take more than max_raw_gb (4e-06 GB);" in capsys.readouterr().err
    again = pack("images", image_folder, tmp_path / "jpeg", **OPTIONS)
    assert again.encoding == "jpeg", "a store that exists keeps its encoding"


def test_a_cached_store_keeps_its_encoding(image_folder: Path, tmp_path: Path) -> None:
    compressed = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS, max_raw_gb=0)
    assert compressed.encoding == "jpeg"
    assert cached_store("images", image_folder, tmp_path / "cache", **OPTIONS).path == compressed.path
    raw = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS, encoding="raw")
    assert raw.encoding == "raw" and raw.path != compressed.path
    mark_incomplete(raw.path)
    assert cached_store("images", image_folder, tmp_path / "cache", **OPTIONS).path == compressed.path


def test_stores_of_the_version_without_windows_are_still_found(image_folder: Path, tmp_path: Path) -> None:
    """The name is what that version computed, so nobody's images are packed again."""
    store = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS)
    values = json.loads((store.path / "store.json").read_text())
    before = ("kind", "encoding", "quality", "short_side", "every", "source", "max_pixels", "max_frames", "max_seconds")
    identity = sorted(({name: values[name] for name in before} | {"complete": False, "format": 1}).items())
    digest = hashlib.sha256(f"{image_folder.resolve()}\n{identity}".encode()).hexdigest()[:12]
    assert store.path.name == f"pictures-images-{digest}"
    old = {name: value for name, value in values.items() if name in (*before, "complete", "format")}
    (store.path / "store.json").write_text(json.dumps(old))
    written = (store.path / "data.bin").stat().st_mtime_ns
    again = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS)
    assert (again.path, len(again)) == (store.path, 6)
    assert (again.path / "data.bin").stat().st_mtime_ns == written


# windows of long videos


def gray_levels(store: Store, item: int) -> list[int]:
    """The numbers of the frames, which their gray levels encode."""
    frames = store.read(item, range(store.num_frames(item)))
    return [round((float(frame.mean()) - 20) / 9) for frame in frames]


@pytest.mark.parametrize(
    ("frames", "every", "windows"),
    [
        (7, 1, [[0, 1, 2, 3, 4, 5, 6]]),
        (8, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (20, 1, [[1, 2, 3, 4], [8, 9, 10, 11], [14, 15, 16, 17]]),
        (20, 2, [[0, 2, 4, 6], [10, 12, 14, 16]]),
        (14, 2, [[0, 2, 4, 6, 8, 10, 12]]),
    ],
)
def test_a_long_video_becomes_windows(
    frames: int, every: int, windows: list[list[int]], tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    write_video(tmp_path / "clips" / "x.mp4", frames=frames)
    options = OPTIONS | {"every": every, "clip_frames": 4, "clips_per_video": 3}
    store = pack("videos", tmp_path / "clips", tmp_path / "out", **options)
    assert [gray_levels(store, item) for item in range(len(store))] == windows
    names = [f"x.mp4#{number}" for number in range(1, len(windows) + 1)] if len(windows) > 1 else ["x.mp4"]
    assert (list(store.names), store.origins) == (names, ["x.mp4"] * len(windows))


def test_windows_have_names_that_no_file_has(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    long = write_video(tmp_path / "clips" / "x.mp4", frames=8)
    shutil.copy(long, tmp_path / "clips" / "x.mp4#2")
    store = pack("videos", tmp_path / "clips", tmp_path / "out", **OPTIONS, clip_frames=4)
    assert list(store.names) == ["x.mp4#1#", "x.mp4#2#", "x.mp4#2#1", "x.mp4#2#2"]


def test_a_truncated_long_video_keeps_its_readable_windows(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    """Packets are counted, and some may not decode."""
    write_video(tmp_path / "clips" / "x.avi", frames=20, codec="mjpeg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unshuffle.data.pack.count_frames", lambda *given: 30)
        store = pack("videos", tmp_path / "clips", tmp_path / "out", **OPTIONS, clip_frames=5, clips_per_video=3)
    assert [store.num_frames(item) for item in range(len(store))] == [5, 5]


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_windows_survive_a_kill_at_any_line(encoding: str, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    for number in range(2):
        write_video(tmp_path / "clips" / f"{number}.mp4", frames=12)
    options = OPTIONS | {"encoding": encoding, "clip_frames": 4}
    whole = contents(pack("videos", tmp_path / "clips", tmp_path / "whole", **options).path)
    lines = whole["index.jsonl"].splitlines(keepends=True)
    assert len(lines) == 6
    for kept in range(7):
        out = tmp_path / "out"
        shutil.copytree(tmp_path / "whole", out)
        mark_incomplete(out)
        (out / "index.jsonl").write_bytes(b"".join(lines[:kept]))
        pack("videos", tmp_path / "clips", out, **options)
        assert contents(out) == whole
        shutil.rmtree(out)


def test_a_video_of_too_many_frames_is_skipped_though_it_would_be_cut(
    tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    write_video(tmp_path / "clips" / "a.mp4", frames=20)
    write_video(tmp_path / "clips" / "b.mp4", frames=8)
    options = OPTIONS | {"clip_frames": 2, "clips_per_video": 1, "limits": LimitsConfig(max_frames=10)}
    store = pack("videos", tmp_path / "clips", tmp_path / "out", **options)
    assert store.skipped == [("a.mp4", "it has more than 10 frames (limits.max_frames)")]
    assert list(store.names) == ["b.mp4"] and gray_levels(store, 0) == [3, 4]


# HEIC


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Hide pillow-heif; returns a function that installs it again."""
    formats = tuple(name for name in media.image_formats() if name != "HEIF")
    monkeypatch.setattr(media, "image_formats", lambda: formats)
    return monkeypatch.undo


def test_heic_is_packed_as_soon_as_it_can_be_read(
    image_folder: Path, tmp_path: Path, without_heif: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    photo = Image.open(image_folder / "a.png")
    pillow_heif.from_pillow(photo).save(image_folder / "x.HEIC")
    shutil.copy(image_folder / "x.HEIC", image_folder / "really-heic.jpg")
    store = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS)
    pack("images", image_folder, tmp_path / "out", **OPTIONS)
    reason = "it is a HEIC image, which needs another package: pip install pillow-heif"
    assert [entry for entry in store.skipped if entry[1] == reason] == [("really-heic.jpg", reason), ("x.HEIC", reason)]
    without_heif()
    again = cached_store("images", image_folder, tmp_path / "cache", **OPTIONS)
    assert len(again) == len(store) + 2 and again.path == store.path
    original, decoded = (again.read(list(again.names).index(name), [0]) for name in ("a.png", "x.HEIC"))
    assert np.abs(original.astype(float) - decoded).mean() < 6
    with pytest.raises(UserError, match="out was packed before pillow-heif was installed: delete it to pack it again"):
        pack("images", image_folder, tmp_path / "out", **OPTIONS)


def test_space_freed_while_packing_counts(image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([10**9, 100, 10**9])
    set_free_space(monkeypatch, lambda: next(free))
    assert len(pack("images", image_folder, tmp_path / "out", **OPTIONS)) == 6
    assert not list(free)


def test_a_store_that_just_fits_is_packed(image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (pack("images", image_folder, tmp_path / "first", **OPTIONS).path / "data.bin").stat().st_size
    set_free_space(monkeypatch, lambda: size)
    assert len(pack("images", image_folder, tmp_path / "second", **OPTIONS)) == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("method", ["append", "move_to"])
def test_a_full_disk_is_a_user_error_and_the_store_can_be_finished(
    method: str, code: int, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = getattr(Record, method)

    def write(record: Record, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            if method == "move_to":
                args[0].write(b"half of a record")
            raise OSError(code, os.strerror(code))
        real(record, *args)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Record, method, write)
        with pytest.raises(UserError, match=r"no space left .*out: free .* or delete .*out and choose --encoding"):
            pack("images", image_folder, out, **OPTIONS)
    pack("images", image_folder, out, **OPTIONS)
    pack("images", image_folder, tmp_path / "whole", **OPTIONS)
    assert contents(out) == contents(tmp_path / "whole")


def test_other_disk_errors_are_raised_unchanged(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Record, "move_to", write)
    with pytest.raises(OSError, match="input/output error"):
        pack("images", image_folder, tmp_path / "out", **OPTIONS)


def test_the_progress_shows_the_expected_size(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.console.SECONDS_BETWEEN_LINES", -1.0)
    store = pack("images", image_folder, tmp_path / "out", **OPTIONS | {"progress": True})
    size = (store.path / "data.bin").stat().st_size
    assert f"2 skipped, about {size / 1000:.1f} kB" in capsys.readouterr().err


ODD_NAMES = [os.fsdecode(name) for name in (b"a\nb", b"\r\n", b"caf\xe9 \xff", "\u2028 \x85".encode(), b'"\\')]


@pytest.mark.parametrize("packer", [pack_to_folder, pack_into_cache])
@pytest.mark.parametrize("kind", ["images", "videos"])
def test_every_file_name_of_the_system_is_preserved(
    kind: str,
    packer: Callable[..., Store],
    tmp_path: Path,
    image_folder: Path,
    video_folder: Path,
) -> None:
    good = image_folder / "a.png" if kind == "images" else video_folder / "clip0.mp4"
    src = tmp_path / ODD_NAMES[2]
    src.mkdir()
    try:
        for name in ODD_NAMES:
            (src / name).mkdir()
            shutil.copy(good, src / name / f"{name}{good.suffix}")
            (src / name / f"{name} bad{good.suffix}").touch()
    except OSError:
        pytest.skip("the file system refuses such names")
    store = packer(kind, src, tmp_path / "out")
    assert set(store.names) == {f"{name}/{name}{good.suffix}" for name in ODD_NAMES}
    assert {name for name, _ in store.skipped} == {f"{name}/{name} bad{good.suffix}" for name in ODD_NAMES}
    whole = contents(store.path)
    mark_incomplete(store.path)
    os.truncate(store.path / "data.bin", len(whole["data.bin"]) // 2)
    packer(kind, src, tmp_path / "out")
    assert contents(store.path) == whole


def test_only_the_named_files_are_packed(image_folder: Path, tmp_path: Path) -> None:
    store = cached_store("images", image_folder, tmp_path / "cache", only=["e.png", "b/c.png"], **OPTIONS)
    assert store.names == ["b/c.png", "e.png"] and store.skipped == []
    assert len(cached_store("images", image_folder, tmp_path / "cache", **OPTIONS)) == 6


def test_what_is_no_file_is_listed_as_skipped(image_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(image_folder / "fifo.png")
    (image_folder / "link.png").symlink_to("nowhere.png")
    (image_folder / "folder.png").mkdir()
    store = pack("images", image_folder, tmp_path / "out", **OPTIONS)
    assert {"fifo.png", "link.png", "folder.png"} <= {name for name, _ in store.skipped}
    assert pack("images", image_folder, tmp_path / "out", **OPTIONS).skipped == store.skipped


def test_files_beyond_the_limits_are_listed_and_other_limits_are_another_store(
    image_folder: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (200, 200)).save(image_folder / "large.png")
    small = LimitsConfig(max_pixels=30_000)
    store = pack("images", image_folder, tmp_path / "out", limits=small, **OPTIONS)
    assert ("large.png", "200 x 200 pixels are more than 30000 (limits.max_pixels)") in store.skipped
    with pytest.raises(UserError, match=r"max_pixels 30000, not 120000000"):
        pack("images", image_folder, tmp_path / "out", **OPTIONS)
    cached = [
        cached_store("images", image_folder, tmp_path, limits=limits, **OPTIONS) for limits in (small, LimitsConfig())
    ]
    assert [len(store.skipped) for store in cached] == [3, 2]


def test_a_store_of_a_version_without_limits_is_read(image_folder: Path, tmp_path: Path) -> None:
    store = pack("images", image_folder, tmp_path / "out", **OPTIONS)
    header = json.loads((tmp_path / "out" / "store.json").read_text())
    for name in ("max_pixels", "max_frames", "max_seconds", "crc32"):
        del header[name]
    (tmp_path / "out" / "store.json").write_text(json.dumps(header))
    assert (
        Store(tmp_path / "out").names == pack("images", image_folder, tmp_path / "out", **OPTIONS).names == store.names
    )


@pytest.mark.parametrize(
    "command",
    [
        "pack videos {clips} {out}",
        "embed {clips} --weights random:tiny --out {out}.npy",
        "doctor --videos {clips} --data.cache {out}",
        "doctor --videos {clips}.tar --data.cache {out}",
    ],
)
def test_ctrl_c_ends_the_decoding_of_a_long_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    head = b"GIF89a" + struct.pack("<HH", 4000, 4000) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    frame = b"\x21\xf9\x04\0\x01\0\0\0\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02\x44\x01\0"
    (tmp_path / "clips" / "x.gif").write_bytes(head + 30_000 * frame + b";")  # takes an hour
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        tar.add(tmp_path / "clips" / "x.gif", "x.gif")
    begin = "import signal, unshuffle.data.media as media, unshuffle.cli as cli\nreal = media._decode_video\n"
    begin += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs of a shell ignore it
    begin += "def decode(*given):\n    print('decoding', flush=True)\n    yield from real(*given)\n"
    begin += "media._decode_video = decode\ncli.main()\n"
    words = command.format(clips=tmp_path / "clips", out=tmp_path / "out").split()
    process = subprocess.Popen(
        [sys.executable, "-c", begin, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "decoding\n"
    process.send_signal(signal.SIGINT)
    try:
        _, message = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert message.splitlines()[-1] == "unshuffle: interrupted" and "Traceback" not in message
