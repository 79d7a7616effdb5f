import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import helmert
from scipy.stats import kstest
from sklearn.cluster import KMeans
from torch import Tensor
from torch.distributions import MultivariateNormal

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, entropy, group_permutations
from unshuffle.policy.reinforce import (
    MAX_IMPORTANCE,
    MIN_DISCOUNT_WEIGHT,
    Episode,
    ErrorHistory,
    PolicyNetwork,
    Reinforce,
)
from unshuffle.policy.sampler import SampleCounts

CONFIG = PolicyConfig()
BATCH = replace(CONFIG, action="batch", exploration=0.0)
"""Algorithm 1: actions of π itself."""
Reload = Callable[[dict[str, Any]], dict[str, Any]]


def groups_of(sizes: list[int], medians: list[float] | None = None, labels: list[int] | None = None) -> Groups:
    members = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    medians = medians or np.linspace(0.6, 1.8, len(sizes)).tolist()
    return Groups(
        members,
        torch.tensor(sizes) / sum(sizes),
        torch.tensor(medians),
        torch.tensor(labels if labels is not None else range(len(sizes))),
    )


TEN = groups_of([10] * 10)


def build(config: PolicyConfig, num_groups: int, seed: int) -> Reinforce:
    return Reinforce(replace(config, num_groups=num_groups), 100, seed, ErrorHistory())


def begin(policy: Reinforce, groups: Groups, iteration: int = 0) -> None:
    """Begin an episode with these groups."""
    policy.groups = groups
    policy.act()
    policy.vary(groups, iteration)


def finished(
    policy: Reinforce, groups: Groups, batches: list[int], reward: float | None = None, iteration: int = 0
) -> Episode:
    """The episode that has begun, after batches of one group each."""
    sampled = SampleCounts(len(groups.members), len(groups.sizes))
    for group in batches:
        members = (groups.members == group).nonzero().flatten()
        sampled.add(members[torch.arange(6) % len(members)].view(3, 2))
    sampled.reduce(lambda own: own)
    counts = policy.grouping.counts(groups, sampled)
    action = policy.action(groups, sampled)
    return Episode(groups, policy.preferred, policy.behaviour, counts, action, iteration, error=0.0, baseline=reward)


def act(policy: Reinforce, groups: Groups, iteration: int, generator: torch.Generator, batches: int = 10) -> Episode:
    """A whole episode; each batch of one group, also where the action is the mixture that they come from."""
    begin(policy, groups, iteration)
    sampled = torch.multinomial(policy.behaviour, batches, replacement=True, generator=generator)
    return finished(policy, groups, sampled.tolist(), iteration=iteration)


def learn(policy: Reinforce, episode: Episode, reward: float) -> None:
    policy.learn(replace(episode, baseline=reward))


