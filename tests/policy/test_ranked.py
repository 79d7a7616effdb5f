import numpy as np
import pytest
import torch

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups
from unshuffle.policy.ranked import Ranked
from unshuffle.policy.reinforce import ErrorHistory


def groups_of(sizes: list[float]) -> Groups:
    medians = torch.tensor([0.6, 0.9, 1.2, 1.8])
    return Groups(torch.empty(0, dtype=torch.int64), torch.tensor(sizes), medians, torch.arange(4))


@pytest.mark.parametrize(("hardest_first", "expected"), [(True, [8, 4, 2, 1]), (False, [1, 2, 4, 8])])
def test_each_group_is_half_as_likely_as_the_one_before(hardest_first: bool, expected: list[int]) -> None:
    config = PolicyConfig(sampler="hard-first" if hardest_first else "easy-first", num_groups=4)
    sampler = Ranked(config, 24, 0, ErrorHistory())
    np.testing.assert_allclose(sampler.probabilities(groups_of([0.1, 0.4, 0.3, 0.2])), np.array(expected) / 15)
    three = [4, 2, 1, 0] if hardest_first else [1, 2, 4, 0]
    for _ in range(2):
        np.testing.assert_allclose(sampler.probabilities(groups_of([0.2, 0.5, 0.3, 0])), np.array(three) / 7)
