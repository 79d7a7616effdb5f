import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.data.batches import BatchStream, Prefetcher, Samples, choose_frames, spaced_frames
from unshuffle.data.squares import RankSlice, Squares
from unshuffle.errors import UserError


class CodedSource:
    """Clips of 12 x 15 pixels that tell item, frame and position: (item, frame, 16 * row + column)."""

    def __init__(self, items: int, num_frames: int = 9) -> None:
        self.items, self.frames = items, num_frames

    @property
    def names(self) -> Sequence[str]:
        return [str(item) for item in range(self.items)]

    def __len__(self) -> int:
        return self.items

    def num_frames(self, item: int) -> int:
        return self.frames

    def size(self, item: int) -> tuple[int, int]:
        return 12, 15

    def read(self, item: int, frames: Sequence[int]) -> Any:
        rows, columns = np.mgrid[:12, :15]
        clip = np.zeros((len(frames), 12, 15, 3), np.uint8)
        clip[..., 0], clip[..., 2] = item, 16 * rows + columns
        clip[..., 1] = np.array(frames)[:, None, None]
        return clip


def samples(total: int, frames: int = 3, side: int = 8, span: int = 0) -> Samples:
    """Every second item of a source, from the third on."""
    items = np.arange(total) * 2 + 2
    return Samples(CodedSource(2 * total + 4), items, frames, side, span)


def stream(total: int, batch_size: int, seed: int = 0, task: str = "spatial") -> BatchStream:
    return BatchStream(samples(total), batch_size, seed, task)


@given(data=st.data(), available=st.integers(1, 40), span=st.integers(0, 50), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_chosen_frames(data: st.DataObject, available: int, span: int, seed: int) -> None:
    count = data.draw(st.integers(1, available))
    more = available + 3
    both = choose_frames(np.array([available, more]), count, span, np.random.default_rng(seed))
    assert both.shape == (2, count) and both[1, -1] < more
    chosen = both[0].tolist()
    assert all(a < b for a, b in itertools.pairwise(chosen)), "in temporal order, none twice"
    assert chosen[0] >= 0 and chosen[-1] < available
    if span:
        assert chosen[-1] - chosen[0] < max(span, count)


@pytest.mark.parametrize(("span", "reachable"), [(0, 9), (4, 3), (100, 9)])
def test_every_frame_of_the_window_is_chosen_sometimes(span: int, reachable: int) -> None:
    rng = np.random.default_rng(0)
    chosen = choose_frames(np.full(1000, 10), 2, span, rng)
    assert set(chosen.flatten()) == set(range(10))
    assert set(chosen[:, 1] - chosen[:, 0]) == set(range(1, reachable + 1))


def test_every_choice_of_frames_is_equally_likely() -> None:
    chosen = choose_frames(np.full(20_000, 5), 3, 0, np.random.default_rng(0))
    choices, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(choices) == 10
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 0.9), "five standard errors"


@pytest.mark.parametrize(
    ("available", "count", "span", "expected"),
    [
        (10, 2, 0, [0, 9]),
        (9, 3, 0, [0, 4, 8]),
        (8, 8, 0, list(range(8))),
        (20, 3, 5, [7, 9, 11]),
        (20, 4, 2, [8, 9, 10, 11]),
        (5, 3, 100, [0, 2, 4]),
        (7, 1, 0, [3]),
        (1, 1, 0, [0]),
    ],
)
def test_spaced_frames(available: int, count: int, span: int, expected: list[int]) -> None:
    assert spaced_frames(available, count, span) == expected


@given(data=st.data(), available=st.integers(1, 60), span=st.integers(0, 70))
@settings(max_examples=150, deadline=None)
def test_spaced_frames_are_distinct_and_even(data: st.DataObject, available: int, span: int) -> None:
    count = data.draw(st.integers(1, available))
    chosen = spaced_frames(available, count, span)
    gaps = np.diff(chosen)
    assert len(chosen) == count and chosen[0] >= 0 and chosen[-1] < available
    assert (gaps >= 1).all() and (count < 3 or np.ptp(gaps) <= 1)
    if count > 1:
        assert chosen[-1] - chosen[0] + 1 == (min(available, max(span, count)) if span else available)


