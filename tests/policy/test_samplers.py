import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import Actions, Reinforce
from unshuffle.policy.samplers import (
    Exp3,
    GroupSampler,
    Inverse,
    Observation,
    Ranked,
    Sampler,
    UniformSampler,
    build_sampler,
)
from unshuffle.policy.state import Validation

Reload = Callable[[dict[str, Any]], dict[str, Any]]
GROUPED = ["policy", "inverse", "hard-first", "easy-first", "exp3"]
ALL = ["uniform", *GROUPED]
SIZES = [2, 4, 8, 10]
COUNT = sum(SIZES)
MEMBERS = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))[
    torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
]
"""The group of each permutation in `seen`."""
EACH = torch.tensor([SIZES[member] for member in MEMBERS])
"""The size of each permutation's group."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seen(error: float = 0.5, levels: tuple[float, ...] = (0.6, 0.9, 1.2, 1.8)) -> Validation:
    """A validation with four kinds of permutations."""
    noise = 0.01 * torch.randn(COUNT, 6, generator=generator(1)) if len(set(levels)) == 4 else 0.0
    state = torch.tensor(levels)[MEMBERS, None].expand(COUNT, 6) + noise
    return Validation(state, torch.full((COUNT,), error, dtype=torch.float64))


def config(name: str = "policy", **options: Any) -> PolicyConfig:
    return replace(PolicyConfig(sampler=name, groups=4), **options)  # type: ignore[arg-type]


def group_sampler(name: str = "policy", **options: Any) -> GroupSampler:
    sampler = build_sampler(config(name, **options), COUNT, seed=0)
    assert isinstance(sampler, GroupSampler)
    if isinstance(sampler.chooser, Reinforce):  # with a preference, that a new policy does not have
        with torch.no_grad():
            sampler.chooser.network.layers[-1].bias.copy_(torch.tensor([1.0, -1.0, 0.5, 0.0]))  # type: ignore[operator]
    if isinstance(sampler.chooser, Exp3):
        sampler.chooser.log_weights = torch.tensor([0.5, -1.0, 1.0, -0.5])
    return sampler


def started(name: str = "policy", *, begins: bool = False, **options: Any) -> GroupSampler:
    sampler = group_sampler(name, **options)
    sampler.observe(seen(), 0, ends=False, begins=begins)
    return sampler


def frequencies(drawn: Tensor) -> np.ndarray:
    return torch.bincount(drawn.flatten(), minlength=COUNT).numpy()


# every sampler


def test_the_config_names_it() -> None:
    uniform: Sampler = build_sampler(config("uniform"), 12, 0)
    assert type(uniform) is UniformSampler and len(uniform.draws) == 12
    kinds = {"policy": Reinforce, "inverse": Inverse, "hard-first": Ranked, "easy-first": Ranked, "exp3": Exp3}
    for name, kind in kinds.items():
        sampler: Sampler = build_sampler(config(name), 12, 0)
        assert isinstance(sampler, GroupSampler) and type(sampler.chooser) is kind


@pytest.mark.parametrize("count", [2, 7, 100])
def test_uniform_draws(count: int) -> None:
    draws = UniformSampler(count).propose(2000, 5, generator()).permutations
    assert draws.shape == (2000, 5) and draws.dtype == torch.int64
    assert draws.min() == 0 and draws.max() == count - 1
    assert chisquare(torch.bincount(draws.flatten(), minlength=count)).pvalue > 0.001
    for column in draws.T:
        assert chisquare(torch.bincount(column, minlength=count)).pvalue > 0.001


def test_draws_of_a_sample_are_independent() -> None:
    first, second = UniformSampler(3).propose(5000, 2, generator()).permutations.T
    assert chisquare(torch.bincount(3 * first + second, minlength=9)).pvalue > 0.001


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize("action", ["sample", "batch"])
@pytest.mark.parametrize("name", ALL)
def test_proposals_are_seeded_indices(name: str, action: str, after_start: bool) -> None:
    sampler = build_sampler(config(name, action=action), COUNT, 0)
    if after_start:
        sampler.observe(seen(), 0, ends=False, begins=True)
    first = sampler.propose(30, 7, generator(1)).permutations
    assert first.shape == (30, 7) and first.dtype == torch.int64
    assert first.min() >= 0 and first.max() < COUNT
    state = torch.get_rng_state()
    assert torch.equal(first, sampler.propose(30, 7, generator(1)).permutations)
    assert not torch.equal(first, sampler.propose(30, 7, generator(2)).permutations)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


@pytest.mark.parametrize("name", ALL)
def test_draws_are_counted_from_one_validation_to_the_next(name: str) -> None:
    sampler = build_sampler(config(name, start_below=0.6), COUNT, 0)
    expected = np.zeros(COUNT)
    for error, seed in [(0.9, 1), (0.5, 2), (0.5, 3)]:
        for batch in range(2):
            expected += frequencies(sampler.propose(5, 3, generator(seed + 10 * batch)).permutations)
        observation = sampler.observe(seen(error), seed, ends=False, begins=False)
        np.testing.assert_array_equal(observation.arrays["draws"], expected)
        expected[:] = 0
    np.testing.assert_array_equal(sampler.observe(seen(), 9, ends=False, begins=False).arrays["draws"], expected)


def test_uniform_learns_nothing() -> None:
    sampler = UniformSampler(COUNT)
    first = sampler.propose(8, 4, generator(1))
    observation = sampler.observe(seen(), 10, ends=True, begins=True)
    assert observation.episode is None and observation.warnings == [] and list(observation.arrays) == ["draws"]
    sampler.rate_dropped()
    assert torch.equal(first.permutations, sampler.propose(8, 4, generator(1)).permutations)
    assert first.log_prior is None and sampler.preference() is None


# when it starts


@pytest.mark.parametrize("name", GROUPED)
def test_uniform_before_the_start(name: str) -> None:
    sampler = group_sampler(name)
    sampler.observe(seen(0.95), 0, ends=False, begins=True)
    proposal = sampler.propose(2000, 5, generator())
    assert proposal.log_prior is None
    assert chisquare(frequencies(proposal.permutations)).pvalue > 0.001
    observation = sampler.observe(seen(0.95), 10, ends=True, begins=False)
    assert observation.episode is None and list(observation.arrays) == ["draws"] and observation.warnings == []


def test_the_start_rule() -> None:
    chance = 1 - 1 / COUNT
    sampler = group_sampler(start_below=0.8)
    for error, expected in [(chance, False), (0.8 * chance + 1e-6, False), (0.8 * chance - 1e-6, True), (chance, True)]:
        sampler.observe(seen(error), 0, ends=False, begins=False)
        assert (sampler.groups is not None) == sampler.started == expected, "and it never stops again"
    at_once = group_sampler(start_below=2)
    at_once.observe(seen(1.0), 0, ends=False, begins=False)
    assert at_once.started


# how often each permutation comes


@pytest.mark.parametrize("name", GROUPED)
def test_draws_follow_the_share(name: str) -> None:
    sampler = started(name)
    share = sampler.permutation_share.double()
    assert float(share.sum()) == pytest.approx(1, abs=1e-6)
    assert share.max() / share.min() > 1.5, "a test of something"
    drawn = sampler.propose(4000, 5, generator()).permutations
    assert chisquare(frequencies(drawn), 20_000 * share.numpy() / float(share.sum())).pvalue > 0.001
    torch.testing.assert_close(share.float(), (sampler.behaviour[MEMBERS] / EACH))
    np.testing.assert_array_equal(MEMBERS, sampler.groups.members)  # type: ignore[union-attr]


@pytest.mark.parametrize("exploration", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", GROUPED)
def test_a_floor_of_exploration(name: str, exploration: float) -> None:
    sampler = group_sampler(name, exploration=exploration)
    if isinstance(sampler.chooser, Reinforce):
        with torch.no_grad():
            sampler.chooser.network.layers[-1].bias[2] += 50  # type: ignore[index]
    sampler.observe(seen(), 0, ends=False, begins=False)
    share = sampler.permutation_share
    assert float(share.sum()) == pytest.approx(1, abs=1e-6)
    assert float(share.min()) >= exploration / COUNT - 1e-6
    if exploration == 1:
        torch.testing.assert_close(share, torch.full((COUNT,), 1 / COUNT))
    if name == "policy" and exploration < 1:
        assert float(share.min()) == pytest.approx(exploration / COUNT, abs=1e-6), "and no more than that"


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("levels", [(1.0, 1.0, 1.0, 1.0), (0.6, 0.6, 1.5, 1.5)])
def test_empty_groups_are_never_drawn(name: str, levels: tuple[float, ...]) -> None:
    for action in ("sample", "batch"):
        sampler = group_sampler(name, action=action)
        sampler.observe(seen(levels=levels), 0, ends=False, begins=True)
        present = len(set(levels))
        assert sampler.groups is not None and int((sampler.groups.sizes > 0).sum()) == present
        assert (sampler.behaviour[present:] == 0).all() and sampler.behaviour.isfinite().all()
        assert float(sampler.permutation_share.sum()) == pytest.approx(1, abs=1e-6)
        for seed in range(10):
            sampler.propose(8, 2, generator(seed))
        observation = sampler.observe(seen(0.4, levels), 10, ends=True, begins=True)
        sampler.propose(8, 2, generator(11))
        again = sampler.observe(seen(0.3, levels), 20, ends=True, begins=True)
        for entry in (observation.episode, again.episode):
            assert entry is not None and sum(entry["drawn"][present:]) == 0 and math.isfinite(entry["entropy"])
        assert sampler.behaviour.isfinite().all()


def test_a_group_for_each_batch_inside_an_episode_only() -> None:
    sampler = started(action="batch", exploration=0.5)

    def groups_drawn(seed: int) -> set[int]:
        return set(MEMBERS[sampler.propose(16, 4, generator(seed)).permutations].flatten().tolist())

    assert all(len(groups_drawn(seed)) > 1 for seed in range(20)), "outside, a group for each sample"
    assert sampler.batch_actions.sum() == 0
    sampler.observe(seen(), 10, ends=False, begins=True)
    inside = [groups_drawn(seed) for seed in range(200)]
    assert all(len(some) == 1 for some in inside)
    counts = np.bincount([some.pop() for some in inside], minlength=4)
    np.testing.assert_array_equal(sampler.batch_actions, counts)
    behaviour = sampler.behaviour.double()
    assert chisquare(counts, 200 * (behaviour / behaviour.sum()).numpy()).pvalue > 0.001
    observation = sampler.observe(seen(), 20, ends=True, begins=False)
    assert observation.episode is not None and observation.episode["drawn"] == counts.tolist()
    assert all(len(groups_drawn(seed)) > 1 for seed in range(20))


def test_members_of_a_batchs_group_are_equally_likely() -> None:
    sampler = started(action="batch", begins=True)
    drawn = sampler.propose(1000, 5, generator(3)).permutations
    mine = frequencies(drawn)[(MEMBERS[drawn[0, 0]] == MEMBERS).numpy()]
    assert mine.sum() == 5000 and len(mine) > 1 and chisquare(mine).pvalue > 0.001


def test_a_group_for_each_sample_inside_an_episode_too() -> None:
    sampler = started(begins=True)
    assert len(set(MEMBERS[sampler.propose(64, 4, generator()).permutations].flatten().tolist())) == 4


# the correction for the known prior


@pytest.mark.parametrize(("exploration", "floor"), [(0.1, 0.1), (0.0, 0.3), (0.1, 0.9)])
def test_the_prior_is_the_share_with_a_floor(exploration: float, floor: float) -> None:
    sampler = started("hard-first", exploration=exploration, prior_floor=floor)
    prior = sampler.propose(4, 2, generator()).log_prior
    assert prior is not None
    expected = np.log(np.maximum(sampler.permutation_share.numpy(), floor / COUNT))
    np.testing.assert_allclose(prior, expected, atol=1e-6)


def test_in_a_batch_of_one_group_the_prior_is_the_batchs_own() -> None:
    sampler = started(action="batch", begins=True)
    for seed in range(5):
        proposal = sampler.propose(4, 2, generator(seed))
        inside = MEMBERS[proposal.permutations[0, 0]] == MEMBERS
        expected = torch.where(inside, 1 / inside.sum(), 0.1 / COUNT).log()
        assert proposal.log_prior is not None
        torch.testing.assert_close(proposal.log_prior, expected)


@pytest.mark.parametrize("action", ["sample", "batch"])
def test_the_correction_can_be_off(action: str) -> None:
    sampler = started(prior_correction=False, action=action, begins=True)
    assert sampler.propose(4, 2, generator()).log_prior is None


@pytest.mark.parametrize("name", GROUPED)
def test_with_the_correction_the_network_does_not_learn_the_prior(name: str) -> None:
    """A classifier that sees nothing has no reason to move, although some permutations come far more often."""
    sampler = started(name)
    proposal = sampler.propose(20_000, 5, generator())
    assert proposal.log_prior is not None
    labels = proposal.permutations.flatten()

    def gradient(prior: Tensor | None) -> Tensor:
        bias = torch.zeros(COUNT, requires_grad=True)
        logits = bias if prior is None else bias + prior
        F.cross_entropy(logits.expand(len(labels), -1), labels).backward()
        assert bias.grad is not None
        return bias.grad

    noise = (sampler.permutation_share / len(labels)).sqrt()
    assert (gradient(proposal.log_prior).abs() < 5 * noise).all()
    assert (gradient(None).abs() > 5 * noise).float().mean() > 0.5
    assert gradient(None).norm() > 10 * gradient(proposal.log_prior).norm()


# how the groups are chosen


def four_groups(sizes: list[float]) -> Groups:
    return Groups(MEMBERS, torch.tensor(sizes), torch.tensor([0.6, 0.9, 1.2, 1.8]))


def test_the_inverse_policy() -> None:
    pi = torch.tensor([0.6, 0.3, 0.099, 0.001])
    chooser = Inverse(config(size_prior=False, inverse_floor=0.02), 4, 0)
    with torch.no_grad():
        chooser.network.layers[-1].bias.copy_(pi.log())  # type: ignore[operator]
    inverse = np.array([1 / 0.6, 1 / 0.3, 1 / 0.099, 1 / 0.02])
    np.testing.assert_allclose(chooser.probabilities(four_groups([0.25] * 4)), inverse / inverse.sum(), rtol=1e-4)
    inverse[3], pi = 0, torch.tensor([0.6, 0.3, 0.099, 0]) / 0.999
    inverse[:3] = 1 / pi[:3].numpy()
    chosen = chooser.probabilities(four_groups([0.5, 0.25, 0.25, 0]))
    np.testing.assert_allclose(chosen, inverse / inverse.sum(), rtol=1e-4)
    assert chosen[3] == 0


def test_the_inverse_policy_learns_as_the_policy_does() -> None:
    policy, inverse = Reinforce(config(), 4, 0), Inverse(config(), 4, 0)
    groups = four_groups([0.25] * 4)
    for _ in range(30):
        for chooser in (policy, inverse):
            chooser.learn(Actions(groups, groups.sizes, torch.tensor([4.0, 1, 0, 0])), 1.0)
            chooser.learn(Actions(groups, groups.sizes, torch.tensor([0.0, 1, 4, 0])), 0.0)
    assert policy.probabilities(groups).argmax() == 0 and inverse.probabilities(groups).argmin() == 0
    assert inverse.probabilities(groups)[0] < 0.2


@pytest.mark.parametrize(("hardest_first", "expected"), [(True, [8, 4, 2, 1]), (False, [1, 2, 4, 8])])
def test_ranked(hardest_first: bool, expected: list[int]) -> None:
    chooser = Ranked(hardest_first)
    np.testing.assert_allclose(chooser.probabilities(four_groups([0.1, 0.4, 0.3, 0.2])), np.array(expected) / 15)
    three = [4, 2, 1, 0] if hardest_first else [1, 2, 4, 0]
    np.testing.assert_allclose(chooser.probabilities(four_groups([0.2, 0.5, 0.3, 0])), np.array(three) / 7)
    before = chooser.probabilities(four_groups([0.25] * 4))
    chooser.learn(Actions(four_groups([0.25] * 4), before, torch.ones(4)), 1.0)
    assert torch.equal(chooser.probabilities(four_groups([0.25] * 4)), before)


def test_hard_first_prefers_the_lowest_median() -> None:
    hard, easy = started("hard-first"), started("easy-first")
    assert hard.behaviour.argmax() == 0 and easy.behaviour.argmax() == 3
    assert hard.groups is not None and hard.groups.medians.argmin() == 0
    assert (MEMBERS[hard.permutation_share.topk(2).indices] == 0).all()


def test_a_new_bandit_draws_every_permutation_equally_often() -> None:
    sizes = [0.1, 0.4, 0.5, 0]
    np.testing.assert_allclose(Exp3(config("exp3")).probabilities(four_groups(sizes)), sizes, atol=1e-6)


@pytest.mark.parametrize("worst_case", [0.0, -1.0])
def test_the_bandit_finds_the_better_group(worst_case: float) -> None:
    """One action an episode, as bandits have it; the reward is never negative, or never positive."""
    for seed in range(10):
        bandit, groups, better = Exp3(config("exp3")), four_groups([0.25] * 4), seed % 4
        source = generator(seed)
        for _ in range(300):
            probabilities = 0.9 * bandit.probabilities(groups) + 0.1 * groups.sizes
            counts = F.one_hot(torch.multinomial(probabilities, 1, generator=source)[0], 4).float()
            noise = 0.01 * float(torch.randn((), generator=source))
            bandit.learn(Actions(groups, probabilities, counts), worst_case + float(counts[better]) + noise)
        assert float(bandit.probabilities(groups)[better]) > 0.9


def test_the_bandit_finds_the_better_group_among_many_draws() -> None:
    for seed in range(5):
        bandit, groups, better = Exp3(config("exp3")), four_groups([0.25] * 4), seed % 4
        source = generator(seed)
        for _ in range(200):
            probabilities = 0.9 * bandit.probabilities(groups) + 0.1 * groups.sizes
            drawn = torch.multinomial(probabilities, 200, replacement=True, generator=source)
            counts = torch.bincount(drawn, minlength=4).float()
            bandit.learn(Actions(groups, probabilities, counts), float(counts[better] / 200))
        assert float(bandit.probabilities(groups)[better]) > 0.9


# episodes


def spy(sampler: GroupSampler, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Actions, float]]:
    """What the chooser is given to learn from."""
    learned: list[tuple[Actions, float]] = []
    real: Callable[[Actions, float], None] = sampler.chooser.learn

    def learn(actions: Actions, reward: float | None) -> None:
        if reward is not None:
            learned.append((actions, reward))
        real(actions, reward)

    monkeypatch.setattr(sampler.chooser, "learn", learn)
    return learned


@pytest.mark.parametrize("action", ["sample", "batch"])
@pytest.mark.parametrize("name", GROUPED)
def test_episodes_at_the_end_of_each_interval(name: str, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K < N: validations at 0, N − K, N, 2N − K, 2N."""
    sampler = group_sampler(name, action=action)
    learned = spy(sampler, monkeypatch)
    assert sampler.observe(seen(0.84), 0, ends=False, begins=False).episode is None
    expected = []
    for number, (begin, end, first, last, baseline) in enumerate(
        [(60, 100, 0.78, 0.7, 0.74), (160, 200, 0.61, 0.58, 0.55)], start=1
    ):
        sampler.propose(10, 2, generator(begin))
        assert sampler.observe(seen(first), begin, ends=False, begins=True).episode is None
        behaviour, groups = sampler.behaviour.clone(), sampler.groups
        batches = [sampler.propose(10, 2, generator(end + batch)).permutations for batch in range(3)]
        entry = sampler.observe(seen(last), end, ends=True, begins=False).episode
        assert entry is not None and groups is not None
        if action == "sample":
            drawn = np.bincount(MEMBERS[torch.stack(batches)].flatten(), minlength=4)
        else:
            drawn = np.bincount([int(MEMBERS[batch[0, 0]]) for batch in batches], minlength=4)
        assert entry["episode"] == number and entry["error"] == pytest.approx(last)
        assert entry["baseline"] == pytest.approx(baseline) and entry["reward"] == pytest.approx(baseline - last)
        assert entry["drawn"] == drawn.tolist() and entry["probability"] == behaviour.tolist()
        assert entry["group_size"] == groups.sizes.tolist() and entry["group_median"] == groups.medians.tolist()
        assert entry["entropy"] == pytest.approx(-float((behaviour * behaviour.log()).sum()), abs=1e-5)
        expected.append((behaviour, drawn, baseline - last))
    assert len(learned) == 2
    for (actions, reward), (behaviour, drawn, mine) in zip(learned, expected, strict=True):
        assert reward == pytest.approx(mine) and torch.equal(actions.behaviour, behaviour)
        np.testing.assert_array_equal(actions.counts, drawn)


