from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from unshuffle.data.batches import BatchStream, Samples
from unshuffle.data.squares import WHOLE, RankSlice, Resident, Squares, Windows, make_resident
from unshuffle.data.synthetic import SyntheticSource, synthetic_clips

CPU = torch.device("cpu")


def test_a_dense_batch_is_its_own_squares() -> None:
    pixels = torch.arange(2 * 3 * 4 * 4 * 3).remainder(251).to(torch.uint8).view(2, 3, 4, 4, 3)
    squares = Squares.of(pixels)
    assert len(squares) == 2 and squares.frames == 3 and squares.side == 4
    assert torch.equal(squares.pixels(), pixels.flatten(0, 1))
    assert torch.equal(replace(squares, dense=False).pixels(), pixels.flatten(0, 1)), "also by their offsets"


def test_resident_squares_equal_those_that_are_read() -> None:
    source = synthetic_clips(6, 20, 9, seed=0)
    samples = Samples(source, np.array([0, 2, 3, 5]), frames=4, side=13)
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
    windows = Windows(np.array([2, 0, 1]), np.zeros((3, 1), np.int64), np.array([[0, 1], [2, 4], [3, 0]]))
    squares = resident.squares(windows, 3).pixels().numpy()
    for square, item, (top, left) in zip(squares, windows.items, windows.corners, strict=True):
        np.testing.assert_array_equal(square, images[item][top : top + 3, left : left + 3])


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
