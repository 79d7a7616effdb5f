import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, entropy
from unshuffle.policy.reinforce import (
    MAX_IMPORTANCE,
    MIN_DISCOUNT_WEIGHT,
    Episode,
    ErrorHistory,
    PolicyNetwork,
    Reinforce,
)

CONFIG = PolicyConfig()
Reload = Callable[[dict[str, Any]], dict[str, Any]]


def groups_of(sizes: list[int], medians: list[float] | None = None) -> Groups:
    members = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    medians = medians or np.linspace(0.6, 1.8, len(sizes)).tolist()
    return Groups(members, torch.tensor(sizes) / sum(sizes), torch.tensor(medians))


TEN = groups_of([10] * 10)


def build(config: PolicyConfig, num_groups: int, seed: int) -> Reinforce:
    return Reinforce(replace(config, num_groups=num_groups), 100, seed, ErrorHistory())


def episode_of(
    groups: Groups, behaviour: Tensor, counts: Tensor, reward: float | None = None, iteration: int = 0
) -> Episode:
    return Episode(groups, behaviour, counts, iteration, error=0.0, baseline=reward)


def act(policy: Reinforce, groups: Groups, count: int, generator: torch.Generator) -> Episode:
    behaviour = policy.probabilities(groups)
    sampled = torch.multinomial(behaviour, count, replacement=True, generator=generator)
    return episode_of(groups, behaviour, torch.bincount(sampled, minlength=len(behaviour)).float())


def learn(policy: Reinforce, episode: Episode, reward: float) -> None:
    policy.learn(replace(episode, baseline=reward))


def scrambled(policy: Reinforce, seed: int = 0) -> Reinforce:
    """Weights anywhere, the last layer's too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return policy


# the policy


def test_the_network_of_the_paper() -> None:
    network = PolicyNetwork(10)
    assert [tuple(weight.shape) for weight in network.parameters()] == [(16, 20), (16,), (10, 16), (10,)]


def test_the_network_sees_sizes_and_medians() -> None:
    policy = scrambled(build(CONFIG, 3, 0))
    one = policy.probabilities(groups_of([2, 3, 5]))
    assert not torch.allclose(one, policy.probabilities(groups_of([2, 3, 5], [0.5, 0.6, 1.0])), atol=1e-3)
    plain = scrambled(build(replace(CONFIG, size_prior=False), 3, 0))
    assert not torch.allclose(
        plain.probabilities(groups_of([2, 3, 5])), plain.probabilities(groups_of([5, 3, 2])), atol=1e-3
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_new_policy_samples_every_permutation_equally_often(seed: int) -> None:
    groups = groups_of([1, 20, 70, 9, 0])
    torch.testing.assert_close(build(CONFIG, 5, seed).probabilities(groups), groups.sizes)


def test_without_the_size_prior_a_new_policy_samples_every_group_equally_often() -> None:
    policy = build(replace(CONFIG, size_prior=False), 5, 0)
    expected = torch.tensor([0.25, 0.25, 0.25, 0.25, 0])
    torch.testing.assert_close(policy.probabilities(groups_of([1, 20, 70, 9, 0])), expected)


@pytest.mark.parametrize("size_prior", [True, False])
def test_empty_groups_are_never_sampled_and_do_no_harm(size_prior: bool) -> None:
    policy = scrambled(build(replace(CONFIG, size_prior=size_prior), 4, 0))
    groups, generator = groups_of([3, 0, 5, 0]), torch.Generator().manual_seed(0)
    for step in range(20):
        learn(policy, act(policy, groups, 5, generator), math.sin(step))
        probabilities = policy.probabilities(groups)
        assert (probabilities[[1, 3]] == 0).all() and float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    assert all(weight.isfinite().all() for weight in policy.network.parameters())


def test_seeded_and_apart_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (build(CONFIG, 10, seed).network.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["layers.0.weight"], other["layers.0.weight"])


# the update


def written_objective(
    weights: list[Tensor], policy: Reinforce, actions: Episode, advantage: float, importance: np.ndarray
) -> Tensor:
    """Eq. 9's objective once more, by hand, in float64."""
    first, first_bias, second, second_bias = weights
    groups, config = actions.groups, policy.config
    present = [group for group, size in enumerate(groups.sizes.tolist()) if size > 0]
    inputs = torch.tensor([x for pair in zip(groups.sizes, groups.medians, strict=True) for x in pair]).double()
    logits = second @ torch.tanh(first @ inputs + first_bias) + second_bias
    if config.size_prior:
        logits = logits + torch.tensor([math.log(float(size)) if size > 0 else 0.0 for size in groups.sizes]).double()
    total = sum((torch.exp(logits[group]) for group in present), torch.zeros((), dtype=torch.float64))
    log_pi = {group: logits[group] - torch.log(total) for group in present}
    count = float(actions.counts.sum())
    surprise = {g: float(actions.counts[g]) - count * float(actions.behaviour[g]) for g in present}
    gain = sum((surprise[g] * importance[g] * log_pi[g] for g in present), torch.zeros(()).double())
    spread = -sum((torch.exp(log_pi[g]) * log_pi[g] for g in present), torch.zeros(()).double())
    if config.size_prior:  # H of the permutations, less log |Ψ|: each of a group's members has π / size
        spread = spread + sum(torch.exp(log_pi[g]) * math.log(float(groups.sizes[g])) for g in present)
    return advantage * gain / math.sqrt(count) + config.entropy_weight * spread