@pytest.mark.parametrize("action", ["sample", "batch"])
def test_episodes_back_to_back(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = N: validations at 0, N, 2N, …; each ends one episode and begins the next. No update until two errors."""
    sampler = group_sampler(action=action)
    learned = spy(sampler, monkeypatch)
    assert sampler.observe(seen(0.8), 0, ends=False, begins=True).episode is None
    entries = []
    for end, error in [(100, 0.7), (200, 0.65), (300, 0.5)]:
        sampler.propose(10, 2, generator(end))
        entries.append(sampler.observe(seen(error), end, ends=True, begins=True).episode)
    assert [entry and entry["episode"] for entry in entries] == [1, 2, 3]
    assert entries[0] is not None and entries[0]["baseline"] is None and entries[0]["reward"] is None
    assert [entry["baseline"] for entry in entries[1:] if entry] == pytest.approx([0.6, 0.6])
    assert [reward for _, reward in learned] == pytest.approx([-0.05, 0.1])
    assert all(int(actions.counts.sum()) == (20 if action == "sample" else 1) for actions, _ in learned)


def test_an_update_changes_the_policy_and_nothing_else_does() -> None:
    sampler = started(begins=True)
    behaviour = sampler.behaviour
    for iteration, error in [(10, 0.48), (20, 0.47)]:
        sampler.propose(10, 2, generator())
        sampler.observe(seen(error), iteration, ends=False, begins=False)
        assert torch.equal(sampler.behaviour, behaviour), "π is fixed"
    for end, error in [(40, 0.4), (60, 0.1)]:
        sampler.observe(seen(0.5), end - 10, ends=False, begins=True)
        sampler.propose(10, 2, generator(end))
        sampler.observe(seen(error), end, ends=True, begins=False)
    assert not torch.equal(sampler.behaviour, behaviour)


def test_an_episode_that_began_before_the_start_does_not_count() -> None:
    sampler = group_sampler(start_below=0.6)
    for iteration, error in [(0, 0.9), (100, 0.5)]:
        observation = sampler.observe(seen(error), iteration, ends=iteration > 0, begins=True)
        assert observation.episode is None
        sampler.propose(10, 2, generator(iteration))
    entry = sampler.observe(seen(0.2), 200, ends=True, begins=True).episode
    assert entry is not None and entry["episode"] == 1
    assert entry["baseline"] == pytest.approx(0.1), "errors from before the start count"


def test_an_end_without_a_beginning_is_no_episode() -> None:
    sampler = started()
    sampler.propose(10, 2, generator())
    assert sampler.observe(seen(), 10, ends=True, begins=False).episode is None


@pytest.mark.parametrize("action", ["sample", "batch"])
def test_no_episode_for_a_task_that_was_not_trained(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One half of S&T."""
    sampler = started(action=action, begins=True)
    learned = spy(sampler, monkeypatch)
    for iteration in (10, 20, 30):
        assert sampler.observe(seen(0.4), iteration, ends=True, begins=True).episode is None
    assert learned == [] and sampler.episodes == 0


@pytest.mark.parametrize("action", ["sample", "batch"])
def test_a_drop_of_the_learning_rate_restarts_the_history(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = started(action=action, begins=True)
    learned = spy(sampler, monkeypatch)
    rewards = []
    for end, error in [(10, 0.45), (20, 0.4), (30, 0.3), (40, 0.25), (50, 0.19)]:
        if end == 30:
            sampler.rate_dropped()
        sampler.propose(10, 2, generator(end))
        entry = sampler.observe(seen(error), end, ends=True, begins=True).episode
        assert entry is not None
        rewards.append(entry["reward"])
    assert rewards[0] is None and rewards[2] is None and rewards[3] is None
    assert [rewards[1], rewards[4]] == pytest.approx([0.0, 0.01], abs=1e-9)
    assert len(learned) == 2


# what it tells


@pytest.mark.parametrize("name", GROUPED)
def test_what_goes_into_the_states(name: str) -> None:
    sampler = group_sampler(name)
    arrays = sampler.observe(seen(), 0, ends=False, begins=False).arrays
    assert set(arrays) == {"draws", "groups", "group_medians", "probabilities"}
    np.testing.assert_array_equal(arrays["groups"], MEMBERS)
    np.testing.assert_allclose(arrays["group_medians"], [0.6, 0.9, 1.2, 1.8], atol=0.02)
    np.testing.assert_array_equal(arrays["probabilities"], sampler.behaviour)
    kept = {key: value.copy() for key, value in arrays.items()}
    sampler.propose(10, 2, generator())
    sampler.observe(seen(0.3), 10, ends=True, begins=True)
    assert all((kept[key] == arrays[key]).all() for key in arrays), "they stay what they were"


def narrowed(**options: Any) -> Observation:
    sampler = group_sampler(**options)
    assert isinstance(sampler.chooser, Reinforce)
    with torch.no_grad():
        sampler.chooser.network.layers[-1].bias[0] += 30  # type: ignore[index]
    return sampler.observe(seen(), 0, ends=False, begins=False)


def test_warns_when_the_draws_narrow() -> None:
    # 0.1 stays uniform: 0.9 + 0.1 · 2/24 in two permutations, the rest in 22
    within = 0.9 + 0.1 * 2 / 24
    spread = -(within * math.log(within / 2) + (1 - within) * math.log(0.1 / 24)) / math.log(24)
    narrow, group = narrowed().warnings
    assert narrow == f"the draws have narrowed to {100 * spread:.0f} % of the entropy of uniform ones"
    assert group == "group 1 of 4 takes 91 % of the draws"
    assert len(narrowed(least_spread=0.1).warnings) == len(narrowed(largest_share=0.95).warnings) == 1


@pytest.mark.parametrize("name", GROUPED)
def test_no_warning_while_they_are_wide(name: str) -> None:
    assert group_sampler(name).observe(seen(), 0, ends=False, begins=False).warnings == []


def test_no_warning_for_a_group_that_is_nearly_everything() -> None:
    sampler = build_sampler(config(), COUNT, 0)
    state = torch.full((COUNT, 3), 1.5)
    state[0], state[1] = 0.6, 0.9
    observation = sampler.observe(Validation(state, torch.full((COUNT,), 0.5)), 0, ends=False, begins=False)
    assert max(observation.arrays["probabilities"]) > 0.9 and observation.warnings == []


def test_the_preference_in_a_few_characters() -> None:
    sampler = build_sampler(config(), COUNT, 0)
    assert sampler.preference() == "uniform until chance is left"
    sampler.observe(seen(), 0, ends=False, begins=False)
    assert sampler.preference() == "hard ▄▄▄▄ easy", "a new policy has none"
    sampler.observe(seen(levels=(0.6, 0.6, 1.5, 1.5)), 0, ends=False, begins=False)
    assert sampler.preference() == "hard ▄▄   easy", "no bar for an empty group"
    hard, easy = (started(name).preference() for name in ("hard-first", "easy-first"))
    assert hard is not None and easy is not None
    assert hard[5] == "█" and hard[8] == "▁" and easy[5] < easy[8]


# the checkpoint


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("discount", [0.0, 0.9])
@pytest.mark.parametrize("action", ["sample", "batch"])
@pytest.mark.parametrize("name", ALL)
def test_goes_on_in_the_middle_of_an_episode(name: str, action: str, discount: float, saved_and_loaded: Reload) -> None:
    def new(seed: int) -> Sampler:
        return build_sampler(config(name, action=action, discount=discount, groups=4), COUNT, seed)

    def go_on(sampler: Sampler, begin: int) -> list[Any]:
        """Two batches, then a validation that ends and begins an episode, over and over."""
        happened: list[Any] = []
        for end in range(begin, begin + 40, 10):
            for batch in range(2):
                happened.append(vars(sampler.propose(6, 2, generator(end + batch))))
            happened.append(vars(sampler.observe(seen(0.5 + 0.3 * math.cos(end)), end, ends=True, begins=True)))
            happened.append(sampler.preference())
        return happened

    sampler = new(0)
    sampler.observe(seen(0.8), 0, ends=False, begins=True)
    go_on(sampler, 10)
    sampler.propose(6, 2, generator())
    resumed = new(0)
    resumed.load_state_dict(saved_and_loaded(sampler.state_dict()))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(sampler.state_dict()))
    assert same(go_on(sampler, 50), go_on(resumed, 50))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(sampler.state_dict()))


@pytest.mark.parametrize("name", ALL)
def test_goes_on_before_the_start(name: str, saved_and_loaded: Reload) -> None:
    sampler, resumed = (build_sampler(config(name), COUNT, 0) for _ in range(2))
    sampler.observe(seen(0.95), 0, ends=False, begins=True)
    sampler.propose(6, 2, generator())
    resumed.load_state_dict(saved_and_loaded(sampler.state_dict()))
    for end in (10, 20, 30):
        assert same(vars(sampler.propose(6, 2, generator(end))), vars(resumed.propose(6, 2, generator(end))))
        validation = seen(0.9 - end / 40)
        one, other = (each.observe(validation, end, ends=True, begins=True) for each in (sampler, resumed))
        assert same(vars(one), vars(other))
