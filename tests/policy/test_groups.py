import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unshuffle.policy.groups import Groups, group_permutations


def blocks(levels: list[float], sizes: list[int], samples: int = 6, noise: float = 0.01) -> tuple[Tensor, Tensor]:
    """Rows of s around some levels, shuffled, and the level of each row."""
    generator = torch.Generator().manual_seed(3)
    which = torch.repeat_interleave(torch.arange(len(levels)), torch.tensor(sizes))
    which = which[torch.randperm(len(which), generator=generator)]
    return torch.tensor(levels)[which, None] + noise * torch.randn(len(which), samples, generator=generator), which


def check(groups: Groups, state: Tensor, count: int) -> None:
    """Whatever the rows are."""
    assert groups.members.shape == (len(state),) and groups.members.dtype == torch.int64
    assert groups.sizes.shape == groups.medians.shape == (count,)
    assert groups.members.min() >= 0 and groups.members.max() < count
    assert float(groups.sizes.sum()) == pytest.approx(1, abs=1e-6)
    present = int((groups.sizes > 0).sum())
    assert (groups.sizes[:present] > 0).all() and (groups.sizes[present:] == 0).all(), "the empty ones come last"
    assert (groups.medians[present:] == 1).all()
    assert (groups.medians[:present].diff() >= 0).all(), "the hardest comes first"
    for group in range(count):
        mine = [row for row, member in enumerate(groups.members.tolist()) if member == group]
        assert float(groups.sizes[group]) == pytest.approx(len(mine) / len(state), abs=1e-6)
        if mine:
            assert float(groups.medians[group]) == pytest.approx(np.median(state[mine].numpy()), abs=1e-6)


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [1, 12, 2, 9], [1, 1, 1, 1]])
def test_separate_rows_are_found(sizes: list[int]) -> None:
    state, which = blocks([1.4, 0.6, 1.8, 1.0], sizes)
    groups = group_permutations(state, 4, seed=0)
    check(groups, state, 4)
    by_median = torch.tensor([2, 0, 3, 1])
    assert torch.equal(groups.members, by_median[which])
    torch.testing.assert_close(groups.sizes, torch.tensor(sizes)[[1, 3, 0, 2]] / sum(sizes))
    np.testing.assert_allclose(groups.medians, [0.6, 1.0, 1.4, 1.8], atol=0.02)


def test_rows_are_compared_sample_by_sample() -> None:
    """Two permutations with the same median that fail on different samples are not alike."""
    state = torch.tensor([[0.6, 0.6, 1.0, 1.5, 1.5], [1.5, 1.5, 1.0, 0.6, 0.6]]).repeat(4, 1)
    groups = group_permutations(state, 2, seed=0)
    check(groups, state, 2)
    assert len(set(groups.members[::2].tolist())) == len(set(groups.members[1::2].tolist())) == 1
    assert groups.members[0] != groups.members[1]


def test_the_median_is_over_all_pairs_of_a_group() -> None:
    state = torch.tensor([[0.5, 0.5, 0.9], [0.5, 0.7, 0.9], [2.0, 2.0, 1.9], [2.0, 1.8, 1.7]])
    groups = group_permutations(state, 2, seed=0)
    assert groups.members.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(groups.medians, [0.6, 1.95], atol=1e-6)  # an even number: between the middle two


def test_the_summary_is_sizes_beside_medians() -> None:
    groups = Groups(torch.tensor([0, 1, 1]), torch.tensor([1 / 3, 2 / 3, 0]), torch.tensor([0.7, 1.2, 1.0]))
    expected = torch.tensor([[1 / 3, 0.7], [2 / 3, 1.2], [0, 1.0]])
    assert torch.equal(groups.summary, expected)


def test_seeded() -> None:
    state = torch.rand(60, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    first, again = (group_permutations(state, 10, seed=4) for _ in range(2))
    check(first, state, 10)
    assert torch.equal(first.members, again.members) and torch.equal(first.summary, again.summary)
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    group_permutations(state, 10, seed=4)
    assert (np.random.get_state()[1] == before).all(), "the global generators are left alone"  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


@pytest.mark.parametrize(("distinct", "count"), [(1, 2), (1, 10), (3, 5), (9, 10)])
@pytest.mark.filterwarnings("error")
def test_fewer_distinct_rows_than_groups(distinct: int, count: int) -> None:
    levels = torch.linspace(0.6, 1.8, distinct)
    state = levels.repeat(4)[:, None].expand(-1, 3)
    state = torch.cat([state, state[: max(0, count - len(state))]])
    state = torch.cat([state] * (1 + count // len(state)))
    groups = group_permutations(state, count, seed=0)
    check(groups, state, count)
    assert int((groups.sizes > 0).sum()) == distinct
    expected = torch.searchsorted(levels, state[:, 0].contiguous())
    assert torch.equal(groups.members, expected)


def test_as_many_groups_as_permutations() -> None:
    state = torch.tensor([1.5, 0.6, 1.9, 1.1])[:, None].expand(-1, 5)
    groups = group_permutations(state, 4, seed=0)
    check(groups, state, 4)
    assert groups.members.tolist() == [2, 0, 3, 1] and groups.sizes.tolist() == [0.25] * 4


def test_one_group() -> None:
    state = torch.rand(5, 3, generator=torch.Generator().manual_seed(1))
    groups = group_permutations(state, 1, seed=0)
    check(groups, state, 1)
    assert groups.members.tolist() == [0] * 5


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_any_rows(count: int, more: int, samples: int, steps: int, seed: int) -> None:
    """Few different values, so that equal rows and empty groups come up."""
    values = np.random.default_rng(seed).integers(0, steps + 1, size=(count + more, samples))
    state = torch.from_numpy(0.5 + 1.5 * values / steps).float()
    groups = group_permutations(state, count, seed)
    check(groups, state, count)
    for row, member in zip(state, groups.members, strict=True):
        same = (state == row).all(dim=1)
        assert (groups.members[same] == member).all(), "equal rows are in one group"