CASES = [
    (True, [3, 5, 2, 7], None),
    (False, [3, 5, 2, 7], None),
    (True, [3, 5, 0, 7], None),
    (False, [9, 1, 0, 0], None),
    (True, [3, 5, 2, 7], [0.01, 0.4, 0.29, 0.3]),  # sampled with another distribution, one group hardly ever
]


@pytest.mark.parametrize(("size_prior", "sizes", "behaviour"), CASES)
@pytest.mark.parametrize("advantage", [1.7, -0.6, 0.0])
def test_the_gradient_is_that_of_the_written_objective(
    size_prior: bool, sizes: list[int], behaviour: list[float] | None, advantage: float
) -> None:
    config = replace(CONFIG, size_prior=size_prior, scale_reward=False, entropy_weight=0.3)
    policy = scrambled(build(config, 4, 0))
    groups = groups_of(sizes)
    pi = policy.probabilities(groups)
    sampled_with = pi if behaviour is None else torch.tensor(behaviour)
    actions = episode_of(groups, sampled_with, torch.tensor([3.0, 4, 5, 0]) * (groups.sizes > 0))
    ratio = np.divide(pi.numpy(), sampled_with.numpy(), out=np.zeros(4), where=sampled_with.numpy() > 0)
    importance = np.minimum(ratio, MAX_IMPORTANCE)
    assert (ratio.max() > MAX_IMPORTANCE) == (behaviour is not None)

    weights = [weight.detach().double().requires_grad_() for weight in policy.network.parameters()]
    value = written_objective(weights, policy, actions, advantage, importance)
    assert policy.objective(actions, advantage).item() == pytest.approx(value.item(), abs=1e-5)
    expected = torch.autograd.grad(value, weights)

    policy.rewards.average = 0.0
    learn(policy, actions, advantage)  # leaves the gradient of the loss behind
    for weight, mine in zip(policy.network.parameters(), expected, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(-weight.grad.double(), mine, atol=1e-5, rtol=1e-4)

    for weight, slope in zip(weights, expected, strict=True):
        flat, step = weight.detach().view(-1), 1e-5
        for index in range(0, len(flat), 7):
            ends = []
            for sign in (1, -1):
                flat[index] += sign * step
                ends.append(written_objective(weights, policy, actions, advantage, importance).item())
                flat[index] -= sign * step
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slope.view(-1)[index]), abs=1e-7)


