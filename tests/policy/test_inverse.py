import numpy as np
import torch

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Episode, Groups, inverted
from unshuffle.policy.reinforce import Reinforce

FLOOR = 0.02


def groups_of(sizes: list[float]) -> Groups:
    return Groups(torch.empty(0, dtype=torch.int64), torch.tensor(sizes), torch.tensor([0.6, 0.9, 1.2, 1.8]))


def acting(sampler: Reinforce, groups: Groups) -> torch.Tensor:
    """The behaviour for these groups, without exploration."""
    sampler.groups = groups
    sampler.act()
    return sampler.behaviour


def policy(**options: bool | float) -> Reinforce:
    config = PolicyConfig(num_groups=4, exploration=0.0, inverse=True, inverse_floor=FLOOR, **options)  # type: ignore[arg-type]
    return Reinforce(config, num_permutations=24, seed=0)


def test_probabilities_are_proportional_to_one_over_pi() -> None:
    pi = torch.tensor([0.6, 0.3, 0.099, 0.001])
    sampler = policy(size_prior=False)
    with torch.no_grad():
        sampler.network.layers[-1].bias.copy_(pi.log())  # type: ignore[operator]
    expected = np.array([1 / 0.6, 1 / 0.3, 1 / 0.099, 1 / FLOOR])
    np.testing.assert_allclose(acting(sampler, groups_of([0.25] * 4)), expected / expected.sum(), rtol=1e-4)
    expected[3], pi = 0, torch.tensor([0.6, 0.3, 0.099, 0]) / 0.999
    expected[:3] = 1 / pi[:3].numpy()
    with_empty = acting(sampler, groups_of([0.5, 0.25, 0.25, 0]))
    np.testing.assert_allclose(with_empty, expected / expected.sum(), rtol=1e-4)
    assert with_empty[3] == 0


def test_an_empty_group_stays_empty() -> None:
    inverse = inverted(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.3, 0.7, 0.0]), FLOOR)
    assert inverse.tolist() == [0.5, 0.5, 0]


def test_learns_as_the_policy_does() -> None:
    sampler = policy()
    groups = groups_of([0.25] * 4)
    for _ in range(30):
        for counts, reward in ([4.0, 1, 0, 0], 1.0), ([0.0, 1, 4, 0], 0.0):
            sampler.learn(Episode(groups, groups.sizes, torch.tensor(counts), 0, 0.0, reward))
    assert sampler.probabilities(groups).argmax() == 0
    inverse = acting(sampler, groups)
    assert inverse.argmin() == 0 and inverse[0] < 0.2
