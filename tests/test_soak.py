"""The fuzzer of the reliability campaign and its comparisons; `make soak` runs the campaign itself."""

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from soak import fuzzer, originals, samples
from soak.campaign import Campaign, Counts
from soak.damage import damaged, damaged_json
from soak.media import changed_files
from unshuffle.data.media import image_formats, image_suffixes, read_frames, read_image

IMAGES, VIDEOS = originals.images(), originals.videos()
ALL = [*IMAGES, *VIDEOS]
NAMES = [original.name for original in ALL]


@pytest.mark.parametrize("original", ALL, ids=NAMES)
def test_a_file_taken_apart_and_put_together_shows_the_same(original: originals.Original, tmp_path: Path) -> None:
    chunks = original.layout.parse(original.content)
    assert len(list(fuzzer._all_chunks(chunks))) > 2, "it has a structure"
    files = [tmp_path / f"{name}{original.suffix}" for name in ("before", "after")]
    for file, content in zip(files, (original.content, original.layout.build(chunks)), strict=True):
        file.write_bytes(content)
    if original in IMAGES:
        before, after = (read_image(file) for file in files)
    else:
        before, after = (np.stack(list(read_frames(file))) for file in files)
    assert before.std() > 10 and np.array_equal(before, after)


@pytest.mark.parametrize("original", ALL, ids=NAMES)
def test_mutants_differ_from_the_file_and_from_each_other_and_depend_on_the_seed_alone(
    original: originals.Original,
) -> None:
    def mutants(seed: str) -> list[bytes]:
        rngs = [Random(f"{seed}/{number}") for number in range(20)]
        return [fuzzer.mutate(original.content, original.layout, rng, original.content) for rng in rngs]

    first = mutants("a")
    assert original.content not in first and len(set(first)) > 15
    assert first == mutants("a") != mutants("b")
    assert max(map(len, first)) <= fuzzer.MAX_BYTES


@pytest.mark.parametrize("change", dict.fromkeys(fuzzer.CHANGES), ids=lambda change: change.__name__)
def test_every_change_changes_files_of_nested_chunks(change) -> None:
    original = next(original for original in VIDEOS if original.layout is fuzzer.BOXES)
    contents = set()
    for seed in range(20):
        chunks, donor = (original.layout.parse(original.content) for _ in range(2))
        change(chunks, Random(seed), donor)
        contents.add(original.layout.build(chunks))
    assert len(contents - {original.content}) > 3


def test_lengths_and_checksums_are_right_unless_a_change_is_about_them(tmp_path: Path) -> None:
    original = next(original for original in IMAGES if original.name == "png")
    chunks = original.layout.parse(original.content)
    assert [chunk.tag for chunk in chunks][:2] == [b"", b"IHDR"]
    chunks.insert(2, fuzzer.Chunk(b"teXt", b"a chunk that decoders ignore"))
    file = tmp_path / "a.png"
    file.write_bytes(original.layout.build(chunks))
    assert read_image(file).shape == (originals.SIDE, originals.SIDE, 3)


def test_every_format_that_is_read_is_among_the_originals(tmp_path: Path) -> None:
    assert {original.suffix for original in IMAGES} <= image_suffixes()
    from PIL import Image

    found = set()
    for original in IMAGES:
        path = tmp_path / "a"
        path.write_bytes(original.content)
        with Image.open(path) as image:
            found.add(image.format)
    assert found >= set(image_formats())


def test_changed_files_are_those_of_the_seed(tmp_path: Path) -> None:
    def files(seed: int, kind: str, count: int) -> dict[str, bytes]:
        return dict(changed_files(Campaign(seed, tmp_path, Counts()), kind, count))

    few, more = files(1, "images", 10), files(1, "images", 50)
    assert len(more) == 50 and list(more.items())[:10] == list(few.items()), "a number gives the same file in any count"
    assert few.keys() != files(2, "images", 10).keys() or few != files(2, "images", 10)
    assert len(files(1, "videos", 30)) == 30


def test_damage_always_changes_a_file_and_depends_on_the_seed_alone() -> None:
    content = bytes(range(256)) * 40
    results = [damaged(content, Random(seed)) for seed in range(200)]
    assert content not in results and len(set(results)) > 150
    assert results == [damaged(content, Random(seed)) for seed in range(200)]
    lines = b'{"a": [1, 2], "b": {"c": 3}}\n{"a": [4]}\n'
    changed = {damaged_json(lines, Random(seed)) for seed in range(100)}
    assert len(changed) > 20 and all(entry.count(b"\n") == 2 for entry in changed)


def test_equality_is_to_the_bit() -> None:
    value = {"a": [torch.tensor([1.0, float("nan")]), 3], "b": np.arange(3)}
    assert samples.same(value, {"a": [torch.tensor([1.0, float("nan")]), 3], "b": np.arange(3)})
    for other in (
        {"a": [torch.tensor([1.0, 2.0]), 3], "b": np.arange(3)},
        {"a": [torch.tensor([1.0, float("nan")]), 3.0], "b": np.arange(3)},
        {"a": [torch.tensor([1.0, float("nan")]), 3], "b": np.arange(3.0)},
        {"a": [torch.tensor([1.0, float("nan")]), 3]},
        {"a": [torch.tensor([-0.0, float("nan")]), 3], "b": np.arange(3)},
    ):
        assert not samples.same(value, other)
    assert not samples.same(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_writing_videos_does_not_change_the_scheduling_of_the_process(tmp_path: Path) -> None:
    before = os.sched_getscheduler(0)
    samples.write_video(tmp_path / "a.mp4", [np.zeros((64, 64, 3), np.uint8)] * 8, "mp4", "libsvtav1")
    assert os.sched_getscheduler(0) == before
