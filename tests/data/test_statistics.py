from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from unshuffle.data import statistics
from unshuffle.data.batches import Samples
from unshuffle.data.pack import pack
from unshuffle.data.statistics import difference_hash, distinct_items, find_duplicates, measure_files


def photo(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def distance(first: Image.Image, second: Image.Image) -> int:
    return int((difference_hash(np.asarray(first)) != difference_hash(np.asarray(second))).sum())


def test_the_hash_compares_neighbours_of_a_coarse_grid() -> None:
    ramp = np.tile(np.arange(0, 180, dtype=np.uint8)[None, :, None], (80, 1, 3))
    assert difference_hash(ramp).tolist() == [True] * 64
    assert difference_hash(ramp[:, ::-1].copy()).tolist() == [False] * 64


def test_the_hash_survives_what_copies_go_through() -> None:
    original = photo(0, 400, 300)
    copies = [original.resize((120, 90)), ImageEnhance.Brightness(original).enhance(0.8), original.convert("L")]
    assert all(distance(original, copy.convert("RGB")) <= statistics.MAX_DISTANCE for copy in copies)
    assert min(distance(photo(first), photo(second)) for first in range(12) for second in range(first)) > 8


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    """Ten different photos, a copy of the first, and a copy of the second as the last."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(10):
        photo(number).save(folder / f"{number:02}.png")
    photo(0).save(folder / "10.jpg", quality=70)
    photo(1).resize((32, 24)).save(folder / "11.png")
    store = pack("images", folder, tmp_path / "store", short_side=32, progress=False)
    return Samples(store, np.arange(12), frames=1, side=32)


def part(samples: Samples, items: list[int]) -> Samples:
    return Samples(samples.source, np.array(items, np.int64), 1, 32)


def test_copies_are_found_also_across_the_split(samples: Samples) -> None:
    duplicates = find_duplicates(part(samples, list(range(11))), [part(samples, [11]), part(samples, [])])
    assert (duplicates.compared, duplicates.found, duplicates.held_out) == (12, 4, 1)
    assert list(duplicates.examples) == [("00.png", "10.jpg"), ("01.png", "11.png")]
    both = find_duplicates(part(samples, [2, 3]), [part(samples, [0, 10])])
    assert (both.found, both.held_out) == (2, 0), "alike, but neither is trained on"
    assert find_duplicates(part(samples, [2, 3, 4]), []).found == 0


def test_of_many_samples_some_are_compared(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "COMPARED_SAMPLES", 5)
    assert find_duplicates(samples, []).compared == 4
    monkeypatch.setattr(statistics, "COMPARED_SAMPLES", 100)
    monkeypatch.setattr(statistics, "CHUNK", 5)
    assert find_duplicates(samples, []).found == 4


def test_windows_of_one_video_are_no_duplicates(video_folder: Path, tmp_path: Path) -> None:
    store = pack("videos", video_folder, tmp_path / "store", short_side=16, progress=False, clip_frames=2)
    assert len(store) > 3
    windows = [item for item, name in enumerate(store.origins) if name == "clip2.mp4"]
    assert find_duplicates(Samples(store, np.array(windows), 2, 16), []).found == 0


def test_files_are_measured_in_order_of_area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (width, height) in enumerate([(64, 48), (20, 90), (300, 200)]):
        photo(number, width, height).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_text("no image")
    paths = sorted(tmp_path.iterdir())
    measured = measure_files(paths, "images")
    assert (measured.files, measured.sizes) == (3, [(20, 90), (64, 48), (300, 200)])
    monkeypatch.setattr(statistics, "MEASURED_FILES", 2)
    assert measure_files(paths, "images").sizes == [(64, 48), (300, 200)]


def test_distinct_items_leave_copies_out(samples: Samples) -> None:
    mixed = part(samples, [0, 10, 1, 11, 2, 3])
    assert distinct_items(mixed, 4).tolist() == [0, 1, 2, 3]
    assert distinct_items(mixed, 2).tolist() == [0, 1]
    assert distinct_items(mixed, 5).tolist() == [0, 10, 1, 2, 3], "as many as asked for, with copies if need be"
