import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.policy.items import ItemSampler

SAMPLERS = ["uniform", "reinforce", "exp3", "hard-first", "easy-first"]
HALF_HARD = torch.cat([torch.full((10,), 0.9), torch.full((10,), 0.1)])


@pytest.mark.parametrize("name", SAMPLERS)
def test_proposals_follow_the_probabilities(name: str) -> None:
    sampler = ItemSampler(20, name, groups=2)  # type: ignore[arg-type]
    torch.testing.assert_close(sampler.probabilities, torch.full((20,), 1 / 20))
    for _ in range(5):
        assert sampler.propose(16).shape == (16,)
        sampler.tell(HALF_HARD)
    counts = torch.bincount(sampler.propose(20_000), minlength=20) / 20_000
    assert float(sampler.probabilities.sum()) == pytest.approx(1)
    torch.testing.assert_close(counts.float(), sampler.probabilities.float(), atol=0.01, rtol=0)


def test_fixed_rules_prefer_hard_or_easy_items() -> None:
    for name, preferred in (("hard-first", slice(0, 10)), ("easy-first", slice(10, 20))):
        sampler = ItemSampler(20, name, groups=2)  # type: ignore[arg-type]
        sampler.tell(HALF_HARD)
        assert sampler.probabilities[preferred].sum() > 0.6


@pytest.mark.parametrize("name", ["reinforce", "exp3"])
def test_a_learning_sampler_prefers_what_lowers_the_error(name: str) -> None:
    sampler, errors = ItemSampler(20, name, groups=2), HALF_HARD.clone().double()  # type: ignore[arg-type]
    preferences = []
    for _ in range(300):  # only training on the hard items helps, the more the better
        hard = (sampler.propose(200) < 10).double().mean()
        errors[:10] = (errors[:10] * (1 - 0.02 * (hard - 0.5))).clamp(0.5, 0.99)
        sampler.tell(errors)
        preferences.append(sampler._sampler.preference.probabilities[0])  # type: ignore[union-attr]
    assert sum(preferences[-50:]) / 50 > sum(preferences[:20]) / 20


def test_a_restored_sampler_proposes_the_same() -> None:
    sampler, restored = (ItemSampler(20, "reinforce", groups=4, seed=3) for _ in range(2))
    for _ in range(4):
        sampler.propose(8)
        sampler.tell(torch.linspace(0, 1, 20))
    restored.load_state_dict(sampler.state_dict())
    assert torch.equal(sampler.propose(50), restored.propose(50))
    for each in (sampler, restored):
        each.tell(torch.linspace(0.2, 0.9, 20))
    assert torch.equal(sampler.probabilities, restored.probabilities)


def test_errors_are_one_sentence() -> None:
    with pytest.raises(UserError, match="2 items or more, and there are 1"):
        ItemSampler(1)
    for errors in (torch.zeros(3), torch.full((20,), 1.5), torch.full((20,), torch.nan)):
        with pytest.raises(UserError, match="tell takes 20 errors from 0 to 1, one for each item"):
            ItemSampler(20).tell(errors)
