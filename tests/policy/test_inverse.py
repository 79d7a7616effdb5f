import numpy as np
import pytest
import torch

from unshuffle.config import PolicyConfig
from unshuffle.errors import UserError
from unshuffle.policy.groups import Groups
from unshuffle.policy.inverse import Inverse, inverted
from unshuffle.policy.reinforce import Episode, ErrorHistory, Reinforce
from unshuffle.policy.uniform import Uniform

FLOOR = 0.02


def groups_of(sizes: list[float]) -> Groups:
    return Groups(torch.empty(0, dtype=torch.int64), torch.tensor(sizes), torch.tensor([0.6, 0.9, 1.2, 1.8]))


def acting(sampler: Reinforce, groups: Groups) -> torch.Tensor:
    """The behaviour of the inverse, which has no exploration here."""
    inverse = Inverse(sampler, FLOOR)
    sampler.groups = groups
    inverse.act()
    return sampler.behaviour


def policy(**options: bool | float) -> Reinforce:
    config = PolicyConfig(num_groups=4, exploration=0.0, **options)  # type: ignore[arg-type]
    return Reinforce(config, 24, 0, ErrorHistory())


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
    plain, within = policy(), policy()
    groups = groups_of([0.25] * 4)
    for _ in range(30):
        for sampler in (plain, within):
            for counts, reward in ([4.0, 1, 0, 0], 1.0), ([0.0, 1, 4, 0], 0.0):
                sampler.learn(Episode(groups, groups.sizes, torch.tensor(counts), 0, 0.0, reward))
    assert plain.probabilities(groups).argmax() == 0
    inverse = acting(within, groups)
    assert inverse.argmin() == 0 and inverse[0] < 0.2


def test_uniform_sampling_has_no_inverse() -> None:
    with pytest.raises(UserError, match="needs a sampler that prefers some groups"):
        Inverse(Uniform(4), FLOOR)
