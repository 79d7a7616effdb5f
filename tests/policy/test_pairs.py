"""Choosing among candidates, and the groups that the policy is told of, against loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from torch import Tensor
from unshuffle.policy.pairs import Choice, Pick, group_pairs, gumbel

COUNT = 9


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def asked(samples: int, candidates: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits for the candidates of each sample, and the candidates, some of which come twice."""
    source = generator(seed)
    drawn = torch.randint(COUNT, (samples, candidates), generator=source)
    return 2 * torch.randn(samples, candidates, COUNT, generator=source), drawn


def slow_ratio(logits: list[float], label: int) -> float:
    powers = [math.exp(value) for value in logits]
    rival = max(power for place, power in enumerate(powers) if place != label)
    return (powers[label] / sum(powers) + 1) / (rival / sum(powers) + 1)


def slow_pick(logits: list[list[float]], candidates: list[int], choice: Choice, noise: list[float]) -> list[list[int]]:
    """Columns, permutations and groups for one sample."""
    ratios = [slow_ratio(row, label) for row, label in zip(logits, candidates, strict=True)]
    count, shares = len(candidates), choice.log_shares.tolist()
    group, score = [0] * count, [0.0] * count
    for rank, column in enumerate(sorted(range(count), key=ratios.__getitem__)):
        group[column] = math.floor(rank * len(shares) / count)
        score[column] = shares[group[column]] + noise[column]
    columns = sorted(range(count), key=lambda column: -score[column])[: choice.count]
    return [columns, [candidates[column] for column in columns], [group[column] for column in columns]]


# the choice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("candidates", "groups", "count"), [(12, 3, 4), (10, 4, 3), (5, 5, 5), (7, 2, 1), (8, 3, 8)])
def test_against_a_loop(candidates: int, groups: int, count: int, dtype: torch.dtype) -> None:
    logits, drawn = asked(20, candidates, seed=candidates)
    logits = logits.to(dtype)
    noise = gumbel((20, candidates), generator(1))
    choice = Choice(torch.linspace(-1, 1, groups), noise, count)
    pick = Pick(drawn, choice)
    columns = pick(logits)
    assert columns.shape == pick.permutations.shape == pick.groups.shape == (20, count)
    for sample in range(20):
        expected = slow_pick(logits[sample].tolist(), drawn[sample].tolist(), choice, noise[sample].tolist())
        assert columns[sample].tolist() == expected[0]
        assert pick.permutations[sample].tolist() == expected[1]
        assert pick.groups[sample].tolist() == expected[2]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_group_alone(group: int, count: int) -> None:
    """Four of twelve candidates: the hardest, those between, the easiest."""
    logits, drawn = asked(50, 12)
    pick = Pick(drawn, Choice(torch.eye(3)[group].log(), gumbel((50, 12), generator(2)), count))
    columns = pick(logits)
    assert (pick.groups == group).all()
    for sample in range(50):
        ratios = [
            slow_ratio(row.tolist(), int(label)) for row, label in zip(logits[sample], drawn[sample], strict=True)
        ]
        mine = sorted(range(12), key=ratios.__getitem__)[4 * group : 4 * group + 4]
        assert set(columns[sample].tolist()) <= set(mine)
        assert len(set(columns[sample].tolist())) == count, "none twice"


@pytest.mark.parametrize(("candidates", "groups", "count"), [(12, 3, 2), (7, 3, 4), (5, 4, 5)])
def test_with_equal_shares_every_permutation_is_equally_likely(candidates: int, groups: int, count: int) -> None:
    logits, drawn = asked(4000, candidates)
    pick = Pick(drawn, Choice(torch.zeros(groups), gumbel((4000, candidates), generator(3)), count))
    columns = pick(logits)
    assert chisquare(torch.bincount(pick.permutations.flatten(), minlength=COUNT)).pvalue > 0.001
    if count < candidates:  # otherwise all are taken
        assert chisquare(torch.bincount(columns.flatten(), minlength=candidates)).pvalue > 0.001


