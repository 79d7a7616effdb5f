"""Advantages against the formulas, the sampler that learns from them, and the procedure with a small trainer."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy import build_sampler
from unshuffle.policy import rollouts as rollouts_module
from unshuffle.policy.groups import Groups, one_group_preferred
from unshuffle.policy.reinforce import ErrorHistory
from unshuffle.policy.rollouts import Rollouts, advantages, reliability, run_rollouts
from unshuffle.policy.sampler import SampleCounts, Sampler
from unshuffle.policy.state import PermutationValidation


def errors_of_rollouts(rollouts: int, samples: int, differences: float, scatter: float, seed: int = 0) -> Tensor:
    """Some samples are harder than others; each rollout has its own level, and noise on each sample."""
    rng = np.random.default_rng(seed)
    levels, samples_own = differences * rng.normal(size=(rollouts, 1)), rng.normal(size=(1, samples))
    return torch.from_numpy(0.5 + levels + samples_own + scatter * rng.normal(size=(rollouts, samples)))


some_errors = st.builds(
    errors_of_rollouts,
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(0, 9),
)


def slow_advantages(errors: Tensor, count: int) -> list[float]:
    """Two-way analysis of variance, cell by cell."""
    rows = errors.tolist()
    rollouts, samples = len(rows), len(rows[0])
    grand = sum(map(sum, rows)) / (rollouts * samples)
    by_rollout = [sum(row) / samples for row in rows]
    by_sample = [sum(row[place] for row in rows) / rollouts for place in range(samples)]
    if rollouts < 2 or samples < 2:
        return [0.0] * count
    between = samples * sum((mean - grand) ** 2 for mean in by_rollout) / (rollouts - 1)
    if between < 1e-20:
        return [0.0] * count
    rest = 0.0
    for rollout in range(rollouts):
        for place in range(samples):
            rest += (rows[rollout][place] - by_rollout[rollout] - by_sample[place] + grand) ** 2
    within = rest / ((rollouts - 1) * (samples - 1))
    trusted = max(0.0, 1 - within / between)
    unit = (between / samples) ** 0.5
    return [trusted * (grand - mean) / unit for mean in by_rollout] + [0.0] * (count - rollouts)


@given(some_errors, st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_advantages_against_the_analysis_of_variance(errors: Tensor, without_rollout: int) -> None:
    count = len(errors) + without_rollout
    advantage = advantages(errors, count)
    assert advantage.shape == (count,)
    np.testing.assert_allclose(advantage, slow_advantages(errors, count), rtol=1e-3, atol=1e-3)


@given(some_errors)
@settings(max_examples=100, deadline=None)
def test_advantages_are_around_zero_and_ordered_by_the_errors(errors: Tensor) -> None:
    advantage = advantages(errors, len(errors))
    assert float(advantage.sum()) == pytest.approx(0, abs=1e-2)
    means = errors.mean(dim=1)
    for mean, own in zip(means, advantage, strict=True):
        for other_mean, other in zip(means, advantage, strict=True):
            assert mean >= other_mean or own >= other, "the lower error has at least the same advantage"
    assert float(advantage.square().sum()) <= max(len(errors) - 1, 0) * 1.01, "the standard deviation is 1 at most"


def test_differences_on_all_samples_are_trusted_however_small() -> None:
    errors = errors_of_rollouts(4, 50, differences=1e-5, scatter=1e-7)
    assert float(advantages(errors, 4).std()) == pytest.approx(1, abs=0.01)


def test_random_differences_are_not_trusted() -> None:
    """Of most rollouts that differ by noise alone nothing is left; of real differences most is."""

    def reliabilities(differences: float) -> np.ndarray:
        return np.array([reliability(errors_of_rollouts(4, 50, differences, 0.1, seed)) for seed in range(400)])

    of_noise, of_differences = reliabilities(0.0), reliabilities(0.1)
    assert np.mean(of_noise == 0) > 0.5 and np.mean(of_noise > 0.5) < 0.15
    assert np.mean(of_differences > 0.9) > 0.9
    assert 0.75 * np.mean(of_noise**2) < 0.1 < 0.6 < 0.75 * np.mean(of_differences**2), "mean squares"


def test_one_sample_gives_no_advantage() -> None:
    assert advantages(errors_of_rollouts(3, 1, 0.1, 0.0), 3).tolist() == [0, 0, 0]


def test_an_untrusted_advantage_is_zero_without_a_sign() -> None:
    """ "−0.00" would be read as a small loss."""
    measured = [advantages(errors_of_rollouts(4, 50, 0.0, 0.1, seed), 4) for seed in range(50)]
    zeros = [advantage for advantage in measured if not advantage.any()]
    assert zeros and not any(advantage.signbit().any() for advantage in zeros)


def test_a_common_level_does_not_matter() -> None:
    errors = errors_of_rollouts(3, 7, differences=0.1, scatter=0.1)
    level_of_each_sample = torch.linspace(0, 1, 7, dtype=torch.float64)
    torch.testing.assert_close(advantages(errors, 3), advantages(errors + level_of_each_sample, 3))


def test_a_group_without_rollout_has_the_average_advantage() -> None:
    assert advantages(errors_of_rollouts(2, 5, 0.1, 0.0), 5)[2:].tolist() == [0, 0, 0]
    assert advantages(errors_of_rollouts(1, 5, 0.1, 0.1), 3).tolist() == [0, 0, 0], "a single rollout has no comparison"
    assert advantages(torch.full((4, 5), 0.3), 4).tolist() == [0] * 4


# the sampler

COUNT = 24
MEMBERS = torch.arange(COUNT) * 4 // COUNT
GROUPINGS = ["permutations", "pairs"]


def four_groups(sizes: list[float]) -> Groups:
    medians = torch.tensor([0.6, 0.9, 1.2, 1.8])
    return Groups(torch.empty(0, dtype=torch.int64), torch.tensor(sizes), medians, torch.arange(4))


def config(grouping: str = "pairs", **options: Any) -> PolicyConfig:
    return replace(PolicyConfig(sampler="rollouts", num_groups=4), grouping=grouping, **options)  # type: ignore[arg-type]


def validation(levels: tuple[float, ...] = (0.6, 0.9, 1.2, 1.8)) -> PermutationValidation:
    noise = 0.01 * torch.randn(COUNT, 6, generator=torch.Generator().manual_seed(1)) if len(set(levels)) == 4 else 0.0
    state = torch.tensor(levels)[MEMBERS, None].expand(COUNT, 6) + noise
    return PermutationValidation(state, torch.full((COUNT,), 0.5, dtype=torch.float64))


def observe(sampler: Sampler, levels: tuple[float, ...] = (0.6, 0.9, 1.2, 1.8), iteration: int = 0) -> None:
    sampler.observe(validation(levels), SampleCounts(COUNT, 4), iteration, ends=False, begins=True)


def started(grouping: str = "pairs", **options: Any) -> Rollouts:
    """A sampler with groups, without a preference yet."""
    sampler = Rollouts(config(grouping, **options), COUNT, 0, ErrorHistory())
    observe(sampler)
    return sampler


def after(errors: list[float]) -> Tensor:
    """Errors after rollouts, the same on each of two samples."""
    return torch.tensor(errors, dtype=torch.float64)[:, None].expand(-1, 2)


@pytest.mark.parametrize("sizes", [[0.25] * 4, [0.6, 0.2, 0.15, 0.05], [0.5, 0.3, 0.2, 0.0]])
def test_no_other_policy_has_more_advantage_and_entropy(sizes: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ π A + τ H, with the entropy of the permutations that are sampled, at its π and around it."""
    torch.manual_seed(0)
    groups, advantage = four_groups(sizes), torch.tensor([0.7, -0.4, 0.2, 0.0])
    sampler = Rollouts(config(entropy_weight=0.3), COUNT, 0, ErrorHistory())
    monkeypatch.setattr(rollouts_module, "advantages", lambda errors, count: advantage)
    for _ in range(60):  # earlier rollouts count half as much with each
        sampler.compare(after([0.0]))
    present = groups.sizes > 0

    def objective(pi: Tensor) -> float:
        pi, size = pi[present], groups.sizes[present]
        return float((pi * advantage[present]).sum() - 0.3 * (pi * (pi / size).log()).sum())

    best = sampler.probabilities(groups)
    assert (best[~present] == 0).all() and float(best.sum()) == pytest.approx(1, abs=1e-6)
    for _ in range(200):
        other = torch.softmax(best.log() + 0.3 * torch.randn(4), dim=0)
        assert objective(other) < objective(best)