def test_a_random_sample_is_one_square_of_ordered_frames() -> None:
    clips, corners = samples(3, frames=4, side=8), set()
    for clip in clips.read(clips.random_windows(np.full(300, 5), np.random.default_rng(0))).numpy():
        assert clip.shape == (4, 8, 8, 3)
        assert (clip[..., 0] == 5).all()
        numbers = clip[:, 0, 0, 1]
        assert (np.diff(numbers.astype(int)) > 0).all()
        top, left = divmod(int(clip[0, 0, 0, 2]), 16)
        rows, columns = np.mgrid[top : top + 8, left : left + 8]
        np.testing.assert_array_equal(clip[..., 2], np.broadcast_to(16 * rows + columns, (4, 8, 8)))
        corners.add((top, left))
    assert corners == {(top, left) for top in range(5) for left in range(8)}


def test_each_frame_may_have_a_window_of_its_own() -> None:
    clips = replace(samples(3, frames=4, side=8), window_per_frame=True)
    tops, lefts = np.moveaxis(clips.random_windows(np.full(2000, 5), np.random.default_rng(0)).corners, -1, 0)
    assert tops.shape == lefts.shape == (2000, 4)
    for frame in range(4):
        places, counts = np.unique(8 * tops[:, frame] + lefts[:, frame], return_counts=True)
        assert places.tolist() == list(range(40)), "5 x 8 places"
        assert np.abs(counts - 50).max() < 5 * np.sqrt(50), "five standard errors"
    correlations = np.corrcoef(np.concatenate([tops, lefts], axis=1).T) - np.eye(8)
    assert np.abs(correlations).max() < 5 / np.sqrt(2000), "independent of one another"


def test_one_window_and_one_per_frame_agree_on_everything_else() -> None:
    """A single frame has the same window either way, so tasks on images do not depend on the setting."""
    items, shared = np.array([2, 4, 6, 2]), samples(3, frames=1)
    for seed in range(5):
        one, own = (
            choice.random_windows(items, np.random.default_rng(seed))
            for choice in (shared, replace(shared, window_per_frame=True))
        )
        np.testing.assert_array_equal(one.frames, own.frames)
        np.testing.assert_array_equal(one.corners, own.corners)
    clips = samples(3, frames=3)
    one, own = (choice.centre_windows(items) for choice in (clips, replace(clips, window_per_frame=True)))
    np.testing.assert_array_equal(one.corners, own.corners)
    np.testing.assert_array_equal(own.corners, np.broadcast_to([2, 3], (4, 3, 2)))


def test_an_item_that_is_smaller_than_the_window_is_named() -> None:
    clips = samples(3, side=13)
    for make in (lambda: clips.random_windows(clips.items, np.random.default_rng(0)), clips.centres):
        with pytest.raises(UserError, match=r"^2 is smaller than a window of 13 px"):
            make()


def test_centres() -> None:
    centres = samples(3, frames=3, side=8).centres()
    assert centres.shape == (3, 3, 8, 8, 3) and centres.dtype == torch.uint8
    assert centres[:, 0, 0, 0, 0].tolist() == [2, 4, 6]
    assert centres[0, :, 0, 0, 1].tolist() == [0, 4, 8]
    assert divmod(int(centres[0, 0, 0, 0, 2]), 16) == (2, 3)


def test_there_may_be_no_samples_to_read() -> None:
    """As for a process that none of the few test samples belongs to."""
    assert samples(0, frames=3, side=8).centres().shape == (0, 3, 8, 8, 3)


def test_span_reaches_the_frames() -> None:
    frames = samples(1, frames=3, span=4).random_windows(np.full(50, 2), np.random.default_rng(0)).frames
    assert max(numbers[-1] - numbers[0] for numbers in frames) == 3


