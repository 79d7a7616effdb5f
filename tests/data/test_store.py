import json
import pickle
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from unshuffle.data.media import read_frames, read_image
from unshuffle.data.pack import pack
from unshuffle.data.store import Store
from unshuffle.errors import UserError


@pytest.fixture
def packed_images(image_folder: Path, tmp_path: Path) -> Path:
    return pack("images", image_folder, tmp_path / "store", short_side=16, progress=False).path


@pytest.fixture
def packed_clips(video_folder: Path, tmp_path: Path) -> Path:
    return pack("videos", video_folder, tmp_path / "store", encoding="jpeg", progress=False).path


def test_raw_images_are_read_exactly(packed_images: Path, image_folder: Path) -> None:
    store = Store(packed_images)
    assert store.names == ["a.png", "b/c.png", "b/d.png", "e.png", "f.png", "h.png"]
    assert [name for name, _ in store.skipped] == ["b/cc.jpg", "g.png"]
    assert (store.kind, store.encoding, len(store)) == ("images", "raw", 6)
    for item, name in enumerate(store.names):
        original = read_image(image_folder / name, 16)
        assert store.num_frames(item) == 1 and store.size(item) == original.shape[:2]
        assert (store.read(item, [0]) == original[None]).all()


@pytest.mark.parametrize(("encoding", "tolerance"), [("raw", 0), ("jpeg", 2)])
def test_of_clips_only_the_chosen_frames_are_read(
    video_folder: Path, tmp_path: Path, encoding: str, tolerance: float
) -> None:
    store = pack("videos", video_folder, tmp_path / "store", encoding=encoding, progress=False)
    assert store.kind == "videos" and store.encoding == encoding
    assert [store.num_frames(item) for item in range(len(store))] == [4, 5, 6]
    for item, name in enumerate(store.names):
        original = np.stack(list(read_frames(video_folder / name, 128)))
        frames = [3, 0, 3]
        pixels = store.read(item, frames)
        assert pixels.shape == (3, *store.size(item), 3) and pixels.dtype == np.uint8
        assert np.abs(pixels.astype(int) - original[frames]).mean() <= tolerance
        assert store.read(item, []).shape == (0, *store.size(item), 3)


def test_a_frame_out_of_range_is_an_index_error(packed_clips: Path) -> None:
    for frame in (4, -1):
        with pytest.raises(IndexError, match="4 frames"):
            Store(packed_clips).read(0, [frame])


def test_a_pickled_store_and_threads_read_the_same(packed_clips: Path) -> None:
    store = Store(packed_clips)
    copy = pickle.loads(pickle.dumps(store))
    alone = [store.read(item, [1, 2]) for item in range(3)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda item: copy.read(item % 3, [1, 2]), range(24)))
    assert all((pixels == alone[number % 3]).all() for number, pixels in enumerate(together))


def test_pixels_may_be_changed_without_changing_the_store(packed_images: Path) -> None:
    store = Store(packed_images)
    pixels = store.read(0, [0])
    before = pixels.copy()
    pixels[:] = 0
    assert (store.read(0, [0]) == before).all()


def test_is_store(packed_images: Path, image_folder: Path, tmp_path: Path) -> None:
    assert Store.is_store(packed_images)
    assert not Store.is_store(image_folder)
    assert not Store.is_store(tmp_path / "nowhere")


@pytest.mark.parametrize("item", [0, 2])
def test_a_wrong_bit_is_detected_in_its_own_record_only(packed_clips: Path, item: int) -> None:
    rows = [json.loads(line) for line in (packed_clips / "index.jsonl").read_text().splitlines()]
    data = bytearray((packed_clips / "data.bin").read_bytes())
    data[rows[item]["offset"] + 700] ^= 1
    (packed_clips / "data.bin").write_bytes(data)
    store = Store(packed_clips)
    for other in {0, 1, 2} - {item}:
        store.read(other, [0])
    for _ in range(2):
        with pytest.raises(UserError, match=rf"damaged.*clip{item}\.mp4.*pack it again"):
            store.read(item, [0])


