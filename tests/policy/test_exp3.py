import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.exp3 import LEARNING_RATE, Exp3
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import MAX_IMPORTANCE, Episode, ErrorHistory
from unshuffle.policy.sampler import SampleCounts


def groups_of(sizes: list[float]) -> Groups:
    medians = torch.tensor([0.6, 0.9, 1.2, 1.8])
    return Groups(torch.empty(0, dtype=torch.int64), torch.tensor(sizes), medians, torch.arange(4))


EQUAL = groups_of([0.25] * 4)


def bandit(groups: Groups = EQUAL, seed: int = 0, exploration: float = 0.1) -> Exp3:
    """A bandit that knows its groups."""
    config = PolicyConfig(sampler="exp3", grouping="pairs", num_groups=4, exploration=exploration)
    sampler = Exp3(config, num_permutations=24, seed=seed, history=ErrorHistory())
    sampler.groups = groups
    sampler.act()
    return sampler


def action(sampler: Exp3, groups: Groups, arm: int) -> Tensor:
    """What is recorded of an episode that pulled an arm."""
    sampler.arm = arm
    return sampler.action(groups, SampleCounts(24, 4))


def learn(sampler: Exp3, groups: Groups, reward: float) -> None:
    """End an episode with a reward, and take the new weights into account."""
    taken = action(sampler, groups, sampler.arm)
    counts = torch.zeros(4)  # the bandit knows its arm
    sampler.learn(Episode(groups, sampler.preferred, sampler.behaviour, counts, taken, 0, error=0.0, baseline=reward))
    sampler.act()


def test_a_small_group_cannot_move_its_weight_by_much() -> None:
    groups = groups_of([0.699, 0.2, 0.1, 0.001])
    sampler = bandit(groups)
    weights = action(sampler, groups, 3)
    assert weights.tolist() == [0, 0, 0, MAX_IMPORTANCE * 4], "not 1000"
    torch.testing.assert_close(action(sampler, groups, 2)[2], 1 / sampler.preferred[2])


def test_a_new_bandit_samples_every_permutation_equally_often() -> None:
    sizes = [0.1, 0.4, 0.5, 0]
    np.testing.assert_allclose(bandit().probabilities(groups_of(sizes)), sizes, atol=1e-6)


def test_the_arm_is_chosen_with_the_preferred_probabilities() -> None:
    sizes = [0.1, 0.4, 0.5, 0]
    groups = groups_of(sizes)
    sampler = bandit(groups)
    sampler.log_weights = torch.tensor([1.0, -0.5, 0.0, 3.0])
    sampler.act()
    arms = []
    for iteration in range(2000):
        sampler.vary(groups, iteration)
        arms.append(sampler.arm)
    weights = [0.1 * np.exp(1.0), 0.4 * np.exp(-0.5), 0.5, 0]
    preferred = [0.9 * weight / sum(weights) + 0.1 * size for weight, size in zip(weights, sizes, strict=True)]
    np.testing.assert_allclose(sampler.preferred, preferred, atol=1e-6)
    assert max(arms) == 2, "an empty group is no arm"
    assert chisquare(np.bincount(arms), 2000 * np.array(preferred[:3])).pvalue > 0.001


def test_arms_are_seeded_by_the_iteration() -> None:
    def arms(seed: int) -> list[int]:
        sampler = bandit(seed=seed)
        pulled = []
        for iteration in range(50):
            sampler.vary(EQUAL, iteration)
            pulled.append(sampler.arm)
        return pulled

    before = torch.get_rng_state()
    assert arms(1) == arms(1) != arms(2) and len(set(arms(1))) == 4
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"


@pytest.mark.parametrize("exploration", [0.0, 0.2])
def test_half_of_an_episodes_samples_come_from_the_arm(exploration: float) -> None:
    sizes = [0.1, 0.4, 0.3, 0.2]
    groups = groups_of(sizes)
    sampler = bandit(groups, exploration=exploration)
    preferred = sampler.preferred.clone()
    for iteration in range(10):
        sampler.vary(groups, iteration)
        half = [0.5 * (group == sampler.arm) + 0.5 * size for group, size in enumerate(sizes)]
        expected = [(1 - exploration) * own + exploration * size for own, size in zip(half, sizes, strict=True)]
        np.testing.assert_allclose(sampler.behaviour, expected, atol=1e-6)
        assert torch.equal(sampler.preferred, preferred)


def test_the_importance_weights_are_unbiased() -> None:
    """Each arm in turn, as often as it is pulled: the mean of reward · action is the reward of each arm."""
    groups, rewards = groups_of([0.1, 0.4, 0.3, 0.2]), [0.3, -1.0, 2.0, 0.5]
    sampler = bandit(groups)
    sampler.log_weights = torch.tensor([1.0, -0.5, 0.0, 0.2])
    sampler.act()
    sampler.vary(groups, 0)
    estimate = sum(
        float(sampler.preferred[arm]) * reward * action(sampler, groups, arm) for arm, reward in enumerate(rewards)
    )
    np.testing.assert_allclose(estimate, rewards, rtol=1e-5)


def test_the_update_of_a_weight() -> None:
    """The advantage in units of its spread, over the probability of the arm; a common factor changes nothing."""
    sampler = bandit(groups_of([0.1, 0.4, 0.3, 0.2]))
    sampler.rewards.average, sampler.rewards.spread, sampler.arm = 0.5, 0.2, 1
    decay = sampler.config.reward_average_decay
    spread = decay * 0.2 + (1 - decay) * 0.3
    learn(sampler, groups_of([0.1, 0.4, 0.3, 0.2]), 0.8)
    change = sampler.log_weights - sampler.log_weights[0]
    np.testing.assert_allclose(change, [0, LEARNING_RATE * 0.3 / spread / 0.4 / 4, 0, 0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("worst_case", [0.0, -1.0])
def test_the_bandit_finds_the_better_group(worst_case: float) -> None:
    """The reward is never negative, or never positive, but for some noise."""
    for seed in range(8):
        sampler, better = bandit(seed=seed), seed % 4
        generator = torch.Generator().manual_seed(seed)
        for iteration in range(300):
            sampler.vary(EQUAL, iteration)
            noise = 0.03 * float(torch.randn((), generator=generator))
            learn(sampler, EQUAL, worst_case + float(sampler.behaviour[better]) + noise)
        assert float(sampler.probabilities(EQUAL)[better]) > 0.9