def test_half_of_the_clips_may_play_backwards_in_training_alone() -> None:
    forwards, both = samples(3, frames=4), replace(samples(3, frames=4), reverse=True)
    items = np.full(400, 2)
    frames = both.random_windows(items, np.random.default_rng(0)).frames
    backwards = frames[:, 0] > frames[:, -1]
    assert 150 < backwards.sum() < 250
    frames[backwards] = frames[backwards, ::-1]
    np.testing.assert_array_equal(frames, forwards.random_windows(items, np.random.default_rng(0)).frames)
    np.testing.assert_array_equal(both.centre_windows(items).frames, forwards.centre_windows(items).frames)


@pytest.mark.parametrize(("total", "batch_size"), [(10, 5), (10, 3), (10, 10), (3, 8), (1, 4), (7, 2)])
def test_every_epoch_has_every_sample_once(total: int, batch_size: int) -> None:
    batches = stream(total, batch_size)
    epochs = 4
    steps = -(-epochs * total // batch_size)
    items = np.concatenate([batches.items(step) for step in range(steps)])[: epochs * total]
    orders = items.reshape(epochs, total)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(total) * 2 + 2, (epochs, 1)))
    if total >= 7:
        assert len({tuple(order) for order in orders.tolist()}) == epochs, "each epoch has its own order"


def test_batches_are_a_function_of_seed_and_step() -> None:
    forwards = [stream(5, 4).batch(step).pixels() for step in range(6)]
    shared = stream(5, 4)
    for step in (5, 0, 3, 1, 4, 2):
        assert torch.equal(shared.batch(step).pixels(), forwards[step])
    assert forwards[0].shape == (12, 8, 8, 3) and forwards[0].dtype == torch.uint8
    for step in range(6):
        assert forwards[step][::3, 0, 0, 0].tolist() == shared.items(step).tolist()


def test_a_share_is_cut_from_the_same_batch_and_reads_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, batches, read = stream(7, 6).batch(3), stream(7, 6), CodedSource.read
    assert isinstance(whole, Squares)
    items: list[int] = []

    def recorded(self: CodedSource, item: int, frames: Sequence[int]) -> Any:
        items.append(item)
        return read(self, item, frames)

    monkeypatch.setattr(CodedSource, "read", recorded)
    part = batches.batch(3, RankSlice(1, 3))
    assert isinstance(part, Squares)
    assert torch.equal(part.pixels(), whole.pixels()[6:12])
    assert items == batches.items(3)[2:4].tolist()


@pytest.mark.parametrize("other", [stream(50, 20, seed=1), stream(50, 20, task="temporal")])
def test_seeds_and_tasks_have_their_own_order(other: BatchStream) -> None:
    assert stream(50, 20).items(0).tolist() != other.items(0).tolist()
    assert not torch.equal(stream(50, 20).batch(0).data, other.batch(0).data)


def test_the_same_item_looks_different_in_each_epoch() -> None:
    looks = {stream(1, 1).batch(step).data.numpy().tobytes() for step in range(5)}
    assert len(looks) > 1


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_prefetcher_keeps_the_order(workers: int) -> None:
    late = threading.Event()

    def make(step: int) -> int:
        if step == 3 and workers > 1:
            late.wait(5)  # a slow one, which later ones overtake
        if step == 4:
            late.set()
        return step * step

    assert list(Prefetcher(make, 3, 30, workers)) == [step * step for step in range(3, 30)]
    assert list(Prefetcher(make, 5, 5, workers)) == []


def fail_at_four(step: int) -> int:
    if step == 4:
        raise RuntimeError("step 4 is broken")
    return step


@pytest.mark.parametrize("workers", [1, 3])
def test_prefetcher_hands_on_errors_in_their_turn(workers: int) -> None:
    before = threading.active_count()
    received = []
    with pytest.raises(RuntimeError, match="step 4 is broken"):
        for result in Prefetcher(fail_at_four, 0, 20, workers):
            received.append(result)
    assert received == [0, 1, 2, 3]
    assert threading.active_count() == before


@pytest.mark.parametrize("workers", [1, 3])
def test_prefetcher_stops_its_threads_and_does_not_run_far_ahead(workers: int) -> None:
    before, made = threading.active_count(), []

    def make(step: int) -> int:
        made.append(step)
        return step

    results = iter(Prefetcher(make, 0, 1000, workers))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(made) <= 5 + 2 * workers
