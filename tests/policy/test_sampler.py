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
from unshuffle.policy.choosers import Exp3, Inverse, Ranked
from unshuffle.policy.pairs import Pick
from unshuffle.policy.samplers import (
    ChoosingSampler,
    GroupSampler,
    Observation,
    PairSampler,
    Proposal,
    Sampler,
    UniformSampler,
    build_sampler,
)
from unshuffle.policy.trials import one_group_preferred

from unshuffle.config import PolicyConfig
from unshuffle.policy.reinforce import Actions, Reinforce
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


def choosing_sampler(name: str = "policy", **options: Any) -> ChoosingSampler:
    sampler = build_sampler(config(name, **options), COUNT, seed=0)
    assert isinstance(sampler, ChoosingSampler)
    if isinstance(sampler.chooser, Reinforce):  # with a preference, that a new policy does not have
        with torch.no_grad():
            sampler.chooser.network.layers[-1].bias.copy_(torch.tensor([1.0, -1.0, 0.5, 0.0]))  # type: ignore[operator]
    if isinstance(sampler.chooser, Exp3):
        sampler.chooser.log_weights = torch.tensor([0.5, -1.0, 1.0, -0.5])
    return sampler


def group_sampler(name: str = "policy", **options: Any) -> GroupSampler:
    sampler = choosing_sampler(name, **options)
    assert isinstance(sampler, GroupSampler)
    return sampler


def pair_sampler(name: str = "policy", **options: Any) -> PairSampler:
    sampler = choosing_sampler(name, grouped="pairs", **options)
    assert isinstance(sampler, PairSampler)
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
        sampler = build_sampler(config(name, grouped="pairs"), 12, 0)
        assert isinstance(sampler, PairSampler) and type(sampler.chooser) is kind
    assert type(build_sampler(config("uniform", grouped="pairs"), 12, 0)) is UniformSampler


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


def test_hard_first_prefers_the_lowest_median() -> None:
    hard, easy = started("hard-first"), started("easy-first")
    assert hard.behaviour.argmax() == 0 and easy.behaviour.argmax() == 3
    assert hard.groups is not None and hard.groups.medians.argmin() == 0
    assert (MEMBERS[hard.permutation_share.topk(2).indices] == 0).all()


# episodes


def spy(sampler: ChoosingSampler, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Actions, float]]:
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


# groups of pairs


def alone(fresh: Tensor) -> Tensor:
    """The total of one process."""
    return fresh