def scrambled(policy: Reinforce, seed: int = 0) -> Reinforce:
    """Weights anywhere, the last layer's too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return policy


def inputs_of(policy: Reinforce, groups: Groups) -> Tensor:
    """What the network sees of the groups."""
    seen: list[Tensor] = []
    with policy.network.register_forward_pre_hook(lambda _, inputs: seen.append(*inputs)):
        policy.probabilities(groups)
    (summary,) = seen
    return summary


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


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("action", ["mixture", "batch"])
@pytest.mark.parametrize("size_prior", [True, False])
def test_empty_groups_are_never_sampled_and_do_no_harm(size_prior: bool, action: str, inverse: bool) -> None:
    config = replace(CONFIG, size_prior=size_prior, action=action, inverse=inverse)  # type: ignore[arg-type]
    policy = scrambled(build(config, 4, 0))
    groups, generator = groups_of([3, 0, 5, 0]), torch.Generator().manual_seed(0)
    for step in range(20):
        learn(policy, act(policy, groups, step, generator), math.sin(step))
        for probabilities in (policy.probabilities(groups), policy.target(groups), policy.behaviour):
            assert (probabilities[[1, 3]] == 0).all() and float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    assert all(weight.isfinite().all() for weight in policy.network.parameters())


def test_seeded_and_apart_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (build(CONFIG, 10, seed).network.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["layers.0.weight"], other["layers.0.weight"])


# what the network sees


def test_without_sorting_the_network_sees_the_clusters_of_k_means() -> None:
    """Their numbers of permutations and medians, in k-means' own order (Eq. 10)."""
    state = torch.tensor([1.4, 0.6, 1.8, 1.0])[torch.arange(30) % 4, None] + 0.05 * torch.rand(
        30, 5, generator=torch.Generator().manual_seed(0)
    )
    for seed in range(4):
        labels = KMeans(4, n_init=3, random_state=seed).fit_predict(state.double().numpy())
        expected = [
            [float((labels == label).sum()), float(np.median(state.double().numpy()[labels == label]))]
            for label in range(4)
        ]
        policy = Reinforce(replace(CONFIG, num_groups=4, sorted_groups=False), 30, 0, ErrorHistory())
        np.testing.assert_allclose(inputs_of(policy, group_permutations(state, 4, seed)), expected, rtol=1e-6)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1], [1, 2, 3, 0]])
def test_other_labels_of_k_means_permute_the_inputs_and_the_logits(order: list[int]) -> None:
    """`order` has the label of each group; one of them is empty."""
    sizes, medians = [30, 20, 50, 0], [0.6, 0.9, 1.2, 1.0]
    policy = scrambled(build(replace(CONFIG, sorted_groups=False, size_prior=False), 4, 0))
    groups = groups_of(sizes, medians, order)
    expected = torch.zeros(4, 2)
    for size, median, label in zip(sizes, medians, order, strict=True):
        expected[label] = torch.tensor([size, median])
    torch.testing.assert_close(inputs_of(policy, groups), expected)
    logits = policy.network(expected).detach()
    weights = [math.exp(float(logits[label])) if size else 0.0 for size, label in zip(sizes, order, strict=True)]
    np.testing.assert_allclose(policy.probabilities(groups), np.array(weights) / sum(weights), rtol=1e-4)


def test_with_sorting_the_labels_of_k_means_do_not_matter() -> None:
    policy = scrambled(build(replace(CONFIG, sorted_groups=True), 4, 0))
    one, other = groups_of([30, 20, 50, 0]), groups_of([30, 20, 50, 0], labels=[2, 3, 0, 1])
    assert torch.equal(inputs_of(policy, other), torch.stack([one.sizes, one.medians], dim=1))
    assert torch.equal(policy.probabilities(one), policy.probabilities(other))


# the inverse