def test_exploration_does_not_bias_the_gradient() -> None:
    """Actions of another distribution, weighted by ρ, give on average the gradient that the policy's own would."""
    policy = scrambled(build(replace(CONFIG, entropy_weight=0), 4, 3))
    groups = groups_of([3, 5, 2, 7])
    pi = policy.probabilities(groups)
    mixed = 0.5 * pi + 0.5 * groups.sizes
    assert float((pi / mixed).max()) < MAX_IMPORTANCE and not torch.allclose(pi, mixed, atol=0.02)
    advantage = torch.tensor([0.3, -1, 2, 0.5])

    def gradient(behaviour: Tensor) -> Tensor:
        """Of the expected reward, exactly: every action in turn, as often as it comes."""
        total = torch.zeros(4, 16)
        for action, often in enumerate(behaviour.tolist()):
            one = episode_of(groups, behaviour, torch.eye(4)[action])
            objective = policy.objective(one, float(advantage[action]))
            total += often * torch.autograd.grad(objective, policy.network.layers[-1].weight)[0]
        return total

    torch.testing.assert_close(gradient(mixed), gradient(pi), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_moving_average_and_spread_of_the_rewards(scaled: bool, decay: float) -> None:
    config = replace(CONFIG, reward_average_decay=decay, scale_reward=scaled, min_reward_std=0.05)
    policy = build(config, 2, 0)
    rewards = np.random.default_rng(0).normal(0.3, 0.2, size=30)
    rewards[10:14] = rewards[10]
    average, deviation = rewards[0], None
    for value in rewards:
        advantage = value - average
        average = decay * average + (1 - decay) * value
        if not deviation:
            deviation = abs(advantage)
        deviation = decay * deviation + (1 - decay) * abs(advantage)
        expected = advantage / max(deviation, 0.05) if scaled else advantage
        assert policy._scaled(policy.rewards.centred(float(value))) == pytest.approx(expected, abs=1e-9)
        assert policy.rewards.average == pytest.approx(average) and policy.rewards.spread == pytest.approx(
            deviation, abs=1e-12
        )


def episode(counts: list[float], iteration: int = 0) -> Episode:
    groups = groups_of([1] * len(counts))
    return episode_of(groups, groups.sizes, torch.tensor(counts), iteration=iteration)


def test_without_a_discount_a_reward_updates_its_own_episode_only() -> None:
    policy = build(replace(CONFIG, reward_average_decay=0.0), 3, 0)
    for value in (0.5, -1.0, 0.25):
        before = policy.network.layers[-1].bias.clone()
        learn(policy, episode([1, 2, 0]), value)
        assert policy.past == [] and policy.rewards.average == pytest.approx(value)
        assert value == 0.5 or not torch.equal(policy.network.layers[-1].bias, before)


def slow_return_gradient(policy: Reinforce, episodes: list[Episode], rewards: list[float], discount: float) -> Tensor:
    """Σ_t (Σ_{t' ≥ t} γ^{t'−t} r_t') ∇ log π(a_t | ŝ_t, θ) of Eq. 9, for one θ."""
    total = torch.zeros(3)
    for t, taken in enumerate(episodes):
        discounted = sum(discount ** (later - t) * rewards[later] for later in range(t, len(rewards)))
        log_pi = policy.log_probabilities(taken.groups)
        count = float(taken.counts.sum())
        for group in range(3):
            (slope,) = torch.autograd.grad(log_pi[group], policy.network.layers[-1].bias, retain_graph=True)
            weight = (float(taken.counts[group]) - count * float(taken.behaviour[group])) / math.sqrt(count)
            importance = float(log_pi[group].detach().exp() / taken.behaviour[group])
            total += discounted * weight * importance * slope
    return total


@pytest.mark.parametrize("discount", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_all_rewards_together_give_the_discounted_returns_of_equation_9(discount: float) -> None:
    """θ stays where it is, so that the gradients of all updates can be added up; the average stays at 0."""
    config = replace(
        CONFIG, discount=discount, lr=0.0, reward_average_decay=1.0, scale_reward=False, entropy_weight=0.0
    )
    policy = scrambled(build(config, 3, 0))
    policy.rewards.average = 0.0
    rewards = [1.0, -2.0, 4.0, 0.5, -1.5]
    episodes, total = [episode([1, number, 2]) for number in range(len(rewards))], torch.zeros(3)
    for taken, value in zip(episodes, rewards, strict=True):
        learn(policy, taken, value)
        gradient = policy.network.layers[-1].bias.grad
        assert isinstance(gradient, Tensor)
        total -= gradient
    expected = slow_return_gradient(policy, episodes, rewards, discount)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-4)
    assert float(expected.norm()) > 0.1, "a test of something"


@pytest.mark.parametrize("discount", [0.0, 0.1, 0.5, 0.9])
def test_episodes_are_dropped_once_their_weight_is_small(discount: float) -> None:
    policy = build(replace(CONFIG, discount=discount), 3, 0)
    for number in range(100):
        learn(policy, episode([1, number, 0]), math.sin(number))
        kept = [int(past.counts[1]) for past in policy.past]
        needed = [t for t in range(number + 1) if discount ** (number + 1 - t) >= MIN_DISCOUNT_WEIGHT]
        assert kept == needed, "what the next reward will update"
    assert all(len(past.groups.members) == 0 for past in policy.past), "which the update does not need"


def test_a_later_reward_also_updates_the_earlier_episode() -> None:
    policy = build(replace(CONFIG, discount=1.0, entropy_weight=0, scale_reward=False), 3, 0)
    policy.rewards.average, groups = 0.0, groups_of([1, 1, 1])
    learn(policy, episode([9, 0, 0]), 0.0)
    start = policy.probabilities(groups)
    learn(policy, episode([3, 3, 3]), 1.0)
    change = policy.probabilities(groups) - start
    assert change[0] > 0 and change[1] < 0 and change[2] < 0


def test_after_a_drop_of_the_learning_rate_earlier_episodes_get_no_more_rewards() -> None:
    policy = Reinforce(
        replace(CONFIG, discount=1.0, num_groups=3), num_permutations=100, seed=0, history=ErrorHistory([20])
    )
    for iteration, expected in [(10, [10]), (20, [10, 20]), (30, [30]), (40, [30, 40])]:
        learn(policy, episode([1, 2, 3], iteration), 0.1)
        assert [past.iteration for past in policy.past] == expected


# learning


@pytest.mark.parametrize("actions", [10, 200])
def test_finds_the_better_group(actions: int) -> None:
    """One group's fraction of the actions is the reward, with a little noise; over 20 seeds."""
    preferences = {}
    for seed in range(20):
        policy, generator, better = build(CONFIG, 10, seed), torch.Generator().manual_seed(seed), seed % 10
        for _ in range(200):
            taken = act(policy, TEN, actions, generator)
            noise = 0.01 * float(torch.randn((), generator=generator))
            learn(policy, taken, float(taken.counts[better]) / actions + noise)
        preferences[seed] = float(policy.probabilities(TEN)[better])
    assert min(preferences.values()) > 0.9, preferences


@pytest.mark.parametrize("actions", [10, 200])
def test_a_constant_reward_leaves_the_entropy_high(actions: int) -> None:
    for seed in range(5):
        policy, generator = build(CONFIG, 10, seed), torch.Generator().manual_seed(seed)
        for _ in range(200):
            learn(policy, act(policy, TEN, actions, generator), 0.02)
        assert entropy(policy.log_probabilities(TEN)).item() >= 0.95 * math.log(10)


def test_the_entropy_brings_a_narrow_policy_back() -> None:
    policy = build(CONFIG, 10, 0)
    with torch.no_grad():
        policy.network.layers[-1].bias[4] = 3.0
    generator = torch.Generator().manual_seed(0)
    before = entropy(policy.log_probabilities(TEN)).item()
    for _ in range(200):
        learn(policy, act(policy, TEN, 10, generator), 0.02)
    assert before < 0.6 * math.log(10) < 0.95 * math.log(10) < entropy(policy.log_probabilities(TEN)).item()


# the checkpoint


@pytest.mark.parametrize("discount", [0.0, 0.8])
def test_resumes_bit_by_bit_from_a_checkpoint(discount: float, saved_and_loaded: Reload) -> None:
    config = replace(CONFIG, discount=discount)
    policy, generator = build(config, 10, 3), torch.Generator().manual_seed(0)
    for step in range(7):
        learn(policy, act(policy, TEN, 10, generator), math.sin(step))
    resumed = build(config, 10, 99)
    resumed.load_state_dict(saved_and_loaded(policy.state_dict()))
    assert len(resumed.past) == len(policy.past) == (7 if discount else 0)
    for step in range(7):
        taken = act(policy, TEN, 10, generator)
        learn(policy, taken, math.cos(step))
        learn(resumed, taken, math.cos(step))
        assert torch.equal(policy.probabilities(TEN), resumed.probabilities(TEN))
        assert (policy.rewards.average, policy.rewards.spread) == (
            resumed.rewards.average,
            resumed.rewards.spread,
        )
    for mine, theirs in zip(policy.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_new_policy_can_be_saved(saved_and_loaded: Reload) -> None:
    resumed = build(CONFIG, 10, 99)
    resumed.load_state_dict(saved_and_loaded(build(CONFIG, 10, 3).state_dict()))
    assert resumed.rewards.average is None and resumed.past == []


def test_without_a_signal_the_permutations_stay_equally_likely() -> None:
    """Noise below `min_reward_std`, groups of very different sizes: the entropy must not favour the small ones."""
    groups = groups_of([30, 20, 15, 10, 8, 6, 5, 3, 2, 1])
    for seed in range(5):
        policy, source = build(CONFIG, 10, seed), torch.Generator().manual_seed(seed)
        for _ in range(200):
            noise = 1e-4 * float(torch.randn((), generator=source))
            learn(policy, act(policy, groups, 200, source), 0.5 + noise)
        pi = policy.probabilities(groups)
        assert float((pi * (pi / groups.sizes).log()).sum()) < 0.1


# the reward (appendix E)


def reward(points: list[tuple[int, float]]) -> float | None:
    """The reward of the last error."""
    history = ErrorHistory()
    for iteration, error in points[:-1]:
        history.add(iteration, error)
    iteration, error = points[-1]
    baseline = history.baseline(iteration)
    return None if baseline is None else baseline - error


spacings = st.lists(st.integers(1, 10_000), min_size=3, max_size=6)


@given(st.integers(0, 10**6), spacings, st.floats(-1, 1), st.floats(-1e-3, 1e-3))
@settings(max_examples=100, deadline=None)
def test_no_reward_on_a_straight_line(begin: int, steps: list[int], intercept: float, slope: float) -> None:
    iterations = begin + np.cumsum(steps)
    points = [(int(u), intercept + slope * int(u)) for u in iterations]
    assert reward(points) == pytest.approx(0, abs=1e-8)


@given(spacings, st.floats(0.1, 1), st.floats(-1e-4, 0), st.floats(1e-3, 0.1))
@settings(max_examples=50, deadline=None)
def test_a_faster_fall_is_rewarded(steps: list[int], intercept: float, slope: float, more: float) -> None:
    points = [(int(u), intercept + slope * int(u)) for u in np.cumsum(steps)]
    (last, error), before = points[-1], points[:-1]
    assert reward([*before, (last, error - more)]) == pytest.approx(more, abs=1e-6)
    assert reward([*before, (last, error + more)]) == pytest.approx(-more, abs=1e-6)


def test_equal_steps_give_the_papers_formula() -> None:
    history = ErrorHistory()
    history.add(100, 0.9)
    history.add(200, 0.8)
    assert history.baseline(300) == pytest.approx(2 * 0.8 - 0.9)
    assert history.baseline(210) == pytest.approx(0.79), "a tenth of the way, a tenth of the fall"


def test_no_baseline_before_two_errors() -> None:
    history = ErrorHistory()
    assert history.baseline(10) is None
    history.add(0, 0.9)
    assert history.baseline(10) is None
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)


def test_a_drop_of_the_learning_rate_starts_a_new_line() -> None:
    """The error at the milestone itself belongs to the higher learning rate."""
    history = ErrorHistory(milestones=[20])
    history.add(0, 0.9)
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)
    assert history.baseline(21) is None
    history.add(20, 0.3)
    assert history.baseline(30) is None
    history.add(30, 0.2)
    assert history.baseline(40) is None
    history.add(40, 0.15)
    assert history.baseline(50) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("earlier", "later", "same"), [(0, 19, True), (0, 20, True), (19, 21, False), (20, 21, False), (21, 90, True)]
)
def test_which_iterations_are_comparable(earlier: int, later: int, same: bool) -> None:
    assert ErrorHistory([20]).comparable(earlier, later) == same
    assert ErrorHistory().comparable(earlier, later)


def test_only_the_last_two_errors_count() -> None:
    assert reward([(0, 0.1), (5, 0.2), (10, 0.9), (20, 0.8), (30, 0.7)]) == pytest.approx(0)


def test_two_errors_at_one_iteration_are_one() -> None:
    history = ErrorHistory()
    for iteration, error in [(0, 0.9), (10, 0.5), (10, 0.8)]:
        history.add(iteration, error)
    assert history.baseline(20) == pytest.approx(0.7)
    history = ErrorHistory()
    history.add(10, 0.5)
    history.add(10, 0.5)
    assert history.baseline(20) is None
