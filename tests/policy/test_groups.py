"""Groups against slow references, and the selection among candidates against loops."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from unshuffle.policy.groups import (
    Groups,
    Selected,
    entropy,
    group_pairs,
    group_permutations,
    gumbel,
    inverted,
    one_group_preferred,
    select,
)


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
    assert (groups.sizes[:present] > 0).all() and (groups.sizes[present:] == 0).all(), "empty groups come last"
    assert (groups.medians[present:] == 1).all()
    assert (groups.medians[:present].diff() >= 0).all(), "the hardest first"
    assert sorted(groups.labels.tolist()) == list(range(count)), "each label belongs to one group"
    for group in range(count):
        mine = [row for row, member in enumerate(groups.members.tolist()) if member == group]
        assert float(groups.sizes[group]) == pytest.approx(len(mine) / len(state), abs=1e-6)
        if mine:
            assert float(groups.medians[group]) == pytest.approx(np.median(state[mine].numpy()), abs=1e-6)


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [1, 12, 2, 9], [1, 1, 1, 1]])
def test_separate_rows_make_separate_groups(sizes: list[int]) -> None:
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
    sizes, medians = torch.tensor([1 / 3, 2 / 3, 0]), torch.tensor([0.7, 1.2, 1.0])
    groups = Groups(torch.tensor([0, 1, 1]), sizes, medians, labels=torch.arange(3))
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


@pytest.mark.parametrize("levels", [[1.4, 0.6, 1.8, 1.0], [1.4, 0.6, 1.4, 0.6]])
def test_the_labels_are_those_of_k_means(levels: list[float]) -> None:
    """Two levels leave two of the four clusters empty."""
    state, _ = blocks(levels, [3, 12, 2, 9], noise=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(4, n_init=3, random_state=5).fit_predict(state.double().numpy())
    groups = group_permutations(state, 4, seed=5)
    check(groups, state, 4)
    assert groups.labels[groups.members].tolist() == labels.tolist()


# what is derived from the probabilities

sizes_of_groups = st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any)
logits_of_groups = st.lists(st.floats(-3, 3), min_size=8, max_size=8)


def fractions(counts: list[int]) -> Tensor:
    return torch.tensor(counts) / sum(counts)


@given(sizes_of_groups, st.floats(0.001, 1))
@settings(max_examples=100, deadline=None)
def test_the_inverse_of_untrained_probabilities_is_themselves(counts: list[int], floor: float) -> None:
    untrained = fractions(counts)
    torch.testing.assert_close(inverted(untrained, untrained, floor), untrained, atol=1e-6, rtol=0)


@given(sizes_of_groups, logits_of_groups, st.sampled_from([0.001, 0.1, 0.5]))
@settings(max_examples=100, deadline=None)
def test_the_inverse_against_a_loop(counts: list[int], logits: list[float], floor: float) -> None:
    """p² / π, with at least the floor times p for π; an empty group stays empty."""
    untrained = [count / sum(counts) for count in counts]
    weights = [p * math.exp(logit) for p, logit in zip(untrained, logits, strict=False)]
    pi = [weight / sum(weights) for weight in weights]
    inverse = [p * p / max(own, floor * p) if p > 0 else 0.0 for p, own in zip(untrained, pi, strict=True)]
    expected = [value / sum(inverse) for value in inverse]
    result = inverted(torch.tensor(pi), torch.tensor(untrained), floor)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert all(float(own) == 0 for own, count in zip(result, counts, strict=True) if count == 0)


def test_the_floor_of_the_inverse() -> None:
    """A group that the sampler never chooses gets at most 1 / floor of its weight before."""
    inverse = inverted(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.5, 0.0]), 0.1)
    np.testing.assert_allclose(inverse, [0.25 / 5.25, 5 / 5.25, 0], rtol=1e-6)


@given(sizes_of_groups, st.data())
@settings(max_examples=50, deadline=None)
def test_half_of_the_samples_are_of_one_group_and_half_of_all(counts: list[int], data: st.DataObject) -> None:
    group = data.draw(st.integers(0, len(counts) - 1))
    preferred = one_group_preferred(fractions(counts), group)
    expected = [0.5 * (place == group) + 0.5 * size / sum(counts) for place, size in enumerate(counts)]
    np.testing.assert_allclose(preferred, expected, atol=1e-6)
    assert float(preferred.sum()) == pytest.approx(1, abs=1e-6)


# pairs

COUNT = 9


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def candidate_logits(samples: int, candidates: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits for the candidates of each sample, and the candidates, some of which occur twice."""
    source = generator(seed)
    permutations = torch.randint(COUNT, (samples, candidates), generator=source)
    return 2 * torch.randn(samples, candidates, COUNT, generator=source), permutations


