import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unshuffle.config import PolicyConfig
from unshuffle.policy.exp3 import Exp3
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import Episode, ErrorHistory

GROUPS = Groups(torch.empty(0, dtype=torch.int64), torch.full((4,), 0.25), torch.tensor([0.6, 0.9, 1.2, 1.8]))


def bandit() -> Exp3:
    return Exp3(PolicyConfig(sampler="exp3", num_groups=4), num_permutations=24, seed=0, history=ErrorHistory())


def learn(sampler: Exp3, behaviour: torch.Tensor, counts: torch.Tensor, reward: float) -> None:
    sampler.learn(Episode(GROUPS, behaviour, counts, iteration=0, error=0.0, baseline=reward))


def test_a_new_bandit_samples_every_permutation_equally_often() -> None:
    sizes = [0.1, 0.4, 0.5, 0]
    groups = Groups(GROUPS.members, torch.tensor(sizes), GROUPS.medians)
    np.testing.assert_allclose(bandit().probabilities(groups), sizes, atol=1e-6)


@pytest.mark.parametrize("worst_case", [0.0, -1.0])
def test_the_bandit_finds_the_better_group(worst_case: float) -> None:
    """One action an episode, as bandits have it; the reward is never negative, or never positive."""
    for seed in range(10):
        sampler, better = bandit(), seed % 4
        generator = torch.Generator().manual_seed(seed)
        for _ in range(300):
            probabilities = 0.9 * sampler.probabilities(GROUPS) + 0.1 * GROUPS.sizes
            counts = F.one_hot(torch.multinomial(probabilities, 1, generator=generator)[0], 4).float()
            noise = 0.01 * float(torch.randn((), generator=generator))
            learn(sampler, probabilities, counts, worst_case + float(counts[better]) + noise)
        assert float(sampler.probabilities(GROUPS)[better]) > 0.9


def test_the_bandit_finds_the_better_group_among_many_samples() -> None:
    for seed in range(5):
        sampler, better = bandit(), seed % 4
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            probabilities = 0.9 * sampler.probabilities(GROUPS) + 0.1 * GROUPS.sizes
            sampled = torch.multinomial(probabilities, 200, replacement=True, generator=generator)
            counts = torch.bincount(sampled, minlength=4).float()
            learn(sampler, probabilities, counts, float(counts[better] / 200))
        assert float(sampler.probabilities(GROUPS)[better]) > 0.9