def test_the_last_rollouts_count_half(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, measured = started(), [torch.tensor([1.0, 0, 0, -1]), torch.tensor([0.0, 1, 0, -1])]
    monkeypatch.setattr(rollouts_module, "advantages", lambda errors, count: measured.pop(0))
    for _ in range(2):
        sampler.compare(after([0.0]))
    assert sampler.advantage.tolist() == [0.25, 0.5, 0, -0.75]


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_no_rollouts_before_the_start(grouping: str) -> None:
    sampler = Rollouts(config(grouping), COUNT, 0, ErrorHistory())
    assert sampler.num_rollouts == 0
    observe(sampler)
    assert sampler.num_rollouts == 4


def test_a_rollout_for_each_group_that_has_members() -> None:
    sampler = started("permutations")
    observe(sampler, (0.6, 0.6, 1.5, 1.5), iteration=10)
    assert sampler.num_rollouts == 2
    advantage = sampler.compare(after([0.4, 0.5]))
    sampler.act()
    assert advantage[0] > 0 > advantage[1] and advantage[2:].tolist() == [0, 0]
    assert sampler.behaviour[0] > 0.55 and sampler.behaviour[2:].tolist() == [0, 0]


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_preferring_a_group_changes_the_samples(grouping: str) -> None:
    sampler = started(grouping, exploration=0.2)
    assert sampler.groups is not None
    sizes = sampler.groups.sizes
    for group in range(4):
        before, later = sampler.propose(2000, 2, torch.Generator().manual_seed(0)), None
        sampler.prefer(group)
        torch.testing.assert_close(sampler.behaviour, 0.8 * one_group_preferred(sizes, group) + 0.2 * sizes)
        later = sampler.propose(2000, 2, torch.Generator().manual_seed(0))
        if before.selection is not None and later.selection is not None:
            assert not torch.equal(before.selection.log_weights, later.selection.log_weights)
        else:
            assert not torch.equal(before.permutations, later.permutations)


@pytest.mark.parametrize("better", range(4))
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_better_group_is_sampled_more_often(grouping: str, better: int) -> None:
    sampler = started(grouping)
    assert sampler.groups is not None
    errors = [0.40, 0.41, 0.42, 0.43]
    errors[better] = 0.3
    for _ in range(2):
        before = sampler.behaviour.clone()
        advantage = sampler.compare(after(errors))
        sampler.act()
        assert (sampler.behaviour / before).argmax() == better and sampler.behaviour[better] > before[better]
    expected = (np.mean(errors) - np.array(errors)) / np.std(errors, ddof=1)
    np.testing.assert_allclose(advantage, expected, rtol=1e-3)
    preferred = sampler.probabilities(sampler.groups)
    torch.testing.assert_close(sampler.behaviour, 0.9 * preferred + 0.1 * sampler.groups.sizes)
    assert float(sampler.behaviour[better] / sampler.groups.sizes[better]) > 1.2


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_preference_stays_after_a_drop_of_the_learning_rate(grouping: str) -> None:
    sampler = Rollouts(config(grouping), COUNT, 0, ErrorHistory([10]))
    observe(sampler)
    assert sampler.groups is not None
    sampler.compare(after([0.3, 0.4, 0.5, 0.6]))
    sampler.act()
    before = sampler.behaviour.clone()
    assert float(before[0]) > 1.2 * float(sampler.groups.sizes[0])
    observe(sampler, iteration=20)
    torch.testing.assert_close(sampler.behaviour, before)


# the procedure


class FakeTrainer:
    """Trains nothing; the error of each task follows from the group that its sampler prefers."""

    def __init__(self, samplers: dict[str, Sampler], errors: dict[str, list[float]]) -> None:
        self.samplers, self.errors = samplers, errors
        self.iteration, self.trained = 0, 0

    def state_dict(self) -> dict[str, Any]:
        states = {task: sampler.state_dict() for task, sampler in self.samplers.items()}
        return {"iteration": self.iteration, "samplers": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        for task, sampler in self.samplers.items():
            sampler.load_state_dict(state["samplers"][task])

    def train_iterations(self, count: int) -> None:
        self.iteration += count
        self.trained += count

    def validate(self, task: str) -> PermutationValidation:
        learner = self.samplers[task]
        assert isinstance(learner, Rollouts) and learner.groups is not None
        preferred = int((learner.behaviour - 0.5 * learner.groups.sizes).argmax())
        wrong = round(self.errors[task][preferred] * COUNT)
        state = torch.full((COUNT, 5), 2.0)
        state[:wrong] = 0.5
        return PermutationValidation(state, torch.zeros(COUNT))


def samplers_of(**options: dict[str, Any]) -> dict[str, Sampler]:
    return {task: build_sampler(config(exploration=0.0, **changes), COUNT, seed=0) for task, changes in options.items()}


def test_rollouts_compare_the_groups_and_are_undone() -> None:
    samplers = samplers_of(spatial={}, temporal={"grouping": "permutations"})
    for sampler in samplers.values():
        observe(sampler)
    observe(samplers["temporal"], (0.6, 0.6, 1.5, 1.5))  # two groups only
    errors = {"spatial": [0.5, 0.25, 0.5, 0.75], "temporal": [0.25, 0.5]}
    trainer = FakeTrainer(samplers, errors)
    before = copy.deepcopy(trainer.state_dict())
    entries = run_rollouts(trainer, samplers, 7)
    assert trainer.trained == 4 * 7 and trainer.iteration == 0
    for task, entry in entries.items():
        assert list(entry) == ["iterations", "errors", "advantage", "probability"]
        assert entry["iterations"] == 7 and entry["errors"] == pytest.approx(errors[task])
        assert np.argmax(entry["advantage"]) == np.argmin(errors[task]) == np.argmax(entry["probability"])
        state = samplers[task].state_dict()
        assert state["preferred"].tolist() == state["behaviour"].tolist() == entry["probability"]
        changed = {key for key in state if str(state[key]) != str(before["samplers"][task][key])}
        assert changed == {"advantage", "preferred", "behaviour"}


def test_the_inverse_avoids_the_better_group() -> None:
    samplers = samplers_of(spatial={"inverse": True})
    observe(samplers["spatial"])
    entries = run_rollouts(FakeTrainer(samplers, {"spatial": [0.25, 0.5, 0.5, 0.5]}), samplers, 2)
    probability = entries["spatial"]["probability"]
    assert np.argmax(entries["spatial"]["advantage"]) == np.argmin(probability) == 0 and probability[0] < 0.2
    sampler = samplers["spatial"]
    assert isinstance(sampler, Rollouts) and sampler.groups is not None
    pi, sizes = sampler.probabilities(sampler.groups), sampler.groups.sizes
    expected = [float(size) ** 2 / float(own) for own, size in zip(pi, sizes, strict=True)]
    np.testing.assert_allclose(probability, np.array(expected) / sum(expected), rtol=1e-5)
    assert samplers["spatial"].state_dict()["behaviour"].tolist() == probability


@pytest.mark.parametrize("sampler", ["uniform", "reinforce", "exp3", "hard-first", "easy-first"])
def test_other_samplers_need_no_rollouts(sampler: str) -> None:
    others = samplers_of(spatial={"sampler": sampler})
    observe(others["spatial"])
    trainer = FakeTrainer(others, {})
    assert run_rollouts(trainer, others, 3) == {} and trainer.trained == 0


def test_no_rollouts_while_no_sampler_has_started() -> None:
    samplers = samplers_of(spatial={})
    trainer = FakeTrainer(samplers, {})
    assert run_rollouts(trainer, samplers, 3) == {} and trainer.trained == 0