def test_the_draws_are_those_of_an_urn() -> None:
    """Two of four, one after the other without putting back: first c with p_c, then d with p_d / (1 − p_c)."""
    shares = [0.5, 0.3, 0.15, 0.05]
    logits, drawn = asked(20_000, 4)
    pick = Pick(drawn, Choice(torch.tensor(shares).log(), gumbel((20_000, 4), generator(4)), 2))
    pick(logits)
    pairs = list(itertools.permutations(range(4), 2))
    found = [int((pick.groups == torch.tensor(pair)).all(dim=1).sum()) for pair in pairs]
    assert sum(found) == 20_000
    expected = [20_000 * shares[first] * shares[second] / (1 - shares[first]) for first, second in pairs]
    assert chisquare(found, expected).pvalue > 0.001


def test_gumbel_noise() -> None:
    noise = gumbel((100, 50), generator())
    assert noise.shape == (100, 50) and noise.isfinite().all()
    assert kstest(noise.flatten(), "gumbel_r").pvalue > 0.001
    assert torch.equal(noise, gumbel((100, 50), generator()))
    assert not torch.equal(noise, gumbel((100, 50), generator(1)))


# the groups


def check_groups(state: Tensor, count: int) -> None:
    groups = group_pairs(state, count)
    parts: list[list[float]] = [[] for _ in range(count)]
    for column in state.T.tolist():
        for rank, ratio in enumerate(sorted(column)):
            parts[math.floor(rank * count / len(column))].append(ratio)
    assert len(groups.members) == 0 and groups.sizes.shape == groups.medians.shape == (count,)
    np.testing.assert_allclose(groups.sizes, [len(part) / state.numel() for part in parts], rtol=1e-6)
    np.testing.assert_allclose(groups.medians, [np.median(part) for part in parts], rtol=1e-6)
    assert float(groups.sizes.sum()) == pytest.approx(1, abs=1e-6)
    assert groups.sizes.max() - groups.sizes.min() <= 1 / len(state) + 1e-6


@pytest.mark.parametrize(
    ("permutations", "samples", "count"), [(12, 5, 3), (12, 4, 4), (10, 6, 4), (5, 1, 3), (7, 2, 7)]
)
def test_groups_against_a_loop(permutations: int, samples: int, count: int) -> None:
    check_groups(0.5 + 1.5 * torch.rand(permutations, samples, generator=generator()), count)


@given(st.integers(1, 6), st.integers(0, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_any_ratios(count: int, more: int, samples: int, steps: int, seed: int) -> None:
    """Few different values, so that equal ones come up."""
    values = np.random.default_rng(seed).integers(0, steps + 1, size=(count + more, samples))
    check_groups(torch.from_numpy(0.5 + 1.5 * values / steps).float(), count)


def test_what_is_hard_is_so_for_a_sample() -> None:
    """Two samples that find opposite permutations hard: no group of permutations could tell them apart."""
    state = torch.tensor([[0.6, 1.8], [1.8, 0.6]]).repeat(3, 1)
    groups = group_pairs(state, 2)
    assert groups.medians.tolist() == pytest.approx([0.6, 1.8]) and groups.sizes.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("candidates", "count"), [(12, 3), (10, 4), (7, 5)])
def test_the_groups_that_are_told_of_are_those_that_are_drawn(candidates: int, count: int) -> None:
    """All permutations as candidates and all chosen: as many of each group as it holds."""
    drawn = torch.arange(candidates)[None]
    pick = Pick(drawn, Choice(torch.zeros(count), gumbel((1, candidates), generator()), candidates))
    pick(torch.randn(1, candidates, candidates, generator=generator(1)))
    sizes = group_pairs(torch.rand(candidates, 1), count).sizes
    np.testing.assert_allclose(torch.bincount(pick.groups[0], minlength=count) / candidates, sizes, rtol=1e-6)
