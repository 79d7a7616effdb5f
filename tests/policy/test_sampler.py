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
from unshuffle.errors import UserError
from unshuffle.policy import build_sampler
from unshuffle.policy.exp3 import Exp3
from unshuffle.policy.groups import GroupSampler, PairGrouping, PermutationGrouping, select
from unshuffle.policy.ranked import Ranked
from unshuffle.policy.reinforce import Episode, Reinforce
from unshuffle.policy.rollouts import Rollouts
from unshuffle.policy.sampler import Observation, Preference, Proposal, SampleCounts, Sampler
from unshuffle.policy.state import PermutationValidation
from unshuffle.policy.uniform import Uniform

Reload = Callable[[dict[str, Any]], dict[str, Any]]
GROUPED = ["reinforce", "inverse", "hard-first", "easy-first", "exp3"]
"""Samplers of groups; "inverse" is that of reinforce."""
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


def seen(error: float = 0.5, levels: tuple[float, ...] = (0.6, 0.9, 1.2, 1.8)) -> PermutationValidation:
    """A validation with four kinds of permutations."""
    noise = 0.01 * torch.randn(COUNT, 6, generator=generator(1)) if len(set(levels)) == 4 else 0.0
    state = torch.tensor(levels)[MEMBERS, None].expand(COUNT, 6) + noise
    return PermutationValidation(state, torch.full((COUNT,), error, dtype=torch.float64))


def config(name: str = "reinforce", **options: Any) -> PolicyConfig:
    named = {"sampler": "reinforce", "inverse": True} if name == "inverse" else {"sampler": name}
    return replace(PolicyConfig(num_groups=4), **{**named, **options})