def test_a_record_is_verified_the_first_time_only(packed_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []
    real = zlib.crc32
    store = Store(packed_images)
    monkeypatch.setattr(zlib, "crc32", lambda data: checks.append(1) or real(data))
    for item in (0, 0, 1, 0):
        store.read(item, [0])
    assert len(checks) == 2


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_size_is_detected_at_opening(packed_images: Path, change: int) -> None:
    data = (packed_images / "data.bin").read_bytes()
    (packed_images / "data.bin").write_bytes(data[:-1] if change < 0 else data + b"x")
    with pytest.raises(UserError, match=r"damaged.*delete it and pack it again"):
        Store(packed_images)


@pytest.mark.parametrize("name", ["store.json", "index.jsonl", "data.bin"])
@pytest.mark.parametrize("content", [None, b"", b'{"format": 1}\n', b"[1]\n", b"garbage\n"])
def test_a_lost_or_overwritten_file_is_noticed_at_opening(
    packed_images: Path, name: str, content: bytes | None
) -> None:
    (packed_images / name).unlink()
    if content is not None:
        (packed_images / name).write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        Store(packed_images)


def test_an_inconsistent_index_is_detected_at_opening(packed_images: Path) -> None:
    index = packed_images / "index.jsonl"
    header = json.loads((packed_images / "store.json").read_text())
    del header["crc32"]  # of an older version, which had none of the index
    (packed_images / "store.json").write_text(json.dumps(header))
    text = index.read_text()
    for wrong in (text.replace("a.png", "h.png"), text.replace('"offset": 0', '"offset": 1')):
        index.write_text(wrong)
        with pytest.raises(UserError, match="is inconsistent"):
            Store(packed_images)


@pytest.mark.parametrize("name", ["store.json", "index.jsonl", "skipped.jsonl"])
def test_a_wrong_bit_beside_the_data_is_noticed_at_opening(packed_clips: Path, name: str) -> None:
    good = (packed_clips / name).read_bytes()
    sound, stored = Store(packed_clips), 0
    for position in range(0, 8 * len(good), 3):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        (packed_clips / name).write_bytes(damaged)
        try:
            store = Store(packed_clips)
        except UserError as error:
            assert "\n" not in str(error)
        else:  # the name of a key that holds checksums, or white space
            stored += 1
            assert (store.header, store.names) == (sound.header, sound.names)
            assert (store.sizes == sound.sizes).all() and store.read(0, [0]).any()
    assert stored <= (20 if name == "store.json" else 0)


def test_a_store_without_checksums_of_its_index_still_opens(packed_clips: Path) -> None:
    header = json.loads((packed_clips / "store.json").read_text())
    assert sorted(header.pop("crc32")) == ["index.jsonl", "skipped.jsonl", "store.json"]
    (packed_clips / "store.json").write_text(json.dumps(header))
    assert len(Store(packed_clips)) == 3


TRUNCATED = """
import os, sys
from pathlib import Path
from unshuffle.cli import COMMANDS, main
from unshuffle.data.store import Store

def read(args):
    store = Store(Path(args[0]))
    os.truncate(store.path / "data.bin", 0)
    store.read(0, [0])
    return 0

COMMANDS["read"] = (read, "")
sys.argv[1:] = ["read", sys.argv[1]]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the file is named where the system lists maps")
def test_a_store_truncated_while_it_is_read_is_one_sentence(packed_images: Path) -> None:
    command = [sys.executable, "-c", TRUNCATED, str(packed_images)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    assert process.stderr.strip().startswith(f"unshuffle: {packed_images / 'data.bin'} was truncated")
    assert len(process.stderr.strip().splitlines()) == 1


def test_an_incomplete_store_and_another_format_are_refused(packed_images: Path) -> None:
    header = json.loads((packed_images / "store.json").read_text())
    del header["crc32"]
    (packed_images / "store.json").write_text(json.dumps(header | {"complete": False}))
    with pytest.raises(UserError, match=r"incomplete.*pack again"):
        Store(packed_images)
    (packed_images / "store.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.raises(UserError, match="format 2"):
        Store(packed_images)
