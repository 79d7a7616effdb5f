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
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import MAX_IMPORTANCE, Actions, ErrorHistory, PolicyNetwork, Reinforce, entropy

CONFIG = PolicyConfig()
Reload = Callable[[dict[str, Any]], dict[str, Any]]


def groups_of(sizes: list[int], medians: list[float] | None = None) -> Groups:
    members = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    medians = medians or np.linspace(0.6, 1.8, len(sizes)).tolist()
    return Groups(members, torch.tensor(sizes) / sum(sizes), torch.tensor(medians))


TEN = groups_of([10] * 10)


def act(policy: Reinforce, groups: Groups, count: int, generator: torch.Generator) -> Actions:
    behaviour = policy.probabilities(groups)
    drawn = torch.multinomial(behaviour, count, replacement=True, generator=generator)
    return Actions(groups, behaviour, torch.bincount(drawn, minlength=len(behaviour)).float())


def scrambled(policy: Reinforce, seed: int = 0) -> Reinforce:
    """Weights anywhere, the last layer's too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return policy


# the reward


def reward(points: list[tuple[int, float]]) -> float | None:
    """Of the last error."""
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
def test_a_reward_for_a_faster_fall(steps: list[int], intercept: float, slope: float, more: float) -> None:
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


def test_no_reward_before_two_errors() -> None:
    history = ErrorHistory()
    assert history.baseline(10) is None
    history.add(0, 0.9)
    assert history.baseline(10) is None
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)
    history.restart()
    assert history.baseline(20) is None
    history.add(20, 0.3)
    assert history.baseline(30) is None
    history.add(30, 0.25)
    assert history.baseline(40) == pytest.approx(0.2)


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


# the policy


def test_the_network_of_the_paper() -> None:
    network = PolicyNetwork(10)
    assert [tuple(weight.shape) for weight in network.parameters()] == [(16, 20), (16,), (10, 16), (10,)]


def test_the_network_sees_sizes_and_medians() -> None:
    policy = scrambled(Reinforce(CONFIG, 3, 0))
    one = policy.probabilities(groups_of([2, 3, 5]))
    assert not torch.allclose(one, policy.probabilities(groups_of([2, 3, 5], [0.5, 0.6, 1.0])), atol=1e-3)
    plain = scrambled(Reinforce(replace(CONFIG, size_prior=False), 3, 0))
    assert not torch.allclose(
        plain.probabilities(groups_of([2, 3, 5])), plain.probabilities(groups_of([5, 3, 2])), atol=1e-3
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_new_policy_draws_every_permutation_equally_often(seed: int) -> None:
    groups = groups_of([1, 20, 70, 9, 0])
    torch.testing.assert_close(Reinforce(CONFIG, 5, seed).probabilities(groups), groups.sizes)


def test_or_without_the_size_prior_every_group() -> None:
    policy = Reinforce(replace(CONFIG, size_prior=False), 5, 0)
    expected = torch.tensor([0.25, 0.25, 0.25, 0.25, 0])
    torch.testing.assert_close(policy.probabilities(groups_of([1, 20, 70, 9, 0])), expected)


@pytest.mark.parametrize("size_prior", [True, False])
def test_empty_groups_are_never_drawn_and_do_no_harm(size_prior: bool) -> None:
    policy = scrambled(Reinforce(replace(CONFIG, size_prior=size_prior), 4, 0))
    groups, generator = groups_of([3, 0, 5, 0]), torch.Generator().manual_seed(0)
    for step in range(20):
        policy.learn(act(policy, groups, 5, generator), math.sin(step))
        probabilities = policy.probabilities(groups)
        assert (probabilities[[1, 3]] == 0).all() and float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    assert all(weight.isfinite().all() for weight in policy.network.parameters())


def test_seeded_and_apart_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (Reinforce(CONFIG, 10, seed).network.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["layers.0.weight"], other["layers.0.weight"])


@pytest.mark.parametrize("probabilities", [[0.25] * 4, [1.0, 0, 0], [0.5, 0.3, 0.2, 0]])
def test_entropy(probabilities: list[float]) -> None:
    expected = -sum(p * math.log(p) for p in probabilities if p)
    assert float(entropy(torch.tensor(probabilities).log())) == pytest.approx(expected, abs=1e-6)


# the update


def written_objective(
    weights: list[Tensor], policy: Reinforce, actions: Actions, advantage: float, importance: np.ndarray
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
    if config.size_prior:  # H of the permutations drawn, less log |Ψ|: each of a group's members has π / size
        spread = spread + sum(torch.exp(log_pi[g]) * math.log(float(groups.sizes[g])) for g in present)
    return advantage * gain / math.sqrt(count) + config.entropy_weight * spread


CASES = [
    (True, [3, 5, 2, 7], None),
    (False, [3, 5, 2, 7], None),
    (True, [3, 5, 0, 7], None),
    (False, [9, 1, 0, 0], None),
    (True, [3, 5, 2, 7], [0.01, 0.4, 0.29, 0.3]),  # drawn by another distribution, one group hardly ever
]


@pytest.mark.parametrize(("size_prior", "sizes", "behaviour"), CASES)
@pytest.mark.parametrize("advantage", [1.7, -0.6, 0.0])
def test_the_gradient_is_that_of_the_written_objective(
    size_prior: bool, sizes: list[int], behaviour: list[float] | None, advantage: float
) -> None:
    config = replace(CONFIG, size_prior=size_prior, scale_reward=False, entropy_weight=0.3)
    policy = scrambled(Reinforce(config, 4, 0))
    groups = groups_of(sizes)
    pi = policy.probabilities(groups)
    drawn_with = pi if behaviour is None else torch.tensor(behaviour)
    actions = Actions(groups, drawn_with, torch.tensor([3.0, 4, 5, 0]) * (groups.sizes > 0))
    ratio = np.divide(pi.numpy(), drawn_with.numpy(), out=np.zeros(4), where=drawn_with.numpy() > 0)
    importance = np.minimum(ratio, MAX_IMPORTANCE)
    assert (ratio.max() > MAX_IMPORTANCE) == (behaviour is not None)

    weights = [weight.detach().double().requires_grad_() for weight in policy.network.parameters()]
    value = written_objective(weights, policy, actions, advantage, importance)
    assert policy.objective(actions, advantage).item() == pytest.approx(value.item(), abs=1e-5)
    expected = torch.autograd.grad(value, weights)

    policy.returns.average = 0.0
    policy.learn(actions, advantage)  # leaves the gradient of the loss behind
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
    policy = scrambled(Reinforce(replace(CONFIG, entropy_weight=0), 4, 3))
    groups = groups_of([3, 5, 2, 7])
    pi = policy.probabilities(groups)
    mixed = 0.5 * pi + 0.5 * groups.sizes
    assert float((pi / mixed).max()) < MAX_IMPORTANCE and not torch.allclose(pi, mixed, atol=0.02)
    worth = torch.tensor([0.3, -1, 2, 0.5])

    def gradient(behaviour: Tensor) -> Tensor:
        """Of the expected reward, exactly: every action in turn, as often as it comes."""
        total = torch.zeros(4, 16)
        for action, often in enumerate(behaviour.tolist()):
            one = Actions(groups, behaviour, torch.eye(4)[action])
            objective = policy.objective(one, float(worth[action]))
            total += often * torch.autograd.grad(objective, policy.network.layers[-1].weight)[0]
        return total

    torch.testing.assert_close(gradient(mixed), gradient(pi), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_moving_average_and_deviation(scaled: bool, decay: float) -> None:
    config = replace(CONFIG, average_decay=decay, scale_reward=scaled, least_deviation=0.05)
    policy = Reinforce(config, 2, 0)
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
        assert policy._advantage(float(value)) == pytest.approx(expected, abs=1e-9)
        assert policy.returns.average == pytest.approx(average) and policy.returns.deviation == pytest.approx(
            deviation, abs=1e-12
        )


def episode(counts: list[float]) -> Actions:
    groups = groups_of([1] * len(counts))
    return Actions(groups, groups.sizes, torch.tensor(counts))


def test_without_a_discount_every_reward_counts_at_once() -> None:
    policy = Reinforce(replace(CONFIG, average_decay=0.0, horizon=3), 3, 0)
    for value in (0.5, -1.0, 0.25):
        before = policy.network.layers[-1].bias.clone()
        policy.learn(episode([1, 2, 0]), value)
        assert policy.waiting == [] and policy.returns.average == pytest.approx(value)
        assert value == 0.5 or not torch.equal(policy.network.layers[-1].bias, before)


@pytest.mark.parametrize(("discount", "horizon"), [(0.5, 3), (1.0, 2), (0.9, 1), (0.25, 4)])
def test_the_return_is_a_discounted_sum_that_the_update_waits_for(discount: float, horizon: int) -> None:
    # with no memory, the moving average is the last return
    config = replace(CONFIG, discount=discount, horizon=horizon, average_decay=0.0, scale_reward=False)
    policy = Reinforce(config, 3, 0)
    rewards = [1.0, -2.0, 4.0, 8.0, -16.0, 32.0, 64.0]
    for now, value in enumerate(rewards):
        before = [weight.clone() for weight in policy.network.parameters()]
        policy.learn(episode([1, now, 0]), value)
        first = now - horizon + 1
        assert [float(actions.counts[1]) for actions, _ in policy.waiting] == list(range(max(first + 1, 0), now + 1))
        assert all(rest == rewards[now - len(rest) + 1 : now + 1] for _, rest in policy.waiting)
        changed = any(not torch.equal(a, b) for a, b in zip(before, policy.network.parameters(), strict=True))
        if first < 0:
            assert policy.returns.average is None and not changed
            continue
        expected = sum(discount**step * later for step, later in enumerate(rewards[first : now + 1]))
        assert policy.returns.average == pytest.approx(expected)
        assert changed or first == 0, "the first return only starts the average"


def test_the_late_update_is_for_the_actions_of_then() -> None:
    policy = Reinforce(replace(CONFIG, discount=1.0, horizon=2, entropy_weight=0), 3, 0)
    policy.returns.average, groups = 0.0, groups_of([1, 1, 1])
    start = policy.probabilities(groups)
    policy.learn(episode([9, 0, 0]), 1.0)
    policy.learn(episode([0, 0, 9]), 1.0)
    change = policy.probabilities(groups) - start
    assert change[0] > 0 > change[2]


# does it learn


@pytest.mark.parametrize("actions", [10, 200])
def test_finds_the_better_group(actions: int) -> None:
    """One group's share of the actions is the reward, with a little noise; over 20 seeds."""
    found = {}
    for seed in range(20):
        policy, generator, better = Reinforce(CONFIG, 10, seed), torch.Generator().manual_seed(seed), seed % 10
        for _ in range(200):
            taken = act(policy, TEN, actions, generator)
            noise = 0.01 * float(torch.randn((), generator=generator))
            policy.learn(taken, float(taken.counts[better]) / actions + noise)
        found[seed] = float(policy.probabilities(TEN)[better])
    assert min(found.values()) > 0.9, found