@pytest.mark.parametrize("size_prior", [True, False])
@given(counts=st.lists(st.integers(0, 50), min_size=5, max_size=5).filter(any), seed=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_the_inverse_of_an_untrained_policy_is_itself(size_prior: bool, counts: list[int], seed: int) -> None:
    plain = build(replace(CONFIG, size_prior=size_prior), 5, seed)
    inverse = build(replace(CONFIG, size_prior=size_prior, inverse=True), 5, seed)
    groups = groups_of(counts)
    torch.testing.assert_close(inverse.target(groups), plain.probabilities(groups), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size_prior", [True, False])
def test_the_inverse_is_proportional_to_the_squared_untrained_probabilities_over_pi(size_prior: bool) -> None:
    config = replace(CONFIG, size_prior=size_prior, inverse=True, inverse_floor=0.02, exploration=0.0)
    policy, groups = build(config, 5, 0), groups_of([50, 20, 20, 10, 0])
    with torch.no_grad():
        policy.network.layers[-1].bias.copy_(torch.tensor([1.0, 0.0, -1.0, -6.0, 3.0]))
    untrained = [0.5, 0.2, 0.2, 0.1] if size_prior else [0.25] * 4
    weights = [p * math.exp(logit) for p, logit in zip(untrained, [1.0, 0.0, -1.0, -6.0], strict=True)]
    pi = [weight / sum(weights) for weight in weights]
    assert pi[3] < 0.02 * untrained[3] and all(own > 0.02 * p for own, p in zip(pi[:3], untrained, strict=False))
    inverse = [p**2 / max(own, 0.02 * p) for own, p in zip(pi, untrained, strict=True)]
    policy.groups = groups
    policy.act()
    np.testing.assert_allclose(policy.behaviour, np.array([*inverse, 0]) / sum(inverse), rtol=1e-4)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_the_inverse_learns_as_the_policy_does_and_avoids_what_it_prefers(action: str) -> None:
    config = replace(CONFIG, action=action, inverse=True)  # type: ignore[arg-type]
    policy, groups, generator = build(config, 4, 0), groups_of([25] * 4), torch.Generator().manual_seed(0)
    for iteration in range(100):
        taken = act(policy, groups, iteration, generator)
        learn(policy, taken, float(taken.behaviour[0] if action == "mixture" else taken.counts[0] / 60))
    policy.act()
    assert policy.probabilities(groups).argmax() == 0 and float(policy.probabilities(groups)[0]) > 0.4
    assert policy.preferred.argmin() == 0 and policy.preferred[0] < 0.2


# the mixture of an episode


@pytest.mark.parametrize("sizes", [[25, 25, 25, 25], [60, 0, 39, 1], [100, 0, 0, 0]])
@pytest.mark.parametrize("inverse", [False, True])
def test_the_noise_changes_the_logits_of_the_groups(sizes: list[int], inverse: bool) -> None:
    """Group by group: the preferred weight times e^ε, then the exploration."""
    config = replace(CONFIG, inverse=inverse, exploration=0.2)
    policy, groups = scrambled(build(config, 4, 0)), groups_of(sizes)
    begin(policy, groups, iteration=7)
    weights = [
        float(p) * math.exp(noise) for p, noise in zip(policy.target(groups), policy.noise.tolist(), strict=True)
    ]
    expected = [0.8 * weight / sum(weights) + 0.2 * size / 100 for weight, size in zip(weights, sizes, strict=True)]
    np.testing.assert_allclose(policy.behaviour, expected, atol=1e-6)
    preferred = [0.8 * float(p) + 0.2 * size / 100 for p, size in zip(policy.target(groups), sizes, strict=True)]
    np.testing.assert_allclose(policy.preferred, preferred, atol=1e-6)


@pytest.mark.parametrize("sizes", [[25, 25, 25, 25], [60, 0, 39, 1], [100, 0, 0, 0]])
def test_the_noise_is_centred_and_gaussian(sizes: list[int]) -> None:
    """Without the common part, one of n independent values keeps 1 − 1/n of its variance."""
    policy, groups, noises = build(replace(CONFIG, mixture_noise=0.7), 4, 0), groups_of(sizes), []
    for iteration in range(2000):
        begin(policy, groups, iteration)
        noises.append(policy.noise)
    noise, present = torch.stack(noises).double(), groups.sizes > 0
    assert (noise[:, ~present] == 0).all() and noise.sum(dim=1).abs().max() < 1e-5
    count = int(present.sum())
    std = 0.7 * math.sqrt(1 - 1 / count)
    for values in noise[:, present].T if count > 1 else []:
        assert kstest(values / std, "norm").pvalue > 0.001
    covariance = 0.7**2 * (torch.eye(count) - 1 / count)
    np.testing.assert_allclose(np.cov(noise[:, present].T).reshape(count, count), covariance, atol=0.05)


def test_the_noise_depends_on_the_seed_and_the_iteration() -> None:
    def noise(seed: int, iteration: int) -> Tensor:
        policy = build(CONFIG, 10, seed)
        begin(policy, TEN, iteration)
        return policy.noise

    before = torch.get_rng_state()
    first, again, other_seed, later = noise(1, 50), noise(1, 50), noise(2, 50), noise(1, 100)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    assert torch.equal(first, again)
    assert not torch.allclose(first, other_seed) and not torch.allclose(first, later)


def test_one_group_for_each_batch_leaves_the_probabilities_alone() -> None:
    policy = scrambled(build(BATCH, 10, 0))
    begin(policy, TEN)
    assert policy.behaviour is policy.preferred and not policy.noise.any()


# the update


def slow_log_pi(weights: list[Tensor], policy: Reinforce, groups: Groups) -> dict[int, Tensor]:
    """log π_θ(c | ŝ) of each group with members, by hand, in float64."""
    first, first_bias, second, second_bias = weights
    sizes = groups.sizes.double().tolist()
    present = [group for group, size in enumerate(sizes) if size > 0]
    inputs = [x for pair in zip(sizes, groups.medians.double().tolist(), strict=True) for x in pair]
    logits = second @ torch.tanh(first @ torch.tensor(inputs).double() + first_bias) + second_bias
    prior = {group: math.log(sizes[group]) if policy.config.size_prior else 0.0 for group in present}
    total = torch.log(torch.stack([torch.exp(logits[group] + prior[group]) for group in present]).sum())
    return {group: logits[group] + prior[group] - total for group in present}


def slow_entropy(log_pi: dict[int, Tensor], policy: Reinforce, groups: Groups) -> Tensor:
    """H of the groups; with the size prior that of the permutations, each with π / |c|, less log |Ψ|."""
    each = groups.sizes.double().tolist() if policy.config.size_prior else [1.0] * len(groups.sizes)
    return -torch.stack([torch.exp(own) * (own - math.log(each[group])) for group, own in log_pi.items()]).sum()


def check_gradient(policy: Reinforce, taken: Episode, advantage: float, objective: Callable[..., Tensor]) -> None:
    """Compare the update with the gradient of an objective of log π, and that with finite differences."""

    def value(weights: list[Tensor]) -> Tensor:
        log_pi = slow_log_pi(weights, policy, taken.groups)
        bonus = policy.config.entropy_weight * slow_entropy(log_pi, policy, taken.groups)
        return advantage * objective(log_pi) + bonus

    weights = [weight.detach().double().requires_grad_() for weight in policy.network.parameters()]
    expected = torch.autograd.grad(value(weights), weights)
    policy.rewards.average = 0.3
    learn(policy, taken, 0.3 + advantage)  # leaves the gradient of the loss behind
    for weight, slope in zip(policy.network.parameters(), expected, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(-weight.grad.double(), slope, atol=1e-5, rtol=1e-4)
    for weight, slope in zip(weights, expected, strict=True):
        flat, step = weight.detach().view(-1), 1e-5
        for index in range(0, len(flat), 7):
            ends = []
            for sign in (1, -1):
                flat[index] += sign * step
                ends.append(value(weights).item())
                flat[index] -= sign * step
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slope.view(-1)[index]), abs=1e-6)


GRADIENTS = replace(CONFIG, scale_reward=False, entropy_weight=0.3, sorted_groups=True)
CASES = [(True, [3, 5, 2, 7]), (False, [3, 5, 2, 7]), (True, [3, 5, 0, 7]), (False, [9, 1, 0, 0])]


@pytest.mark.parametrize(("size_prior", "sizes"), CASES)
@pytest.mark.parametrize("advantage", [1.7, -0.6, 0.0])
def test_one_group_per_batch_is_updated_by_equation_9(size_prior: bool, sizes: list[int], advantage: float) -> None:
    """(r − moving average) · Σ_k log π(a_k | ŝ) over the K batches, plus the entropy (section 4.1)."""
    config = replace(GRADIENTS, action="batch", size_prior=size_prior, exploration=0.0)
    policy, groups = scrambled(build(config, 4, 0)), groups_of(sizes)
    actions = [action for action in [1, 0, 0, 3, 1, 1, 2, 0, 1, 3, 3, 1] if sizes[action] > 0]
    begin(policy, groups)

    def equation_9(log_pi: dict[int, Tensor]) -> Tensor:
        return torch.stack([log_pi[action] for action in actions]).sum()

    check_gradient(policy, finished(policy, groups, actions), advantage, equation_9)


@pytest.mark.parametrize(("exploration", "inverse"), [(0.5, False), (0.1, True)])
def test_actions_of_another_distribution_are_weighted(exploration: float, inverse: bool) -> None:
    """By π over the probability with which each was sampled, at most `MAX_IMPORTANCE`."""
    config = replace(GRADIENTS, action="batch", exploration=exploration, inverse=inverse)
    policy, groups, actions = scrambled(build(config, 4, 0)), groups_of([3, 5, 2, 7]), [1, 0, 0, 3, 1, 2]
    with torch.no_grad():
        policy.network.layers[-1].bias[1] += 4
    pi = policy.probabilities(groups).double().tolist()
    begin(policy, groups)
    ratios = [own / sampled for own, sampled in zip(pi, policy.behaviour.tolist(), strict=True)]
    assert (max(ratios) > MAX_IMPORTANCE) == inverse and max(ratios) > 1.2, "a test of something"

    def weighted(log_pi: dict[int, Tensor]) -> Tensor:
        return torch.stack([min(ratios[action], MAX_IMPORTANCE) * log_pi[action] for action in actions]).sum()

    check_gradient(policy, finished(policy, groups, actions), 1.7, weighted)


@pytest.mark.parametrize(("size_prior", "sizes"), CASES)
@pytest.mark.parametrize("advantage", [1.7, -0.6, 0.0])
def test_a_mixture_is_updated_by_its_log_density(size_prior: bool, sizes: list[int], advantage: float) -> None:
    """(r − moving average) · log p_θ(z), for z ~ N(log π_θ, σ²) held fixed, plus the entropy.

    The action is the mixture softmax(z). A constant added to all of z does not change it, so z is observed up to that
    constant only: its coordinates in an orthonormal basis of the vectors with sum 0 (Helmert contrasts) are all that is
    known of it, and they are Gaussian with the contrasts of log π_θ as mean and variance σ².
    """
    config = replace(GRADIENTS, action="mixture", mixture_noise=0.7, size_prior=size_prior)
    policy, groups = scrambled(build(config, 4, 0)), groups_of(sizes)
    begin(policy, groups, iteration=30)
    present = [group for group, size in enumerate(sizes) if size > 0]
    contrasts = torch.from_numpy(helmert(len(present)))
    mixture = (policy.behaviour - policy.config.exploration * groups.sizes) / (1 - policy.config.exploration)
    z = mixture[present].double().log()

    def log_density(log_pi: dict[int, Tensor]) -> Tensor:
        mean = torch.stack([log_pi[group] for group in present])
        normal = MultivariateNormal(contrasts @ mean, 0.7**2 * torch.eye(len(present) - 1).double())
        return normal.log_prob(contrasts @ z)

    check_gradient(policy, finished(policy, groups, [present[0]] * 3), advantage, log_density)


def test_a_higher_reward_moves_the_policy_towards_the_mixture() -> None:
    for sign in (1, -1):
        policy = build(replace(CONFIG, entropy_weight=0.0), 4, 0)
        groups = groups_of([25] * 4)
        begin(policy, groups, iteration=3)
        before, noise = policy.probabilities(groups), policy.noise.clone()
        policy.rewards.average = 0.0
        learn(policy, finished(policy, groups, [0, 1]), sign * 1.0)
        change = (policy.probabilities(groups) / before).log()
        assert float(sign * (change * noise).sum()) > 0


def test_exploration_does_not_bias_the_gradient() -> None:
    """Actions of another distribution, weighted by ρ, give on average the gradient that the policy's own would."""
    groups, advantage = groups_of([3, 5, 2, 7]), [0.3, -1, 2, 0.5]

    def gradient(exploration: float) -> Tensor:
        """Of the expected reward, exactly: every action in turn, as often as it comes."""
        policy = scrambled(build(replace(BATCH, entropy_weight=0, exploration=exploration), 4, 3))
        begin(policy, groups)
        assert float((policy.probabilities(groups) / policy.behaviour).max()) < MAX_IMPORTANCE
        total = torch.zeros(4, 16)
        for action, often in enumerate(policy.behaviour.tolist()):
            objective = policy.objective(finished(policy, groups, [action]), advantage[action])
            total += often * torch.autograd.grad(objective, policy.network.layers[-1].weight)[0]
        return total

    torch.testing.assert_close(gradient(0.5), gradient(0.0), atol=1e-6, rtol=1e-5)
    assert gradient(0.0).norm() > 0.1, "a test of something"


def test_a_group_that_π_never_samples_does_no_harm() -> None:
    """Without exploration a probability may underflow to 0."""
    policy, groups = build(BATCH, 3, 0), groups_of([1, 1, 1])
    with torch.no_grad():
        policy.network.layers[-1].bias.copy_(torch.tensor([0.0, 200.0, 199.0]))
    begin(policy, groups)
    assert policy.behaviour[0] == 0
    learn(policy, finished(policy, groups, [1, 2, 1]), 1.0)
    learn(policy, finished(policy, groups, [1, 1, 1]), 0.0)
    assert all(weight.isfinite().all() for weight in policy.network.parameters())


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


def episode(actions: list[float], iteration: int = 0) -> Episode:
    """An episode with so many batches of each group, each sampled with its π."""
    groups, counts = groups_of([1] * len(actions)), torch.tensor(actions)
    return Episode(groups, groups.sizes, groups.sizes, counts, counts, iteration, error=0.0, baseline=None)


def test_without_a_discount_a_reward_updates_its_own_episode_only() -> None:
    policy = build(replace(CONFIG, reward_average_decay=0.0), 3, 0)
    for value in (0.5, -1.0, 0.25):
        before = policy.network.layers[-1].bias.clone()
        learn(policy, episode([1, 2, 0]), value)
        assert policy.past == [] and policy.rewards.average == pytest.approx(value)
        assert value == 0.5 or not torch.equal(policy.network.layers[-1].bias, before)


def slow_return_gradient(
    policy: Reinforce, episodes: list[list[float]], rewards: list[float], discount: float
) -> Tensor:
    """Σ_t (Σ_{t' ≥ t} γ^{t'−t} r_t') ∇ log π(a_t | ŝ_t, θ) of Eq. 9, for one θ, batch by batch."""
    total = torch.zeros(3)
    for t, actions in enumerate(episodes):
        discounted = sum(discount ** (later - t) * rewards[later] for later in range(t, len(rewards)))
        for group, batches in enumerate(actions):
            for _ in range(int(batches)):
                log_pi = policy.log_probabilities(groups_of([1, 1, 1]))[group]
                total += discounted * torch.autograd.grad(log_pi, policy.network.layers[-1].bias)[0]
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
    episodes, total = [[1.0, number, 2] for number in range(len(rewards))], torch.zeros(3)
    for actions, value in zip(episodes, rewards, strict=True):
        learn(policy, episode(actions), value)
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


FOUR = groups_of([25] * 4)


def trained(action: str, gain: float, episodes: int, seed: int, **options: float) -> Tensor:
    """π after episodes whose reward is `gain` times the fraction of one group, with noise of std 1."""
    config = replace(CONFIG, action=action, **options)  # type: ignore[arg-type]
    policy, generator, better = build(config, 4, seed), torch.Generator().manual_seed(seed), seed % 4
    for iteration in range(episodes):
        taken = act(policy, FOUR, iteration, generator)
        fractions = taken.behaviour if action == "mixture" else taken.counts / taken.counts.sum()
        noise = float(torch.randn((), generator=generator))
        learn(policy, taken, gain * float(fractions[better]) + noise)
    return policy.probabilities(FOUR)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_finds_the_better_group(action: str) -> None:
    """One group's fraction of the samples is the reward, with a thirtieth of it as noise."""
    fast = {"lr": 0.005, "entropy_weight": 0.5}
    preferences = [float(trained(action, 30.0, 200, seed, **fast)[seed % 4]) for seed in range(8)]
    assert min(preferences) > 0.9, preferences


def test_the_policy_of_paper_finds_the_better_group_in_its_700_episodes() -> None:
    preferences = [float(trained("mixture", 30.0, 700, seed)[seed % 4]) for seed in range(3)]
    assert min(preferences) > 0.9, preferences


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_without_a_signal_no_group_is_favoured(action: str) -> None:
    """Each policy follows the noise of its rewards somewhere; over many seeds no group comes out more often."""
    probabilities = torch.stack([trained(action, 0.0, 60, seed) for seed in range(40)])
    bias, standard_error = probabilities.mean(dim=0) - 0.25, probabilities.std(dim=0) / math.sqrt(40)
    assert (bias.abs() < 3.5 * standard_error).all() and bias.abs().max() < 0.15, bias


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_a_constant_reward_leaves_the_entropy_high(action: str) -> None:
    config = replace(CONFIG, action=action)  # type: ignore[arg-type]
    for seed in range(3):
        policy, generator = build(config, 10, seed), torch.Generator().manual_seed(seed)
        for iteration in range(100):
            learn(policy, act(policy, TEN, iteration, generator), 0.02)
        assert entropy(policy.log_probabilities(TEN)).item() >= 0.95 * math.log(10)


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_the_entropy_brings_a_narrow_policy_back(action: str) -> None:
    config = replace(CONFIG, action=action, entropy_weight=0.2, lr=0.01)  # type: ignore[arg-type]
    policy, generator = build(config, 10, 0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        policy.network.layers[-1].bias[4] = 3.0
    before = entropy(policy.log_probabilities(TEN)).item()
    for iteration in range(200):
        learn(policy, act(policy, TEN, iteration, generator), 0.02)
    assert before < 0.6 * math.log(10) < 0.95 * math.log(10) < entropy(policy.log_probabilities(TEN)).item()


@pytest.mark.parametrize(("action", "noise"), [("mixture", 0.0), ("mixture", 2e-5), ("batch", 0.0), ("batch", 1e-4)])
def test_without_a_signal_the_permutations_stay_equally_likely(action: str, noise: float) -> None:
    """Noise below `min_reward_std`, groups of very different sizes: the entropy must not favour the small ones."""
    config = replace(CONFIG, action=action, size_prior=True, min_reward_std=0.002)  # type: ignore[arg-type]
    groups = groups_of([30, 20, 15, 10, 8, 6, 5, 3, 2, 1])
    for seed in range(3):
        policy, source = build(config, 10, seed), torch.Generator().manual_seed(seed)
        for iteration in range(100):
            reward = 0.5 + noise * float(torch.randn((), generator=source))
            learn(policy, act(policy, groups, iteration, source), reward)
        pi = policy.probabilities(groups)
        assert float((pi * (pi / groups.sizes).log()).sum()) < (0.1 if noise else 1e-4)


# the checkpoint


@pytest.mark.parametrize("action", ["mixture", "batch"])
@pytest.mark.parametrize("discount", [0.0, 0.8])
def test_resumes_bit_by_bit_from_a_checkpoint(discount: float, action: str, saved_and_loaded: Reload) -> None:
    config = replace(CONFIG, discount=discount, action=action, sorted_groups=False)  # type: ignore[arg-type]
    policy, generator = build(config, 10, 3), torch.Generator().manual_seed(0)
    groups = groups_of([10] * 10, labels=[3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    for step in range(7):
        learn(policy, act(policy, groups, step, generator), math.sin(step))
    resumed = build(config, 10, 99)
    resumed.load_state_dict(saved_and_loaded(policy.state_dict()))
    assert len(resumed.past) == len(policy.past) == (7 if discount else 0)
    for step in range(7):
        taken = act(policy, groups, step, generator)
        learn(policy, taken, math.cos(step))
        learn(resumed, taken, math.cos(step))
        assert torch.equal(policy.probabilities(groups), resumed.probabilities(groups))
        assert (policy.rewards.average, policy.rewards.spread) == (
            resumed.rewards.average,
            resumed.rewards.spread,
        )
    for mine, theirs in zip(policy.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_mixture_is_saved_and_restored_in_the_middle_of_its_episode(saved_and_loaded: Reload) -> None:
    policy, resumed = (scrambled(build(CONFIG, 10, seed)) for seed in (3, 99))
    begin(policy, TEN, iteration=40)
    resumed.load_state_dict(saved_and_loaded(policy.state_dict()))
    assert torch.equal(resumed.noise, policy.noise) and policy.noise.any()
    assert torch.equal(resumed.behaviour, policy.behaviour) and torch.equal(resumed.preferred, policy.preferred)
    for either in (policy, resumed):
        either.rewards.average = 0.0
        learn(either, finished(either, TEN, [2, 4]), 0.5)
    assert torch.equal(policy.probabilities(TEN), resumed.probabilities(TEN))


def test_a_new_policy_can_be_saved(saved_and_loaded: Reload) -> None:
    resumed = build(CONFIG, 10, 99)
    resumed.load_state_dict(saved_and_loaded(build(CONFIG, 10, 3).state_dict()))
    assert resumed.rewards.average is None and resumed.past == []


# the reward (appendix E)


def reward(points: list[tuple[int, float]]) -> float | None:
    """The reward of the last error."""
    history = ErrorHistory()
    for iteration, error in points[:-1]:
        history.add(iteration, error)
    iteration, error = points[-1]
    baseline = history.baseline(iteration)
    return None if baseline is None else baseline - error


iterations = st.lists(st.integers(0, 10**6), min_size=3, max_size=6, unique=True).map(sorted)


@given(iterations, st.floats(0, 1), st.floats(-0.1, 0.1))
@settings(max_examples=100, deadline=None)
def test_no_reward_for_equal_steps_whatever_the_iterations(at: list[int], first: float, step: float) -> None:
    points = [(iteration, first + number * step) for number, iteration in enumerate(at)]
    assert reward(points) == pytest.approx(0, abs=1e-8)


@given(iterations, st.floats(0.1, 1), st.floats(-0.1, 0.1), st.floats(1e-3, 0.1))
@settings(max_examples=50, deadline=None)
def test_a_faster_fall_is_rewarded(at: list[int], first: float, step: float, more: float) -> None:
    points = [(iteration, first + number * step) for number, iteration in enumerate(at)]
    (last, error), before = points[-1], points[:-1]
    assert reward([*before, (last, error - more)]) == pytest.approx(more, abs=1e-6)
    assert reward([*before, (last, error + more)]) == pytest.approx(-more, abs=1e-6)


@pytest.mark.parametrize("at", [(100, 200, 300), (100, 200, 210), (0, 3788, 3888), (5, 6, 1000)])
def test_the_papers_baseline_whatever_the_iterations(at: tuple[int, int, int]) -> None:
    """E_BL = 2 E_t − E_(t−1) (text before Eq. 7)."""
    history = ErrorHistory()
    history.add(at[0], 0.80)
    history.add(at[1], 0.78)
    assert history.baseline(at[2]) == pytest.approx(0.76)


def test_no_baseline_before_two_errors() -> None:
    history = ErrorHistory()
    assert history.baseline(10) is None
    history.add(0, 0.9)
    assert history.baseline(10) is None
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)


def test_a_drop_of_the_learning_rate_starts_a_new_history() -> None:
    """The error at the milestone itself belongs to the higher learning rate."""
    history = ErrorHistory(lr_changes=[20])
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