def trained_on(sampler: Sampler, seed: int, samples: int = 6, per_sample: int = 2) -> Proposal:
    """A batch in which a network that answers anything chooses, if there is a choice, and all that comes of it."""
    proposal = sampler.propose(samples, per_sample, generator(seed))
    if proposal.choice is not None:
        pick = Pick(proposal.permutations, proposal.choice)
        pick(torch.randn(*proposal.permutations.shape, COUNT, generator=generator(seed)))
        sampler.count(pick.permutations, pick.groups)
    return proposal


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_candidates_and_their_choice_are_seeded(name: str, after_start: bool) -> None:
    sampler = pair_sampler(name, candidates=3)
    if after_start:
        sampler.observe(seen(), 0, ends=False, begins=True)
    state = torch.get_rng_state()
    first, again, other = (sampler.propose(30, 7, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert first.permutations.shape == (30, 21) and first.permutations.dtype == torch.int64
    assert first.permutations.min() >= 0 and first.permutations.max() < COUNT
    assert first.choice is not None and again.choice is not None and other.choice is not None
    assert first.choice.count == 7 and first.choice.noise.shape == (30, 21) and first.log_prior is None
    assert torch.equal(first.permutations, again.permutations) and torch.equal(first.choice.noise, again.choice.noise)
    assert not torch.equal(first.permutations, other.permutations)
    assert not torch.equal(first.choice.noise, other.choice.noise)
    assert chisquare(frequencies(sampler.propose(500, 7, generator()).permutations)).pvalue > 0.001


def log_shares(sampler: PairSampler) -> Tensor:
    choice = sampler.propose(1, 1, generator()).choice
    assert choice is not None
    return choice.log_shares


@pytest.mark.parametrize("name", GROUPED)
def test_the_choice_is_uniform_before_the_start(name: str) -> None:
    sampler = pair_sampler(name)
    assert log_shares(sampler).tolist() == [0] * 4
    trained_on(sampler, 0)
    sampler.gather(alone)
    observation = sampler.observe(seen(0.95), 10, ends=True, begins=True)
    assert log_shares(sampler).tolist() == [0] * 4
    assert observation.episode is None and list(observation.arrays) == ["draws"] and observation.warnings == []


@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("name", GROUPED)
def test_members_are_chosen_as_often_as_the_chooser_wants(name: str, groups: int) -> None:
    """Four groups have six of the 24 permutations each; five have four or five."""
    sampler = build_sampler(config(name, grouped="pairs", groups=groups, exploration=0.2), COUNT, 0)
    assert isinstance(sampler, PairSampler)
    chooser = sampler.chooser.policy if isinstance(sampler.chooser, Inverse) else sampler.chooser
    if isinstance(chooser, Reinforce):
        with torch.no_grad():
            chooser.network.layers[-1].bias.copy_(torch.linspace(1, -1, groups))  # type: ignore[operator]
    if isinstance(chooser, Exp3):
        chooser.log_weights = torch.linspace(1, -1, groups)
    sampler.observe(seen(), 0, ends=False, begins=False)
    assert sampler.groups is not None
    sizes = sampler.groups.sizes
    wanted = 0.8 * sampler.chooser.probabilities(sampler.groups) + 0.2 * sizes
    torch.testing.assert_close(sampler.behaviour, wanted)
    torch.testing.assert_close(log_shares(sampler).exp() * sizes, wanted)
    assert log_shares(sampler).exp().max() > 1.2, "a test of something"


@pytest.mark.parametrize("groups", [4, 5, 7])
def test_a_new_policy_chooses_uniformly_whatever_the_sizes(groups: int) -> None:
    sampler = build_sampler(config(grouped="pairs", groups=groups), COUNT, 0)
    assert isinstance(sampler, PairSampler)
    sampler.observe(seen(), 0, ends=False, begins=False)
    torch.testing.assert_close(log_shares(sampler), torch.zeros(groups), atol=1e-6, rtol=0)


def test_what_was_chosen_is_counted_when_it_is_gathered() -> None:
    sampler = pair_sampler()
    sampler.observe(seen(), 0, ends=False, begins=True)
    sampler.propose(10, 5, generator())
    sampler.count(torch.tensor([[3, 3], [5, 0]]), torch.tensor([[1, 2], [1, 0]]))
    sampler.count(torch.tensor([[3, 23], [23, 7]]), torch.tensor([[3, 3], [3, 2]]))
    assert sampler.draws.sum() == 0 and sampler.group_draws.sum() == 0, "candidates do not count"
    sampler.gather(lambda fresh: 10 * fresh)
    sampler.count(torch.tensor([[6]]), torch.tensor([[0]]))
    sampler.gather(lambda fresh: fresh + 100 * torch.eye(COUNT)[:, :4])  # what another process has chosen
    expected = np.zeros(COUNT)
    expected[[0, 3, 5, 7, 23, 6]] = [10, 30, 10, 10, 20, 1]
    expected[:4] += 100
    observation = sampler.observe(seen(), 10, ends=True, begins=True)
    np.testing.assert_array_equal(observation.arrays["draws"], expected)
    assert observation.episode is not None and observation.episode["drawn"] == [111, 120, 120, 130]
    sampler.gather(alone)
    observation = sampler.observe(seen(), 20, ends=True, begins=True)
    assert observation.episode is None, "nothing was chosen since"
    assert not observation.arrays["draws"].any()


def test_a_total_may_be_made_in_place() -> None:
    """As all-reduce does it: what is summed must not come back into what this process will choose."""
    sampler = pair_sampler()
    sampler.count(torch.tensor([[2]]), torch.tensor([[1]]))
    sampler.gather(lambda fresh: fresh.mul_(2))
    sampler.gather(alone)
    assert float(sampler.draws.sum()) == 2 and sampler.draws[2] == 2 and sampler.group_draws.tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("name", ALL)
def test_others_have_nothing_to_gather(name: str) -> None:
    sampler = build_sampler(config(name), COUNT, 0)
    assert isinstance(sampler, UniformSampler)
    drawn = sampler.propose(5, 3, generator()).permutations
    sampler.count(drawn, torch.zeros_like(drawn))
    sampler.gather(lambda fresh: 2 * fresh)
    np.testing.assert_array_equal(sampler.draws, frequencies(drawn))


@pytest.mark.parametrize("name", GROUPED)
def test_an_episode_of_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = pair_sampler(name)
    learned = spy(sampler, monkeypatch)
    sampler.observe(seen(0.84), 0, ends=False, begins=False)
    trained_on(sampler, 1)
    sampler.gather(alone)
    sampler.observe(seen(0.78), 60, ends=False, begins=True)
    behaviour, groups = sampler.behaviour.clone(), sampler.groups
    for seed in (2, 3):
        trained_on(sampler, seed)
    sampler.gather(alone)
    drawn = sampler.group_draws.clone()
    entry = sampler.observe(seen(0.7), 100, ends=True, begins=False).episode
    assert entry is not None and groups is not None
    assert entry["episode"] == 1 and entry["reward"] == pytest.approx(0.74 - 0.7)
    assert entry["drawn"] == drawn.tolist() and sum(entry["drawn"]) == 2 * 6 * 2, "of the episode alone"
    assert entry["probability"] == behaviour.tolist()
    assert entry["group_size"] == groups.sizes.tolist() and entry["group_median"] == groups.medians.tolist()
    ((actions, reward),) = learned
    assert reward == pytest.approx(0.04) and torch.equal(actions.counts, drawn)
    assert torch.equal(actions.behaviour, behaviour)


def test_what_goes_into_the_states_of_pairs() -> None:
    sampler = pair_sampler()
    arrays = sampler.observe(seen(), 0, ends=False, begins=False).arrays
    assert set(arrays) == {"draws", "group_medians", "probabilities"}, "a permutation is in no group of its own"
    np.testing.assert_array_equal(arrays["probabilities"], sampler.behaviour)
    ordered = seen().state.sort(dim=0).values
    np.testing.assert_allclose(
        arrays["group_medians"], [np.median(part) for part in ordered.numpy().reshape(4, -1)], rtol=1e-6
    )
    kept = {key: value.copy() for key, value in arrays.items()}
    trained_on(sampler, 1)
    sampler.gather(alone)
    later = sampler.observe(seen(0.3, (0.5, 0.7, 0.9, 1.9)), 10, ends=True, begins=True).arrays
    assert all((kept[key] == arrays[key]).all() for key in arrays), "they stay what they were"
    np.testing.assert_array_equal(later["acting_probabilities"], arrays["probabilities"])
    np.testing.assert_array_equal(later["acting_group_medians"], arrays["group_medians"])


def test_warns_when_one_group_of_pairs_takes_nearly_all() -> None:
    sampler = pair_sampler()
    assert isinstance(sampler.chooser, Reinforce)
    assert sampler.observe(seen(), 0, ends=False, begins=False).warnings == []
    with torch.no_grad():
        sampler.chooser.network.layers[-1].bias[2] += 30  # type: ignore[index]
    warnings = sampler.observe(seen(), 10, ends=False, begins=False).warnings
    assert warnings == ["group 3 of 4 takes 92 % of the draws"]


# trials


TRIED = {"grouped": ["permutations", "pairs"], "name": ["policy", "inverse"]}


def tried(name: str = "policy", grouped: str = "pairs", **options: Any) -> ChoosingSampler:
    """A sampler that has started and learns from trials; without a preference yet."""
    sampler = build_sampler(config(name, reward="trials", grouped=grouped, **options), COUNT, seed=0)
    assert isinstance(sampler, ChoosingSampler)
    sampler.observe(seen(), 0, ends=False, begins=True)
    return sampler


def after(errors: list[float]) -> Tensor:
    """Errors after trials, the same on each of two samples."""
    return torch.tensor(errors, dtype=torch.float64)[:, None].expand(-1, 2)


def test_who_wants_trials() -> None:
    for grouped in TRIED["grouped"]:
        for name in ALL:
            sampler = build_sampler(config(name, reward="trials", grouped=grouped), COUNT, 0)
            assert sampler.trials == 0, "before the start groups mean nothing"
            sampler.observe(seen(), 0, ends=False, begins=True)
            assert sampler.trials == (4 if name in TRIED["name"] else 0), (grouped, name)
        assert started(grouped="permutations").trials == 0, "the paper's reward needs none"


def test_a_trial_for_each_group_that_has_members() -> None:
    sampler = tried(grouped="permutations")
    sampler.observe(seen(levels=(0.6, 0.6, 1.5, 1.5)), 10, ends=False, begins=False)
    assert sampler.trials == 2
    entry = sampler.judge(after([0.4, 0.5]))
    assert entry["worth"][0] > 0 > entry["worth"][1] and entry["worth"][2:] == [0, 0]
    assert entry["probability"][0] > 0.55 and entry["probability"][2:] == [0, 0]


@pytest.mark.parametrize("grouped", TRIED["grouped"])
def test_a_group_is_preferred(grouped: str) -> None:
    sampler = tried(grouped=grouped, exploration=0.2)
    assert sampler.groups is not None
    for group in range(4):
        before = sampler.propose(2000, 2, generator())
        sampler.prefer(group)
        sizes = sampler.groups.sizes
        torch.testing.assert_close(sampler.behaviour, 0.8 * one_group_preferred(sizes, group) + 0.2 * sizes)
        after = sampler.propose(2000, 2, generator())
        if before.choice is not None and after.choice is not None:
            assert not torch.equal(before.choice.log_shares, after.choice.log_shares)
        else:
            assert not torch.equal(before.permutations, after.permutations)


@pytest.mark.parametrize("better", range(4))
@pytest.mark.parametrize("grouped", TRIED["grouped"])
def test_a_judgement_turns_the_draws_towards_the_better_group(grouped: str, better: int) -> None:
    sampler = tried(grouped=grouped)
    assert sampler.groups is not None
    errors = [0.40, 0.41, 0.42, 0.43]
    errors[better] = 0.3
    for _ in range(2):
        before = sampler.behaviour.clone()
        entry = sampler.judge(after(errors))
        assert (sampler.behaviour / before).argmax() == better and sampler.behaviour[better] > before[better]
    assert list(entry) == ["errors", "worth", "probability"]
    assert entry["errors"] == errors and entry["probability"] == sampler.behaviour.tolist()
    expected = (np.mean(errors) - np.array(errors)) / np.std(errors, ddof=1)
    np.testing.assert_allclose(entry["worth"], expected, rtol=1e-3)
    wanted = sampler.chooser.probabilities(sampler.groups)
    torch.testing.assert_close(sampler.behaviour, 0.9 * wanted + 0.1 * sampler.groups.sizes)
    assert float(sampler.behaviour[better] / sampler.groups.sizes[better]) > 1.2


def test_the_inverse_policy_turns_away_from_it() -> None:
    sampler = tried("inverse")
    sampler.judge(after([0.3, 0.4, 0.41, 0.42]))
    assert sampler.behaviour.argmin() == 0 and sampler.behaviour[0] < 0.2


def test_an_episode_teaches_nothing_where_trials_do() -> None:
    sampler = tried()
    before = sampler.behaviour.clone()
    for end, error in [(10, 0.45), (20, 0.3), (30, 0.1)]:
        trained_on(sampler, end)
        sampler.gather(alone)
        entry = sampler.observe(seen(error), end, ends=True, begins=True).episode
        assert entry is not None and sum(entry["drawn"]) == 12
    assert entry["reward"] is not None, "but it is told"
    assert torch.equal(sampler.behaviour, before)


@pytest.mark.parametrize("grouped", TRIED["grouped"])
def test_after_a_drop_of_the_rate_what_trials_said_still_holds(grouped: str) -> None:
    sampler = tried(grouped=grouped)
    assert sampler.groups is not None
    sampler.judge(after([0.3, 0.4, 0.5, 0.6]))
    before = sampler.behaviour.clone()
    sampler.rate_dropped()
    assert torch.equal(sampler.behaviour, before) and float(before[0]) > 1.2 * float(sampler.groups.sizes[0])
    sampler.observe(seen(), 20, ends=False, begins=True)
    torch.testing.assert_close(sampler.behaviour, before)


@pytest.mark.parametrize("grouped", TRIED["grouped"])
def test_after_a_drop_of_the_rate_a_policy_without_trials_stays(grouped: str) -> None:
    sampler = choosing_sampler(grouped=grouped)
    sampler.rate_dropped()
    sampler.observe(seen(), 0, ends=False, begins=True)
    before = sampler.behaviour.clone()
    sampler.rate_dropped()
    assert torch.equal(sampler.behaviour, before) and not torch.allclose(before, torch.full((4,), 0.25))


def test_uniform_draws_take_no_part_in_trials() -> None:
    sampler = UniformSampler(COUNT)
    first = sampler.propose(8, 4, generator(1)).permutations
    sampler.prefer(2)
    assert torch.equal(first, sampler.propose(8, 4, generator(1)).permutations)
    assert sampler.trials == 0 and sampler.judge(after([0.5])) == {}


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


@pytest.mark.parametrize("reward", ["error", "trials"])
@pytest.mark.parametrize("name", GROUPED)
def test_pairs_go_on_in_the_middle_of_an_episode(name: str, reward: str, saved_and_loaded: Reload) -> None:
    def new() -> Sampler:
        return build_sampler(config(name, grouped="pairs", reward=reward), COUNT, 0)

    def go_on(sampler: Sampler, begin: int) -> list[Any]:
        happened: list[Any] = []
        for end in range(begin, begin + 40, 10):
            for batch in range(2):
                proposal = trained_on(sampler, end + batch)
                happened.append([proposal.permutations, vars(proposal.choice)])
            sampler.gather(alone)
            happened.append(vars(sampler.observe(seen(0.5 + 0.3 * math.cos(end)), end, ends=True, begins=True)))
            if sampler.trials:
                happened.append(sampler.judge(after([math.sin(end + trial) for trial in range(sampler.trials)])))
            happened.append(sampler.preference())
        return happened

    sampler = new()
    go_on(sampler, 10)
    trained_on(sampler, 1)
    sampler.gather(alone)
    resumed = new()
    trained_on(resumed, 2)  # forgotten with all else
    resumed.load_state_dict(saved_and_loaded(sampler.state_dict()))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(sampler.state_dict()))
    assert same(go_on(sampler, 50), go_on(resumed, 50))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(sampler.state_dict()))


def test_a_trial_is_undone_by_the_state_before_it(saved_and_loaded: Reload) -> None:
    """Nothing that was drawn or preferred meanwhile stays, also not what was kept ready for the device."""
    sampler = tried()
    sampler.judge(after([0.3, 0.4, 0.5, 0.6]))
    before, proposed = saved_and_loaded(sampler.state_dict()), trained_on(sampler, 1)
    sampler.prefer(3)
    trained_on(sampler, 2)
    sampler.rate_dropped()
    sampler.load_state_dict(before)
    sampler.gather(alone)
    assert same(sampler.state_dict(), before)
    again = trained_on(sampler, 1)
    assert same(vars(again.choice), vars(proposed.choice))
