import pytest
import torch
from scipy.stats import chisquare

from unshuffle.config import PolicyConfig
from unshuffle.policy.samplers import Sampler, UniformSampler, build_sampler
from unshuffle.policy.state import Validation


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_config_names_it() -> None:
    sampler: Sampler = build_sampler(PolicyConfig("uniform"), 12)
    assert isinstance(sampler, UniformSampler) and sampler.num_permutations == 12


@pytest.mark.parametrize("count", [2, 7, 100])
def test_uniform_draws(count: int) -> None:
    draws = UniformSampler(count).propose(2000, 5, generator())
    assert draws.shape == (2000, 5) and draws.dtype == torch.int64
    assert draws.min() == 0 and draws.max() == count - 1
    assert chisquare(torch.bincount(draws.flatten(), minlength=count)).pvalue > 0.001
    for column in draws.T:
        assert chisquare(torch.bincount(column, minlength=count)).pvalue > 0.001


def test_draws_of_a_sample_are_independent() -> None:
    first, second = UniformSampler(3).propose(5000, 2, generator()).T
    assert chisquare(torch.bincount(3 * first + second, minlength=9)).pvalue > 0.001


def test_seeded() -> None:
    sampler = UniformSampler(50)
    first = sampler.propose(8, 4, generator(1))
    assert torch.equal(first, sampler.propose(8, 4, generator(1)))
    assert not torch.equal(first, sampler.propose(8, 4, generator(2)))
    state = torch.get_rng_state()
    sampler.propose(8, 4, generator(1))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


def test_uniform_learns_nothing() -> None:
    sampler = UniformSampler(50)
    first = sampler.propose(8, 4, generator(1))
    sampler.observe(Validation(torch.linspace(0, 1, 50)))
    assert torch.equal(first, sampler.propose(8, 4, generator(1)))
    assert sampler.state_dict() == {}
    resumed = UniformSampler(50)
    resumed.load_state_dict(sampler.state_dict())
    assert torch.equal(first, resumed.propose(8, 4, generator(1)))