def slow_ratio(logits: list[float], label: int) -> float:
    powers = [math.exp(value) for value in logits]
    rival = max(power for place, power in enumerate(powers) if place != label)
    return (powers[label] / sum(powers) + 1) / (rival / sum(powers) + 1)


def slow_select(
    logits: list[list[float]], candidates: list[int], log_weights: list[float], noise: list[float], selected: int
) -> list[list[int]]:
    """Columns, permutations and groups for one sample."""
    ratios = [slow_ratio(row, label) for row, label in zip(logits, candidates, strict=True)]
    count = len(candidates)
    group, score = [0] * count, [0.0] * count
    for rank, column in enumerate(sorted(range(count), key=ratios.__getitem__)):
        group[column] = math.floor(rank * len(log_weights) / count)
        score[column] = log_weights[group[column]] + noise[column]
    columns = sorted(range(count), key=lambda column: -score[column])[:selected]
    return [columns, [candidates[column] for column in columns], [group[column] for column in columns]]


# the selection


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("candidates", "groups", "count"), [(12, 3, 4), (10, 4, 3), (5, 5, 5), (7, 2, 1), (8, 3, 8)])
def test_selection_against_a_loop(candidates: int, groups: int, count: int, dtype: torch.dtype) -> None:
    logits, permutations = candidate_logits(20, candidates, seed=candidates)
    logits = logits.to(dtype)
    noise, log_weights = gumbel((20, candidates), generator(1)), torch.linspace(-1, 1, groups)
    selected = select(logits, permutations, log_weights, noise, count)
    assert selected.columns.shape == selected.permutations.shape == selected.groups.shape == (20, count)
    for sample in range(20):
        expected = slow_select(
            logits[sample].tolist(), permutations[sample].tolist(), log_weights.tolist(), noise[sample].tolist(), count
        )
        assert [tensor[sample].tolist() for tensor in selected] == expected


def weighted(weights: Tensor, samples: int, candidates: int, count: int, seed: int) -> tuple[Selected, Tensor, Tensor]:
    logits, permutations = candidate_logits(samples, candidates)
    noise = gumbel((samples, candidates), generator(seed))
    return select(logits, permutations, weights.log(), noise, count), logits, permutations


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_selection_from_one_group_only(group: int, count: int) -> None:
    """Four of twelve candidates: the hardest, those between, the easiest."""
    selected, logits, permutations = weighted(torch.eye(3)[group], 50, 12, count, seed=2)
    assert (selected.groups == group).all()
    for sample in range(50):
        ratios = [
            slow_ratio(row.tolist(), int(label))
            for row, label in zip(logits[sample], permutations[sample], strict=True)
        ]
        members = sorted(range(12), key=ratios.__getitem__)[4 * group : 4 * group + 4]
        assert set(selected.columns[sample].tolist()) <= set(members)
        assert len(set(selected.columns[sample].tolist())) == count, "none twice"


@pytest.mark.parametrize(("candidates", "groups", "count"), [(12, 3, 2), (7, 3, 4), (5, 4, 5)])
def test_with_equal_weights_every_permutation_is_equally_likely(candidates: int, groups: int, count: int) -> None:
    selected, _, _ = weighted(torch.ones(groups), 4000, candidates, count, seed=3)
    assert chisquare(torch.bincount(selected.permutations.flatten(), minlength=COUNT)).pvalue > 0.001
    if count < candidates:  # otherwise all are selected
        assert chisquare(torch.bincount(selected.columns.flatten(), minlength=candidates)).pvalue > 0.001