class Loop:
    """A sampler in a training loop of one process, which counts what it trains on."""

    def __init__(self, sampler: Sampler, num_groups: int = 4) -> None:
        self.sampler, self.counts = sampler, SampleCounts(COUNT, num_groups)

    @property
    def grouped(self) -> GroupSampler:
        assert isinstance(self.sampler, GroupSampler)
        return self.sampler

    @property
    def preferred(self) -> Tensor:
        return self.grouped.preferred

    @property
    def behaviour(self) -> Tensor:
        return self.grouped.behaviour

    @property
    def permutation_probabilities(self) -> Tensor:
        assert self.grouped.groups is not None
        return self.grouped.groups.permutation_probabilities(self.behaviour)

    def propose(self, samples: int, per_sample: int, source: torch.Generator) -> Proposal:
        """A batch that is trained on; where it has candidates, the network has random logits."""
        proposal = self.sampler.propose(samples, per_sample, source)
        if proposal.selection is None:
            self.counts.add(proposal.permutations)
        else:
            shape, selection = proposal.permutations.shape, proposal.selection
            logits = torch.randn(*shape, COUNT, generator=generator(source.initial_seed()))
            selected = select(logits, proposal.permutations, selection.log_weights, selection.noise, per_sample)
            self.counts.add(selected.permutations, selected.groups)
        return proposal

    def observe(self, validation: PermutationValidation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        self.counts.reduce(alone)
        observation = self.sampler.observe(validation, self.counts, iteration, ends=ends, begins=begins)
        self.counts.reset()
        return observation

    def resume(self) -> Observation:
        return self.sampler.resume(self.counts)

    def state_dict(self) -> dict[str, Any]:
        self.counts.reduce(alone)
        return {"sampler": self.sampler.state_dict(), "counts": self.counts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.counts.load_state_dict(state["counts"])


def alone(counts: Tensor) -> Tensor:
    """The total of one process."""
    return counts


def loop_of(name: str, seed: int = 0, **options: Any) -> Loop:
    settings = config(name, **options)
    return Loop(build_sampler(settings, COUNT, seed), settings.num_groups)


def group_loop(name: str = "reinforce", lr_changes: tuple[int, ...] = (), **options: Any) -> Loop:
    """With a preference, which a new policy does not have."""
    loop = Loop(build_sampler(config(name, **options), COUNT, 0, lr_changes))
    if isinstance(loop.sampler, Reinforce):
        with torch.no_grad():
            loop.sampler.network.layers[-1].bias.copy_(torch.tensor([1.0, -1.0, 0.5, 0.0]))  # type: ignore[operator]
    if isinstance(loop.sampler, Exp3):
        loop.sampler.log_weights = torch.tensor([0.5, -1.0, 1.0, -0.5])
    return loop


def pair_loop(name: str = "reinforce", **options: Any) -> Loop:
    return group_loop(name, grouping="pairs", **options)


def started(name: str = "reinforce", *, begins: bool = False, **options: Any) -> Loop:
    loop = group_loop(name, **options)
    loop.observe(seen(), 0, ends=False, begins=begins)
    return loop


def frequencies(sampled: Tensor) -> np.ndarray:
    return torch.bincount(sampled.flatten(), minlength=COUNT).numpy()


# every sampler


def test_the_sampler_that_the_config_names() -> None:
    uniform = build_sampler(config("uniform"), 12, 0)
    assert isinstance(uniform, Uniform) and uniform.num_permutations == 12
    kinds: dict[str, type[GroupSampler]] = {
        "reinforce": Reinforce,
        "rollouts": Rollouts,
        "hard-first": Ranked,
        "easy-first": Ranked,
        "exp3": Exp3,
    }
    for name, kind in kinds.items():
        for grouping, grouping_kind in (("permutations", PermutationGrouping), ("pairs", PairGrouping)):
            sampler = build_sampler(config(name, grouping=grouping), 12, 0, lr_changes=[3])
            assert isinstance(sampler, kind) and isinstance(sampler.grouping, grouping_kind)
            assert sampler.history.lr_changes == (3,)
            assert not sampler.one_group_per_batch
    assert build_sampler(config(action="batch"), 12, 0).one_group_per_batch  # type: ignore[attr-defined]
    assert type(build_sampler(config("uniform", grouping="pairs"), 12, 0)) is Uniform


@pytest.mark.parametrize("count", [2, 7, 100])
def test_uniform_sampling(count: int) -> None:
    sampled = Uniform(count).propose(2000, 5, generator()).permutations
    assert sampled.shape == (2000, 5) and sampled.dtype == torch.int64
    assert sampled.min() == 0 and sampled.max() == count - 1
    assert chisquare(torch.bincount(sampled.flatten(), minlength=count)).pvalue > 0.001
    for column in sampled.T:
        assert chisquare(torch.bincount(column, minlength=count)).pvalue > 0.001


def test_permutations_of_a_sample_are_independent() -> None:
    first, second = Uniform(3).propose(5000, 2, generator()).permutations.T
    assert chisquare(torch.bincount(3 * first + second, minlength=9)).pvalue > 0.001


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize("action", ["mixture", "batch"])
@pytest.mark.parametrize("name", ALL)
def test_proposals_are_seeded_indices(name: str, action: str, after_start: bool) -> None:
    loop = loop_of(name, action=action)
    if after_start:
        loop.observe(seen(), 0, ends=False, begins=True)
    first = loop.propose(30, 7, generator(1)).permutations
    assert first.shape == (30, 7) and first.dtype == torch.int64
    assert first.min() >= 0 and first.max() < COUNT
    state = torch.get_rng_state()
    assert torch.equal(first, loop.propose(30, 7, generator(1)).permutations)
    assert not torch.equal(first, loop.propose(30, 7, generator(2)).permutations)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


@pytest.mark.parametrize("name", ALL)
def test_samples_are_counted_from_one_validation_to_the_next(name: str) -> None:
    loop = loop_of(name, start_below=0.6)
    expected = np.zeros(COUNT)
    for error, seed in [(0.9, 1), (0.5, 2), (0.5, 3)]:
        for batch in range(2):
            expected += frequencies(loop.propose(5, 3, generator(seed + 10 * batch)).permutations)
        observation = loop.observe(seen(error), seed, ends=False, begins=False)
        np.testing.assert_array_equal(observation.arrays["sampled"], expected)
        expected[:] = 0
    np.testing.assert_array_equal(loop.observe(seen(), 9, ends=False, begins=False).arrays["sampled"], expected)


def test_uniform_sampling_never_changes() -> None:
    loop = loop_of("uniform")
    first = loop.propose(8, 4, generator(1))
    observation = loop.observe(seen(), 10, ends=True, begins=True)
    assert observation.episode is None and observation.concerns == [] and list(observation.arrays) == ["sampled"]
    assert torch.equal(first.permutations, loop.propose(8, 4, generator(1)).permutations)
    assert first.log_prior is None and loop.sampler.preference is None


def test_a_checkpoint_of_another_permutation_set_is_refused() -> None:
    with pytest.raises(UserError, match="the checkpoint has 5 permutations, but this run has 4"):
        Uniform(4).load_state_dict(Uniform(5).state_dict())


# what is counted


def test_what_was_trained_on_is_counted_when_it_is_reduced() -> None:
    counts = SampleCounts(6, 3)
    counts.add(torch.tensor([[3, 3], [5, 0]]), torch.tensor([[1, 2], [1, 0]]))
    counts.add(torch.tensor([[3, 4]]))
    assert counts.permutations.sum() == counts.groups.sum() == 0
    counts.reduce(lambda own: 10 * own)
    counts.add(torch.tensor([[1]]), torch.tensor([[2]]))
    counts.add(torch.tensor([[2]]), torch.tensor([[1]]), skipped=torch.tensor(True))
    counts.reduce(lambda own: own + 100 * torch.eye(9)[0] + 1000 * torch.eye(9)[8])  # what another process counted
    assert counts.permutations.tolist() == [110, 1, 0, 30, 10, 10]
    assert counts.groups.tolist() == [10, 20, 1011] and counts.batches == 3
    counts.reset()
    assert not counts.permutations.any() and not counts.groups.any() and counts.batches == 0


def test_a_total_may_be_made_in_place() -> None:
    """As all-reduce does it: the sum must not be counted again as this process's own."""
    counts = SampleCounts(4, 2)
    counts.add(torch.tensor([[2]]), torch.tensor([[1]]))
    counts.reduce(lambda own: own.mul_(2))
    counts.reduce(alone)
    assert counts.permutations.tolist() == [0, 0, 2, 0] and counts.groups.tolist() == [0, 2]


def test_counts_are_saved_and_restored(saved_and_loaded: Reload) -> None:
    counts, resumed = SampleCounts(4, 2), SampleCounts(4, 2)
    counts.add(torch.tensor([[2, 3]]), torch.tensor([[1, 1]]))
    counts.reduce(alone)
    resumed.add(torch.tensor([[0]]))  # dropped with all else
    resumed.load_state_dict(saved_and_loaded(counts.state_dict()))
    for either in (counts, resumed):
        either.add(torch.tensor([[2]]), torch.tensor([[0]]))
        either.reduce(alone)
    assert same(counts.state_dict(), resumed.state_dict())
    assert resumed.permutations.tolist() == [0, 0, 2, 1] and resumed.groups.tolist() == [1, 2] and resumed.batches == 2


def test_a_slice_of_a_proposal() -> None:
    proposal = pair_loop().propose(6, 2, generator())
    part = proposal.rows(slice(2, 5))
    assert proposal.selection is not None and part.selection is not None
    assert torch.equal(part.permutations, proposal.permutations[2:5])
    assert torch.equal(part.selection.noise, proposal.selection.noise[2:5])
    assert part.selection.log_weights is proposal.selection.log_weights
    assert started().propose(6, 2, generator()).rows(slice(0, 3)).selection is None


# when it starts


@pytest.mark.parametrize("name", GROUPED)
def test_uniform_before_the_start(name: str) -> None:
    loop = group_loop(name)
    loop.observe(seen(0.95), 0, ends=False, begins=True)
    proposal = loop.propose(2000, 5, generator())
    assert proposal.log_prior is None
    assert chisquare(frequencies(proposal.permutations)).pvalue > 0.001
    observation = loop.observe(seen(0.95), 10, ends=True, begins=False)
    assert observation.episode is None and list(observation.arrays) == ["sampled"] and observation.concerns == []


def test_the_start_rule() -> None:
    chance = 1 - 1 / COUNT
    loop = group_loop(start_below=0.8)
    for error, expected in [(chance, False), (0.8 * chance + 1e-6, False), (0.8 * chance - 1e-6, True), (chance, True)]:
        loop.observe(seen(error), 0, ends=False, begins=False)
        assert (loop.grouped.groups is not None) == loop.grouped.started == expected, "and it never stops again"
    at_once = group_loop(start_below=2)
    at_once.observe(seen(1.0), 0, ends=False, begins=False)
    assert at_once.grouped.started


# how often each permutation is sampled


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_samples_follow_the_probabilities(name: str, begins: bool) -> None:
    """Those of the groups' mixture, within an episode that varies it and outside."""
    loop = started(name, begins=begins)
    probabilities = loop.permutation_probabilities.double()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    assert probabilities.max() / probabilities.min() > 1.5, "a test of something"
    proposal = loop.propose(4000, 5, generator())
    expected = 20_000 * probabilities.numpy() / float(probabilities.sum())
    assert chisquare(frequencies(proposal.permutations), expected).pvalue > 0.001
    torch.testing.assert_close(probabilities.float(), (loop.behaviour[MEMBERS] / EACH))
    np.testing.assert_array_equal(MEMBERS, loop.grouped.groups.members)  # type: ignore[union-attr]
    floor = loop.grouped.config.prior_floor / COUNT
    assert proposal.log_prior is not None
    np.testing.assert_allclose(proposal.log_prior, np.log(np.maximum(probabilities.numpy(), floor)), atol=1e-5)
    if name in ("reinforce", "inverse", "exp3"):
        assert torch.equal(loop.behaviour, loop.preferred) != begins
        preferred = loop.grouped.groups.permutation_probabilities(loop.preferred).double()  # type: ignore[union-attr]
        unvaried = 20_000 * preferred.numpy() / float(preferred.sum())
        assert (chisquare(frequencies(proposal.permutations), unvaried).pvalue < 1e-6) == begins
    else:
        assert torch.equal(loop.behaviour, loop.preferred)


@pytest.mark.parametrize("grouping", ["permutations", "pairs"])
@pytest.mark.parametrize("name", ["reinforce", "inverse", "exp3"])
def test_what_is_varied_is_an_episodes_own(name: str, grouping: str) -> None:
    """Each episode has other probabilities around the preferred ones; between episodes these are sampled."""
    loop = group_loop(name, grouping=grouping)
    loop.observe(seen(), 0, ends=False, begins=True)
    preferred, varied = loop.preferred.clone(), [loop.behaviour.clone()]
    for iteration in (10, 20, 30, 40):
        loop.observe(seen(), iteration, ends=True, begins=False)
        assert loop.behaviour is loop.preferred and torch.equal(loop.preferred, preferred)
        loop.observe(seen(), iteration + 5, ends=False, begins=True)
        assert torch.equal(loop.preferred, preferred)
        varied.append(loop.behaviour.clone())
    assert not any(torch.allclose(one, preferred, atol=1e-3) for one in varied)
    distinct = len({tuple(one.tolist()) for one in varied})
    assert distinct > 1 if name == "exp3" else distinct == len(varied), "a bandit may pull an arm again"


@pytest.mark.parametrize("exploration", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_exploration_is_a_lower_bound(name: str, exploration: float, begins: bool) -> None:
    loop = group_loop(name, exploration=exploration)
    if isinstance(loop.grouped, Reinforce):
        with torch.no_grad():
            loop.grouped.network.layers[-1].bias[2] += 50  # type: ignore[index]
    loop.observe(seen(), 0, ends=False, begins=begins)
    probabilities = loop.permutation_probabilities
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    assert float(probabilities.min()) >= exploration / COUNT - 1e-6
    if exploration == 1:
        torch.testing.assert_close(probabilities, torch.full((COUNT,), 1 / COUNT))
    if name == "reinforce" and exploration < 1:
        assert float(probabilities.min()) == pytest.approx(exploration / COUNT, abs=1e-6), "and no more than that"


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("levels", [(1.0, 1.0, 1.0, 1.0), (0.6, 0.6, 1.5, 1.5)])
def test_empty_groups_are_never_sampled(name: str, levels: tuple[float, ...]) -> None:
    for action in ("mixture", "batch"):
        loop = group_loop(name, action=action)
        loop.observe(seen(levels=levels), 0, ends=False, begins=True)
        present = len(set(levels))
        assert loop.grouped.groups is not None and int((loop.grouped.groups.sizes > 0).sum()) == present
        assert (loop.behaviour[present:] == 0).all() and loop.behaviour.isfinite().all()
        assert float(loop.permutation_probabilities.sum()) == pytest.approx(1, abs=1e-6)
        for seed in range(10):
            loop.propose(8, 2, generator(seed))
        observation = loop.observe(seen(0.4, levels), 10, ends=True, begins=True)
        loop.propose(8, 2, generator(11))
        again = loop.observe(seen(0.3, levels), 20, ends=True, begins=True)
        for entry in (observation.episode, again.episode):
            assert entry is not None and sum(entry["sampled"][present:]) == 0 and math.isfinite(entry["entropy"])
        assert loop.behaviour.isfinite().all()


def test_a_group_for_each_batch_in_and_outside_an_episode() -> None:
    loop = group_loop(action="batch", exploration=0.5)
    loop.observe(seen(0.95), 0, ends=False, begins=False)
    assert all(len(sampled_groups(loop, seed)) > 1 for seed in range(20)), "uniform before the start"
    for iteration, begins in ((10, False), (20, True)):
        loop.observe(seen(), iteration, ends=False, begins=begins)
        of_batches = [sampled_groups(loop, seed) for seed in range(200)]
        assert all(len(groups) == 1 for groups in of_batches)
        counts = np.bincount([groups.pop() for groups in of_batches], minlength=4)
        assert loop.behaviour is loop.preferred
        behaviour = loop.behaviour.double()
        assert chisquare(counts, 200 * (behaviour / behaviour.sum()).numpy()).pvalue > 0.001
    observation = loop.observe(seen(), 30, ends=True, begins=False)
    assert observation.episode is not None and observation.episode["sampled"] == (64 * counts).tolist()


def sampled_groups(loop: Loop, seed: int) -> set[int]:
    """The groups of a batch."""
    return set(MEMBERS[loop.propose(16, 4, generator(seed)).permutations].flatten().tolist())


def test_members_of_the_group_of_a_batch_are_equally_likely() -> None:
    loop = started(action="batch", begins=True)
    sampled = loop.propose(1000, 5, generator(3)).permutations
    mine = frequencies(sampled)[(MEMBERS[sampled[0, 0]] == MEMBERS).numpy()]
    assert mine.sum() == 5000 and len(mine) > 1 and chisquare(mine).pvalue > 0.001


def test_every_batch_of_a_mixture_is_mixed() -> None:
    loop = started(begins=True)
    assert len(set(MEMBERS[loop.propose(64, 4, generator()).permutations].flatten().tolist())) == 4


# the correction for the known prior


@pytest.mark.parametrize(("exploration", "floor"), [(0.1, 0.1), (0.0, 0.3), (0.1, 0.9)])
def test_the_prior_is_the_sampling_distribution_with_a_floor(exploration: float, floor: float) -> None:
    loop = started("hard-first", exploration=exploration, prior_floor=floor)
    prior = loop.propose(4, 2, generator()).log_prior
    assert prior is not None
    expected = np.log(np.maximum(loop.permutation_probabilities.numpy(), floor / COUNT))
    np.testing.assert_allclose(prior, expected, atol=1e-6)


def test_the_prior_of_a_batch_of_one_group_is_its_own() -> None:
    loop = started(action="batch", begins=True)
    for seed in range(5):
        proposal = loop.propose(4, 2, generator(seed))
        inside = MEMBERS[proposal.permutations[0, 0]] == MEMBERS
        expected = torch.where(inside, 1 / inside.sum(), 0.1 / COUNT).log()
        assert proposal.log_prior is not None
        torch.testing.assert_close(proposal.log_prior, expected)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_the_correction_can_be_off(action: str) -> None:
    loop = started(prior_correction=False, action=action, begins=True)
    assert loop.propose(4, 2, generator()).log_prior is None


@pytest.mark.parametrize("name", GROUPED)
def test_with_the_correction_the_classifier_does_not_learn_the_prior(name: str) -> None:
    """A classifier that sees nothing has no reason to move, although some permutations come far more often."""
    loop = started(name)
    proposal = loop.propose(20_000, 5, generator())
    assert proposal.log_prior is not None
    labels = proposal.permutations.flatten()

    def gradient(prior: Tensor | None) -> Tensor:
        bias = torch.zeros(COUNT, requires_grad=True)
        logits = bias if prior is None else bias + prior
        F.cross_entropy(logits.expand(len(labels), -1), labels).backward()
        assert bias.grad is not None
        return bias.grad

    noise = (loop.permutation_probabilities / len(labels)).sqrt()
    assert (gradient(proposal.log_prior).abs() < 5 * noise).all()
    assert (gradient(None).abs() > 5 * noise).float().mean() > 0.5
    assert gradient(None).norm() > 10 * gradient(proposal.log_prior).norm()


# fixed preferences


def test_hard_first_prefers_the_lowest_median() -> None:
    hard, easy = started("hard-first"), started("easy-first")
    assert hard.behaviour.argmax() == 0 and easy.behaviour.argmax() == 3
    assert hard.grouped.groups is not None and hard.grouped.groups.medians.argmin() == 0
    assert (MEMBERS[hard.permutation_probabilities.topk(2).indices] == 0).all()


# episodes


def spy(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    """The episodes that the sampler learns from."""
    learned: list[Episode] = []
    learn = loop.grouped.learn
    monkeypatch.setattr(loop.grouped, "learn", lambda episode: (learned.append(episode), learn(episode)))
    return learned


@pytest.mark.parametrize("action", ["mixture", "batch"])
@pytest.mark.parametrize("name", GROUPED)
def test_episodes_at_the_end_of_each_interval(name: str, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K < N: validations at 0, N − K, N, 2N − K, 2N."""
    loop = group_loop(name, action=action)
    learned = spy(loop, monkeypatch)
    assert loop.observe(seen(0.84), 0, ends=False, begins=False).episode is None
    expected = []
    for number, (begin, end, first, last, baseline) in enumerate(
        [(60, 100, 0.78, 0.7, 0.72), (160, 200, 0.61, 0.58, 0.52)], start=1
    ):
        loop.propose(10, 2, generator(begin))
        assert loop.observe(seen(first), begin, ends=False, begins=True).episode is None
        preferred, behaviour, groups = loop.preferred.clone(), loop.behaviour.clone(), loop.grouped.groups
        batches = [loop.propose(10, 2, generator(end + batch)).permutations for batch in range(3)]
        entry = loop.observe(seen(last), end, ends=True, begins=False).episode
        assert entry is not None and groups is not None
        sampled = np.bincount(MEMBERS[torch.stack(batches)].flatten(), minlength=4)
        assert entry["episode"] == number and entry["error"] == pytest.approx(last)
        assert entry["baseline"] == pytest.approx(baseline) and entry["reward"] == pytest.approx(baseline - last)
        assert entry["sampled"] == sampled.tolist()
        assert entry["probability"] == preferred.tolist() and entry["mixture"] == behaviour.tolist()
        assert entry["group_size"] == groups.sizes.tolist() and entry["group_median"] == groups.medians.tolist()
        assert entry["entropy"] == pytest.approx(-float((preferred * preferred.log()).sum()), abs=1e-5)
        expected.append((preferred, behaviour, sampled, baseline - last))
    assert len(learned) == 2
    for episode, (preferred, behaviour, sampled, reward) in zip(learned, expected, strict=True):
        assert episode.reward == pytest.approx(reward)
        assert torch.equal(episode.preferred, preferred) and torch.equal(episode.behaviour, behaviour)
        np.testing.assert_array_equal(episode.counts, sampled)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_episodes_back_to_back(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = N: validations at 0, N, 2N, …; each ends one episode and begins the next. No update until two errors."""
    loop = group_loop(action=action)
    learned = spy(loop, monkeypatch)
    assert loop.observe(seen(0.8), 0, ends=False, begins=True).episode is None
    entries = []
    for end, error in [(100, 0.7), (200, 0.65), (300, 0.5)]:
        loop.propose(10, 2, generator(end))
        entries.append(loop.observe(seen(error), end, ends=True, begins=True).episode)
    assert [entry and entry["episode"] for entry in entries] == [1, 2, 3]
    assert entries[0] is not None and entries[0]["baseline"] is None and entries[0]["reward"] is None
    assert [entry["baseline"] for entry in entries[1:] if entry] == pytest.approx([0.6, 0.6])
    assert [episode.reward for episode in learned] == pytest.approx([-0.05, 0.1])
    assert all(int(episode.counts.sum()) == 20 for episode in learned)
    for episode in learned:
        chosen = (episode.counts > 0) if action == "batch" else torch.ones(4, dtype=torch.bool)
        assert torch.equal(episode.action != 0, chosen)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_an_update_changes_the_policy_and_nothing_else_does(action: str) -> None:
    loop = started(action=action)
    preferred = loop.preferred
    for iteration, error in [(10, 0.48), (20, 0.47)]:
        loop.propose(10, 2, generator())
        loop.observe(seen(error), iteration, ends=False, begins=False)
        assert torch.equal(loop.preferred, preferred), "π is fixed"
    for end, error in [(40, 0.4), (60, 0.1)]:
        loop.observe(seen(0.5), end - 10, ends=False, begins=True)
        loop.propose(10, 2, generator(end))
        loop.observe(seen(error), end, ends=True, begins=False)
    assert not torch.equal(loop.preferred, preferred)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_an_episode_does_not_count_after_a_validation_in_its_midst(action: str) -> None:
    """As at the checkpoint where a branch begins: the groups, and so what was sampled, are others from then on."""
    loop = started(action=action, begins=True)
    for iteration, ends in [(10, False), (20, True)]:
        loop.propose(10, 2, generator(iteration))
        assert loop.observe(seen(), iteration, ends=ends, begins=False).episode is None
        assert torch.equal(loop.behaviour, loop.preferred)


def test_an_episode_that_began_before_the_start_does_not_count() -> None:
    loop = group_loop(start_below=0.6)
    for iteration, error in [(0, 0.9), (100, 0.5)]:
        observation = loop.observe(seen(error), iteration, ends=iteration > 0, begins=True)
        assert observation.episode is None
        loop.propose(10, 2, generator(iteration))
    entry = loop.observe(seen(0.2), 200, ends=True, begins=True).episode
    assert entry is not None and entry["episode"] == 1
    assert entry["baseline"] == pytest.approx(0.1), "errors from before the start count"


def test_an_end_without_a_beginning_is_no_episode() -> None:
    loop = started()
    loop.propose(10, 2, generator())
    assert loop.observe(seen(), 10, ends=True, begins=False).episode is None


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_no_episode_for_a_task_that_was_not_trained(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One half of S&T."""
    loop = started(action=action, begins=True)
    learned = spy(loop, monkeypatch)
    for iteration in (10, 20, 30):
        assert loop.observe(seen(0.4), iteration, ends=True, begins=True).episode is None
    assert learned == [] and loop.grouped.episodes == 0


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_a_drop_of_the_learning_rate_restarts_the_history(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = started(action=action, begins=True, lr_changes=(20,))
    learned = spy(loop, monkeypatch)
    rewards = []
    for end, error in [(10, 0.45), (20, 0.4), (30, 0.3), (40, 0.25), (50, 0.19)]:
        loop.propose(10, 2, generator(end))
        entry = loop.observe(seen(error), end, ends=True, begins=True).episode
        assert entry is not None
        rewards.append(entry["reward"])
    assert rewards[0] is None and rewards[2] is None and rewards[3] is None
    assert [rewards[1], rewards[4]] == pytest.approx([0.0, 0.01], abs=1e-9)
    assert len(learned) == 2


# what is recorded


@pytest.mark.parametrize("name", GROUPED)
def test_the_arrays_for_the_states_folder(name: str) -> None:
    loop = group_loop(name)
    arrays = loop.observe(seen(), 0, ends=False, begins=False).arrays
    assert set(arrays) == {"sampled", "groups", "group_medians", "probabilities", "mixture"}
    np.testing.assert_array_equal(arrays["groups"], MEMBERS)
    np.testing.assert_allclose(arrays["group_medians"], [0.6, 0.9, 1.2, 1.8], atol=0.02)
    for array in ("probabilities", "mixture"):
        np.testing.assert_array_equal(arrays[array], loop.behaviour)
    kept = {key: value.copy() for key, value in arrays.items()}
    loop.propose(10, 2, generator())
    loop.observe(seen(0.3), 10, ends=True, begins=True)
    assert all((kept[key] == arrays[key]).all() for key in arrays), "they stay what they were"


def narrowed(**options: Any) -> Observation:
    loop = group_loop(**options)
    assert isinstance(loop.grouped, Reinforce)
    with torch.no_grad():
        loop.grouped.network.layers[-1].bias[0] += 30  # type: ignore[index]
    return loop.observe(seen(), 0, ends=False, begins=False)


def test_concerns_when_the_sampling_narrows() -> None:
    # 0.1 stays uniform: 0.9 + 0.1 · 2/24 in two permutations, the rest in 22
    within = 0.9 + 0.1 * 2 / 24
    fraction = -(within * math.log(within / 2) + (1 - within) * math.log(0.1 / 24)) / math.log(24)
    narrow, group = narrowed().concerns
    assert narrow == {"concern": "narrow_sampling", "entropy_fraction": pytest.approx(fraction)}
    assert group == {"concern": "dominant_group", "group": 1, "num_groups": 4, "fraction": pytest.approx(within)}
    assert len(narrowed(min_entropy_fraction=0.1).concerns) == len(narrowed(max_group_fraction=0.95).concerns) == 1


@pytest.mark.parametrize("name", GROUPED)
def test_no_concern_while_the_sampling_is_wide(name: str) -> None:
    assert group_loop(name).observe(seen(), 0, ends=False, begins=False).concerns == []


def test_no_concern_for_a_group_that_holds_nearly_everything() -> None:
    loop = loop_of("reinforce")
    state = torch.full((COUNT, 3), 1.5)
    state[0], state[1] = 0.6, 0.9
    observation = loop.observe(PermutationValidation(state, torch.full((COUNT,), 0.5)), 0, ends=False, begins=False)
    assert max(observation.arrays["probabilities"]) > 0.9 and observation.concerns == []


def test_the_preference_of_the_groups() -> None:
    loop = loop_of("reinforce")
    assert loop.sampler.preference == Preference([], []), "before the start"
    loop.observe(seen(), 0, ends=False, begins=False)
    preference = loop.sampler.preference
    assert preference is not None and preference.probabilities == pytest.approx(preference.sizes), "a new policy"
    assert preference.sizes == pytest.approx([size / COUNT for size in SIZES])
    for name in GROUPED:
        loop = started(name, begins=True)
        preference = loop.sampler.preference
        assert preference is not None and preference.probabilities == loop.preferred.tolist()


# groups of pairs


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_candidates_and_their_selection_are_seeded(name: str, after_start: bool) -> None:
    loop = pair_loop(name, candidates=3)
    if after_start:
        loop.observe(seen(), 0, ends=False, begins=True)
    state = torch.get_rng_state()
    first, again, other = (loop.propose(30, 7, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert first.permutations.shape == (30, 21) and first.permutations.dtype == torch.int64
    assert first.permutations.min() >= 0 and first.permutations.max() < COUNT
    assert first.selection is not None and again.selection is not None and other.selection is not None
    assert first.selection.noise.shape == (30, 21) and first.log_prior is None
    assert torch.equal(first.permutations, again.permutations) and torch.equal(
        first.selection.noise, again.selection.noise
    )
    assert not torch.equal(first.permutations, other.permutations)
    assert not torch.equal(first.selection.noise, other.selection.noise)
    assert chisquare(frequencies(loop.propose(500, 7, generator()).permutations)).pvalue > 0.001


def log_weights(loop: Loop) -> Tensor:
    selection = loop.sampler.propose(1, 1, generator()).selection
    assert selection is not None
    return selection.log_weights


@pytest.mark.parametrize("name", GROUPED)
def test_the_selection_is_uniform_before_the_start(name: str) -> None:
    loop = pair_loop(name)
    assert log_weights(loop).tolist() == [0] * 4
    loop.propose(6, 2, generator(0))
    observation = loop.observe(seen(0.95), 10, ends=True, begins=True)
    assert log_weights(loop).tolist() == [0] * 4
    assert observation.episode is None and list(observation.arrays) == ["sampled"] and observation.concerns == []


@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("name", GROUPED)
def test_members_are_selected_as_often_as_the_sampler_prefers(name: str, groups: int) -> None:
    """Four groups have six of the 24 permutations each; five have four or five."""
    loop = loop_of(name, grouping="pairs", num_groups=groups, exploration=0.2)
    if isinstance(loop.grouped, Reinforce):
        with torch.no_grad():
            loop.grouped.network.layers[-1].bias.copy_(torch.linspace(1, -1, groups))  # type: ignore[operator]
    if isinstance(loop.grouped, Exp3):
        loop.grouped.log_weights = torch.linspace(1, -1, groups)
    loop.observe(seen(), 0, ends=False, begins=False)
    assert loop.grouped.groups is not None
    sizes, preferred = loop.grouped.groups.sizes, loop.grouped.probabilities(loop.grouped.groups)
    if name == "inverse":
        preferred = (sizes**2 / preferred) / (sizes**2 / preferred).sum()
    behaviour = 0.8 * preferred + 0.2 * sizes
    torch.testing.assert_close(loop.behaviour, behaviour)
    torch.testing.assert_close(log_weights(loop).exp() * sizes, behaviour)
    assert log_weights(loop).exp().max() > 1.2, "a test of something"


@pytest.mark.parametrize("groups", [4, 5, 7])
def test_a_new_policy_selects_uniformly_whatever_the_sizes(groups: int) -> None:
    loop = loop_of("reinforce", grouping="pairs", num_groups=groups)
    loop.observe(seen(), 0, ends=False, begins=False)
    torch.testing.assert_close(log_weights(loop), torch.zeros(groups), atol=1e-6, rtol=0)


def test_the_counts_of_pairs_are_those_of_the_steps() -> None:
    loop = pair_loop()
    loop.observe(seen(), 0, ends=False, begins=True)
    loop.sampler.propose(10, 5, generator())  # candidates do not count
    loop.counts.add(torch.tensor([[3, 3], [5, 0]]), torch.tensor([[1, 2], [1, 0]]))
    loop.counts.add(torch.tensor([[3, 23], [23, 7]]), torch.tensor([[3, 3], [3, 2]]))
    expected = np.zeros(COUNT)
    expected[[0, 3, 5, 7, 23]] = [1, 3, 1, 1, 2]
    observation = loop.observe(seen(), 10, ends=True, begins=True)
    np.testing.assert_array_equal(observation.arrays["sampled"], expected)
    assert observation.episode is not None and observation.episode["sampled"] == [1, 2, 2, 3]
    observation = loop.observe(seen(), 20, ends=True, begins=True)
    assert observation.episode is None, "nothing was trained on since"
    assert not observation.arrays["sampled"].any()


@pytest.mark.parametrize("name", GROUPED)
def test_an_episode_of_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = pair_loop(name)
    learned = spy(loop, monkeypatch)
    loop.observe(seen(0.84), 0, ends=False, begins=False)
    loop.propose(6, 2, generator(1))
    loop.observe(seen(0.78), 60, ends=False, begins=True)
    preferred, behaviour, groups = loop.preferred.clone(), loop.behaviour.clone(), loop.grouped.groups
    for seed in (2, 3):
        loop.propose(6, 2, generator(seed))
    loop.counts.reduce(alone)
    sampled = loop.counts.groups.clone()
    entry = loop.observe(seen(0.7), 100, ends=True, begins=False).episode
    assert entry is not None and groups is not None
    assert entry["episode"] == 1 and entry["reward"] == pytest.approx(0.72 - 0.7)
    assert entry["sampled"] == sampled.tolist() and sum(entry["sampled"]) == 2 * 6 * 2, "of the episode alone"
    assert entry["probability"] == preferred.tolist() and entry["mixture"] == behaviour.tolist()
    assert entry["group_size"] == groups.sizes.tolist() and entry["group_median"] == groups.medians.tolist()
    (episode,) = learned
    assert episode.reward == pytest.approx(0.02) and torch.equal(episode.counts, sampled)
    assert torch.equal(episode.behaviour, behaviour)


def test_the_arrays_of_pairs_for_the_states_folder() -> None:
    loop = pair_loop()
    arrays = loop.observe(seen(), 0, ends=False, begins=False).arrays
    assert set(arrays) == {"sampled", "group_medians", "probabilities", "mixture"}, (
        "a permutation is in no group of its own"
    )
    np.testing.assert_array_equal(arrays["probabilities"], loop.behaviour)
    ordered = seen().state.sort(dim=0).values
    np.testing.assert_allclose(
        arrays["group_medians"], [np.median(part) for part in ordered.numpy().reshape(4, -1)], rtol=1e-6
    )
    kept = {key: value.copy() for key, value in arrays.items()}
    loop.propose(6, 2, generator(1))
    later = loop.observe(seen(0.3, (0.5, 0.7, 0.9, 1.9)), 10, ends=True, begins=True).arrays
    assert all((kept[key] == arrays[key]).all() for key in arrays), "they stay what they were"
    np.testing.assert_array_equal(later["probabilities"], loop.preferred)
    np.testing.assert_array_equal(later["mixture"], loop.behaviour)
    assert not np.array_equal(later["probabilities"], later["mixture"]), "an episode has begun"
    np.testing.assert_array_equal(later["acting_probabilities"], arrays["probabilities"])
    np.testing.assert_array_equal(later["acting_mixture"], arrays["mixture"])
    np.testing.assert_array_equal(later["acting_group_medians"], arrays["group_medians"])


def test_a_concern_when_one_group_of_pairs_gets_nearly_all_samples() -> None:
    loop = pair_loop()
    assert isinstance(loop.grouped, Reinforce)
    assert loop.observe(seen(), 0, ends=False, begins=False).concerns == []
    with torch.no_grad():
        loop.grouped.network.layers[-1].bias[2] += 30  # type: ignore[index]
    (concern,) = loop.observe(seen(), 10, ends=False, begins=False).concerns
    fraction = pytest.approx(0.9 + 0.1 / 4, abs=1e-4)
    assert concern == {"concern": "dominant_group", "group": 3, "num_groups": 4, "fraction": fraction}


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


CHECKPOINTED = [*ALL, "rollouts"]


@pytest.mark.parametrize("discount", [0.0, 0.9])
@pytest.mark.parametrize(
    ("grouping", "action"), [("permutations", "mixture"), ("permutations", "batch"), ("pairs", "mixture")]
)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_resumes_in_the_middle_of_an_episode(
    name: str, grouping: str, action: str, discount: float, saved_and_loaded: Reload
) -> None:
    def new(seed: int) -> Loop:
        return loop_of(name, seed, grouping=grouping, action=action, discount=discount)

    def train(loop: Loop, begin: int) -> list[Any]:
        """Two batches, then a validation that ends and begins an episode, over and over."""
        record: list[Any] = []
        for end in range(begin, begin + 40, 10):
            for batch in range(2):
                proposal = loop.propose(6, 2, generator(end + batch))
                record.append(
                    [proposal.permutations, proposal.log_prior, vars(proposal.selection or Preference([], []))]
                )
            record.append(vars(loop.observe(seen(0.5 + 0.3 * math.cos(end)), end, ends=True, begins=True)))
            if isinstance(loop.sampler, Rollouts):
                errors = torch.tensor(
                    [[math.sin(end + group + sample / 9) for sample in range(3)] for group in range(4)]
                )
                record.append(loop.sampler.compare(errors))
                loop.sampler.act()
            record.append(vars(loop.sampler.preference or Preference([], [])))
        return record

    loop = new(0)
    loop.observe(seen(0.8), 0, ends=False, begins=True)
    train(loop, 10)
    loop.propose(6, 2, generator())
    resumed = new(0)
    resumed.propose(6, 2, generator(2))  # dropped with all else
    resumed.load_state_dict(saved_and_loaded(loop.state_dict()))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(loop.state_dict()))
    assert same(train(loop, 50), train(resumed, 50))
    assert same(saved_and_loaded(resumed.state_dict()), saved_and_loaded(loop.state_dict()))


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_restored_sampler_samples_as_before_and_learns_nothing(name: str, saved_and_loaded: Reload) -> None:
    loop = loop_of(name)
    before_the_start = loop.resume()
    assert before_the_start.arrays == {} and before_the_start.episode is None
    loop.observe(seen(0.8), 0, ends=False, begins=True)
    before = saved_and_loaded(loop.state_dict())
    record = loop.resume()
    assert same(saved_and_loaded(loop.state_dict()), before) and record.episode is None
    names = {"group_medians", "probabilities", "mixture", "groups"}
    assert set(record.arrays) == (set() if name == "uniform" else names)


@pytest.mark.parametrize("grouping", ["permutations", "pairs"])
@pytest.mark.parametrize("name", ["reinforce", "inverse", "exp3"])
def test_a_sampler_resumed_in_the_middle_of_an_episode_has_its_mixture_again(
    name: str, grouping: str, saved_and_loaded: Reload
) -> None:
    options = {"grouping": grouping, "prior_correction": False}
    loop, resumed = group_loop(name, **options), loop_of(name, **options)
    loop.observe(seen(0.8), 0, ends=False, begins=True)
    of_the_first = loop.behaviour
    loop.propose(6, 2, generator(1))
    loop.observe(seen(0.5), 80, ends=True, begins=True)
    loop.propose(6, 2, generator(2))
    resumed.load_state_dict(saved_and_loaded(loop.state_dict()))
    arrays = resumed.resume().arrays
    assert torch.equal(resumed.preferred, loop.preferred) and torch.equal(resumed.behaviour, loop.behaviour)
    np.testing.assert_array_equal(arrays["mixture"], loop.behaviour)
    assert not torch.allclose(loop.behaviour, loop.preferred) and not torch.allclose(loop.behaviour, of_the_first)


@pytest.mark.parametrize("options", [{"action": "batch"}, {}])
def test_an_episode_that_the_inverse_continues_does_not_count(
    options: dict[str, Any], saved_and_loaded: Reload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first batches were sampled by the policy, so its reward says nothing about the inverse."""
    policy, inverse = started("reinforce", begins=True, **options), loop_of("inverse", **options)
    policy.propose(6, 2, generator(1))
    inverse.load_state_dict(saved_and_loaded(policy.state_dict()))
    inverse.resume()
    learned = spy(inverse, monkeypatch)
    for end, counted in [(10, False), (20, True), (30, True)]:
        inverse.propose(6, 2, generator(end))
        assert (inverse.observe(seen(0.4), end, ends=True, begins=True).episode is not None) == counted
    assert len(learned) == 2


def test_an_episode_that_the_inverse_begins_counts(saved_and_loaded: Reload) -> None:
    policy, inverse = started("reinforce", begins=True), loop_of("inverse")
    inverse.load_state_dict(saved_and_loaded(policy.state_dict()))
    inverse.resume()
    inverse.propose(6, 2, generator(1))
    assert inverse.observe(seen(0.4), 10, ends=True, begins=True).episode is not None


@pytest.mark.parametrize("name", ["hard-first", "easy-first"])
def test_fixed_preferences_sample_a_group_for_each_batch_as_the_policy_does(name: str) -> None:
    loop = started(name, action="batch")
    assert all(
        len(set(MEMBERS[loop.propose(16, 4, generator(s)).permutations].flatten().tolist())) == 1 for s in range(9)
    )


def test_an_episode_that_the_inverse_continues_keeps_its_noise(saved_and_loaded: Reload) -> None:
    """Though the mixture differs: the noise belongs to the episode, and is added to the logits of either sampler."""
    policy, inverse = started("reinforce", begins=True), loop_of("inverse")
    inverse.load_state_dict(saved_and_loaded(policy.state_dict()))
    inverse.resume()
    assert isinstance(policy.sampler, Reinforce) and isinstance(inverse.sampler, Reinforce)
    noise, groups = policy.sampler.noise, policy.grouped.groups
    assert groups is not None and torch.equal(inverse.sampler.noise, noise)
    weights = groups.sizes.square() / policy.sampler.probabilities(groups) * noise.exp()
    torch.testing.assert_close(inverse.behaviour, 0.9 * weights / weights.sum() + 0.1 * groups.sizes)


@pytest.mark.parametrize("name", ["reinforce", "inverse", "exp3"])
def test_between_episodes_a_resumed_sampler_follows_its_preference(name: str, saved_and_loaded: Reload) -> None:
    loop, resumed = started(name, begins=False), loop_of(name)
    resumed.load_state_dict(saved_and_loaded(loop.state_dict()))
    resumed.resume()
    assert torch.equal(resumed.behaviour, resumed.preferred) and torch.equal(resumed.behaviour, loop.behaviour)


def test_the_inverse_continues_with_the_state_of_a_policy_and_back(saved_and_loaded: Reload) -> None:
    policy, inverse, again = started("reinforce"), loop_of("inverse"), loop_of("reinforce")
    inverse.load_state_dict(saved_and_loaded(policy.state_dict()))
    inverse.resume()
    again.load_state_dict(saved_and_loaded(inverse.state_dict()))
    again.resume()
    groups = policy.grouped.groups
    assert groups is not None
    weights = groups.sizes.square() / policy.grouped.probabilities(groups)
    torch.testing.assert_close(inverse.behaviour, 0.9 * weights / weights.sum() + 0.1 * groups.sizes)
    assert torch.equal(again.behaviour, policy.behaviour) and not torch.allclose(inverse.behaviour, policy.behaviour)


@pytest.mark.parametrize("grouping", ["permutations", "pairs"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_resumes_before_the_start(name: str, grouping: str, saved_and_loaded: Reload) -> None:
    loop, resumed = (loop_of(name, grouping=grouping) for _ in range(2))
    loop.observe(seen(0.95), 0, ends=False, begins=True)
    loop.propose(6, 2, generator())
    resumed.load_state_dict(saved_and_loaded(loop.state_dict()))
    for end in (10, 20, 30):
        first, again = (either.propose(6, 2, generator(end)) for either in (loop, resumed))
        assert torch.equal(first.permutations, again.permutations)
        validation = seen(0.9 - end / 40)
        one, other = (either.observe(validation, end, ends=True, begins=True) for either in (loop, resumed))
        assert same(vars(one), vars(other))


@pytest.mark.parametrize("grouping", ["permutations", "pairs"])
def test_a_rollout_is_undone_by_the_state_before_it(grouping: str, saved_and_loaded: Reload) -> None:
    """Nothing that was sampled or preferred meanwhile stays, nor what was cached on the device."""
    loop = loop_of("rollouts", grouping=grouping)
    loop.observe(seen(), 0, ends=False, begins=True)
    assert isinstance(loop.sampler, Rollouts)
    loop.sampler.compare(torch.tensor([0.3, 0.4, 0.5, 0.6])[:, None].expand(-1, 2))
    loop.sampler.act()
    before, proposed = saved_and_loaded(loop.state_dict()), loop.sampler.propose(6, 2, generator(1))
    loop.sampler.prefer(3)
    loop.propose(6, 2, generator(2))
    loop.load_state_dict(before)
    assert same(loop.state_dict(), before)
    again = loop.sampler.propose(6, 2, generator(1))
    assert torch.equal(again.permutations, proposed.permutations)
    assert same(vars(again.selection or Preference([], [])), vars(proposed.selection or Preference([], [])))