@pytest.mark.parametrize("actions", [10, 200])
def test_a_constant_reward_leaves_the_entropy_high(actions: int) -> None:
    for seed in range(5):
        policy, generator = Reinforce(CONFIG, 10, seed), torch.Generator().manual_seed(seed)
        for _ in range(200):
            policy.learn(act(policy, TEN, actions, generator), 0.02)
        assert entropy(policy.log_probabilities(TEN)).item() >= 0.95 * math.log(10)


def test_the_entropy_brings_a_narrow_policy_back() -> None:
    policy = Reinforce(CONFIG, 10, 0)
    with torch.no_grad():
        policy.network.layers[-1].bias[4] = 3.0
    generator = torch.Generator().manual_seed(0)
    before = entropy(policy.log_probabilities(TEN)).item()
    for _ in range(200):
        policy.learn(act(policy, TEN, 10, generator), 0.02)
    assert before < 0.6 * math.log(10) < 0.95 * math.log(10) < entropy(policy.log_probabilities(TEN)).item()


# the checkpoint


@pytest.mark.parametrize("discount", [0.0, 0.8])
def test_goes_on_bit_by_bit_from_a_checkpoint(discount: float, saved_and_loaded: Reload) -> None:
    config = replace(CONFIG, discount=discount)
    policy, generator = Reinforce(config, 10, 3), torch.Generator().manual_seed(0)
    for step in range(7):
        policy.learn(act(policy, TEN, 10, generator), math.sin(step))
    resumed = Reinforce(config, 10, 99)
    resumed.load_state_dict(saved_and_loaded(policy.state_dict()))
    assert len(resumed.waiting) == len(policy.waiting) == (2 if discount else 0)
    for step in range(7):
        taken = act(policy, TEN, 10, generator)
        policy.learn(taken, math.cos(step))
        resumed.learn(taken, math.cos(step))
        assert torch.equal(policy.probabilities(TEN), resumed.probabilities(TEN))
        assert (policy.returns.average, policy.returns.deviation) == (
            resumed.returns.average,
            resumed.returns.deviation,
        )
    for mine, theirs in zip(policy.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_new_policy_can_be_saved(saved_and_loaded: Reload) -> None:
    resumed = Reinforce(CONFIG, 10, 99)
    resumed.load_state_dict(saved_and_loaded(Reinforce(CONFIG, 10, 3).state_dict()))
    assert resumed.returns.average is None and resumed.waiting == []


def test_without_a_signal_the_permutations_stay_equally_likely() -> None:
    """Noise below `least_deviation`, groups of very different sizes: the entropy must not favour the small ones."""
    groups = groups_of([30, 20, 15, 10, 8, 6, 5, 3, 2, 1])
    for seed in range(5):
        policy, source = Reinforce(CONFIG, 10, seed), torch.Generator().manual_seed(seed)
        for _ in range(200):
            noise = 1e-4 * float(torch.randn((), generator=source))
            policy.learn(act(policy, groups, 200, source), 0.5 + noise)
        pi = policy.probabilities(groups)
        assert float((pi * (pi / groups.sizes).log()).sum()) < 0.1


def test_without_a_baseline_there_is_nothing_to_learn() -> None:
    policy = Reinforce(CONFIG, 10, 0)
    policy.learn(Actions(TEN, TEN.sizes, torch.arange(10.0)), None)
    assert policy.returns.average is None and policy.waiting == []