def test_the_selection_is_sampling_without_replacement() -> None:
    """Two of four, one after the other: first c with p_c, then d with p_d / (1 − p_c)."""
    weights = [0.5, 0.3, 0.15, 0.05]
    selected, _, _ = weighted(torch.tensor(weights), 20_000, 4, 2, seed=4)
    pairs = list(itertools.permutations(range(4), 2))
    counts = [int((selected.groups == torch.tensor(pair)).all(dim=1).sum()) for pair in pairs]
    assert sum(counts) == 20_000
    expected = [20_000 * weights[first] * weights[second] / (1 - weights[first]) for first, second in pairs]
    assert chisquare(counts, expected).pvalue > 0.001


def test_the_selection_leaves_its_inputs_alone() -> None:
    logits, permutations = candidate_logits(3, 6)
    inputs = (logits, permutations, torch.zeros(2), gumbel((3, 6), generator()))
    copies = [tensor.clone() for tensor in inputs]
    first, again = (select(*inputs, 2) for _ in range(2))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, copies, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_gumbel_noise() -> None:
    noise = gumbel((100, 50), generator())
    assert noise.shape == (100, 50) and noise.isfinite().all()
    assert kstest(noise.flatten(), "gumbel_r").pvalue > 0.001
    assert torch.equal(noise, gumbel((100, 50), generator()))
    assert not torch.equal(noise, gumbel((100, 50), generator(1)))


# groups of pairs


def check_pair_groups(state: Tensor, count: int) -> None:
    groups = group_pairs(state, count)
    parts: list[list[float]] = [[] for _ in range(count)]
    for column in state.T.tolist():
        for rank, ratio in enumerate(sorted(column)):
            parts[math.floor(rank * count / len(column))].append(ratio)
    assert len(groups.members) == 0 and groups.sizes.shape == groups.medians.shape == (count,)
    assert groups.labels.tolist() == list(range(count))
    np.testing.assert_allclose(groups.sizes, [len(part) / state.numel() for part in parts], rtol=1e-6)
    np.testing.assert_allclose(groups.medians, [np.median(part) for part in parts], rtol=1e-6)
    assert float(groups.sizes.sum()) == pytest.approx(1, abs=1e-6)
    assert groups.sizes.max() - groups.sizes.min() <= 1 / len(state) + 1e-6


@pytest.mark.parametrize(
    ("permutations", "samples", "count"), [(12, 5, 3), (12, 4, 4), (10, 6, 4), (5, 1, 3), (7, 2, 7)]
)
def test_groups_of_pairs_against_a_loop(permutations: int, samples: int, count: int) -> None:
    check_pair_groups(0.5 + 1.5 * torch.rand(permutations, samples, generator=generator()), count)


@given(st.integers(1, 6), st.integers(0, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_groups_of_pairs_for_any_ratios(count: int, more: int, samples: int, steps: int, seed: int) -> None:
    """Few different values, so that equal ones come up."""
    values = np.random.default_rng(seed).integers(0, steps + 1, size=(count + more, samples))
    check_pair_groups(torch.from_numpy(0.5 + 1.5 * values / steps).float(), count)


def test_difficulty_depends_on_the_sample() -> None:
    """Two samples that find opposite permutations hard: no group of permutations could tell them apart."""
    state = torch.tensor([[0.6, 1.8], [1.8, 0.6]]).repeat(3, 1)
    groups = group_pairs(state, 2)
    assert groups.medians.tolist() == pytest.approx([0.6, 1.8]) and groups.sizes.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("candidates", "count"), [(12, 3), (10, 4), (7, 5)])
def test_the_groups_of_a_validation_are_those_of_the_selection(candidates: int, count: int) -> None:
    """All permutations as candidates and all selected: as many of each group as it holds."""
    permutations = torch.arange(candidates)[None]
    logits = torch.randn(1, candidates, candidates, generator=generator(1))
    selected = select(logits, permutations, torch.zeros(count), gumbel((1, candidates), generator()), candidates)
    sizes = group_pairs(torch.rand(candidates, 1), count).sizes
    np.testing.assert_allclose(torch.bincount(selected.groups[0], minlength=count) / candidates, sizes, rtol=1e-6)


@pytest.mark.parametrize("probabilities", [[0.25] * 4, [1.0, 0, 0], [0.5, 0.3, 0.2, 0]])
def test_entropy(probabilities: list[float]) -> None:
    expected = -sum(p * math.log(p) for p in probabilities if p)
    assert float(entropy(torch.tensor(probabilities).log())) == pytest.approx(expected, abs=1e-6)
