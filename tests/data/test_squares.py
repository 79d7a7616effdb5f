from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.data.batches import BatchStream, Samples
from unshuffle.data.decode import EncodedSquares
from unshuffle.data.source import IndexedSource, Pixels
from unshuffle.data.squares import WHOLE, RankSlice, Resident, Squares, Windows, make_resident
from unshuffle.data.synthetic import SyntheticSource, synthetic_clips

CPU = torch.device("cpu")


def test_a_dense_batch_is_its_own_squares() -> None:
    pixels = torch.arange(2 * 3 * 4 * 4 * 3).remainder(251).to(torch.uint8).view(2, 3, 4, 4, 3)
    squares = Squares.of(pixels)
    assert len(squares) == 2 and squares.frames == 3 and squares.side == 4
    assert torch.equal(squares.pixels(), pixels.flatten(0, 1))
    assert torch.equal(replace(squares, dense=False).pixels(), pixels.flatten(0, 1)), "also by their offsets"


@pytest.mark.parametrize("own", [False, True])
def test_resident_squares_equal_those_that_are_read(own: bool) -> None:
    source = synthetic_clips(6, 20, 9, seed=0)
    samples = Samples(source, np.array([0, 2, 3, 5]), frames=4, side=13, window_per_frame=own)
    resident = Resident(*source.flat(), np.array([source.size(item) for item in range(6)]), CPU)
    for step in range(4):
        read = BatchStream(samples, 3, 0, "temporal").batch(step)
        there = BatchStream(samples, 3, 0, "temporal", resident).batch(step)
        assert len(there.data) > len(read.data), "the batch was not copied"
        assert torch.equal(there.pixels(), read.pixels())


def test_items_of_different_sizes_lie_where_the_index_says() -> None:
    sizes, data, starts, images = [(5, 7), (6, 4), (4, 4)], [], [], []
    rng, total = np.random.default_rng(0), 0
    for height, width in sizes:
        images.append(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        starts.append(total)
        data.append(images[-1].ravel())
        total += data[-1].size
    resident = Resident(np.concatenate(data), np.array(starts), np.array(sizes), CPU)
    windows = Windows(np.array([2, 0, 1]), np.zeros((3, 1), np.int64), np.array([[[0, 1]], [[2, 4]], [[3, 0]]]))
    squares = resident.squares(windows, 3).pixels().numpy()
    for square, item, [(top, left)] in zip(squares, windows.items, windows.corners, strict=True):
        np.testing.assert_array_equal(square, images[item][top : top + 3, left : left + 3])


class UnevenSource(IndexedSource):
    """Clips of random bytes, each with its own number of frames and its own height and width."""

    def __init__(self, shapes: Sequence[tuple[int, int, int]]) -> None:
        rng = np.random.default_rng(0)
        self.clips = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
        self.names = [str(item) for item in range(len(shapes))]
        self.counts = np.array([count for count, _, _ in shapes])
        self.sizes = np.array([size for _, *size in shapes])

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        return self.clips[item][list(frames)]

    def resident(self) -> Resident:
        lengths = [clip.size for clip in self.clips]
        starts = np.cumsum([0, *lengths[:-1]])
        return Resident(np.concatenate([clip.ravel() for clip in self.clips]), starts, self.sizes, CPU)


@given(
    shapes=st.lists(st.tuples(st.integers(3, 6), st.integers(4, 9), st.integers(4, 9)), min_size=1, max_size=4),
    side=st.integers(1, 4),
    own=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_each_square_is_its_own_slice_of_its_frame(
    shapes: list[tuple[int, int, int]], side: int, own: bool, reverse: bool, seed: int
) -> None:
    source, rng = UnevenSource(shapes), np.random.default_rng(seed)
    samples = Samples(source, np.arange(len(shapes)), 3, side, reverse=reverse, window_per_frame=own)
    items = rng.integers(len(shapes), size=5)
    for windows in (samples.random_windows(items, rng), samples.centre_windows(items)):
        expected = []
        for row, item in enumerate(items):
            for position in range(3):
                frame = source.clips[item][windows.frames[row, position]]
                top, left = windows.corners[row, position]
                assert top >= 0 and left >= 0 and top + side <= frame.shape[0] and left + side <= frame.shape[1]
                expected.append(frame[top : top + side, left : left + side])
        np.testing.assert_array_equal(samples.read(windows).flatten(0, 1), expected)
        np.testing.assert_array_equal(source.resident().squares(windows, side).pixels(), expected)
        half = windows.slice(RankSlice(1, 2))
        np.testing.assert_array_equal(source.resident().squares(half, side).pixels(), expected[6:])
        images = [source.clips[item][frame] for item, row in zip(items, windows.frames, strict=True) for frame in row]
        np.testing.assert_array_equal(EncodedSquares(list(images), windows, side).to(CPU).pixels(), expected)


@pytest.mark.parametrize(
    ("size", "fraction", "kept"), [(100, 0.1, True), (101, 0.1, False), (1, 0.0, False), (None, 1.0, False)]
)
def test_data_that_does_not_fit_is_not_even_read(
    size: int | None, fraction: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(SyntheticSource, "flat_bytes", size)

    def flat(source: SyntheticSource) -> None:
        raise LookupError("the bytes were read")

    monkeypatch.setattr(SyntheticSource, "flat", flat)
    with pytest.raises(LookupError) if kept else nullcontext():
        assert make_resident(synthetic_clips(2, 20, 4, seed=0), torch.device("cuda"), fraction) is None


def test_only_a_gpu_keeps_the_data() -> None:
    assert make_resident(synthetic_clips(2, 20, 4, seed=0), CPU, 1.0) is None


@pytest.mark.parametrize(("total", "world_size"), [(8, 1), (8, 2), (8, 8), (100, 8), (5, 3)])
def test_slices_are_contiguous_complete_and_nearly_equal(total: int, world_size: int) -> None:
    slices = [list(range(total))[RankSlice(rank, world_size).rows(total)] for rank in range(world_size)]
    assert list(chain(*slices)) == list(range(total))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_one_process_has_the_whole_batch() -> None:
    assert WHOLE.rows(7) == slice(0, 7)
