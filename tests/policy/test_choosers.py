from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from unshuffle.policy.choosers import ByTrial, Chooser, Exp3, Inverse, Ranked, build_chooser

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import Actions, Reinforce

Reload = Callable[[dict[str, Any]], dict[str, Any]]
KINDS = {"policy": Reinforce, "inverse": Inverse, "hard-first": Ranked, "easy-first": Ranked, "exp3": Exp3}


def config(name: str = "policy", **options: Any) -> PolicyConfig:
    return replace(PolicyConfig(sampler=name, groups=4), **options)  # type: ignore[arg-type]


def four_groups(sizes: list[float] | None = None) -> Groups:
    none = torch.empty(0, dtype=torch.int64)
    return Groups(none, torch.tensor(sizes or [0.25] * 4), torch.tensor([0.6, 0.9, 1.2, 1.8]))


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_config_names_it(name: str, kind: type[Chooser]) -> None:
    chooser = build_chooser(config(name), seed=0)
    assert type(chooser) is kind
    probabilities = chooser.probabilities(four_groups([0.5, 0.25, 0.25, 0]))
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6) and probabilities[3] == 0
    if isinstance(chooser, Ranked):
        assert chooser.hardest_first == (name == "hard-first")


# the inverse policy


def test_the_inverse_policy() -> None:
    pi = torch.tensor([0.6, 0.3, 0.099, 0.001])
    policy = Reinforce(config(size_prior=False), 4, 0)
    with torch.no_grad():
        policy.network.layers[-1].bias.copy_(pi.log())  # type: ignore[operator]
    chooser = Inverse(policy, 0.02)
    inverse = np.array([1 / 0.6, 1 / 0.3, 1 / 0.099, 1 / 0.02])
    np.testing.assert_allclose(chooser.probabilities(four_groups()), inverse / inverse.sum(), rtol=1e-4)
    inverse[3], pi = 0, torch.tensor([0.6, 0.3, 0.099, 0]) / 0.999
    inverse[:3] = 1 / pi[:3].numpy()
    chosen = chooser.probabilities(four_groups([0.5, 0.25, 0.25, 0]))
    np.testing.assert_allclose(chosen, inverse / inverse.sum(), rtol=1e-4)
    assert chosen[3] == 0


def test_the_inverse_policy_learns_as_the_policy_does() -> None:
    policy, inverse = (build_chooser(config(name), seed=0) for name in ("policy", "inverse"))
    groups = four_groups()
    for _ in range(30):
        for chooser in (policy, inverse):
            chooser.learn(Actions(groups, groups.sizes, torch.tensor([4.0, 1, 0, 0])), 1.0)
            chooser.learn(Actions(groups, groups.sizes, torch.tensor([0.0, 1, 4, 0])), 0.0)
    assert policy.probabilities(groups).argmax() == 0 and inverse.probabilities(groups).argmin() == 0
    assert inverse.probabilities(groups)[0] < 0.2


# a fixed preference


@pytest.mark.parametrize(("hardest_first", "expected"), [(True, [8, 4, 2, 1]), (False, [1, 2, 4, 8])])
def test_ranked(hardest_first: bool, expected: list[int]) -> None:
    chooser = Ranked(hardest_first)
    np.testing.assert_allclose(chooser.probabilities(four_groups([0.1, 0.4, 0.3, 0.2])), np.array(expected) / 15)
    three = [4, 2, 1, 0] if hardest_first else [1, 2, 4, 0]
    np.testing.assert_allclose(chooser.probabilities(four_groups([0.2, 0.5, 0.3, 0])), np.array(three) / 7)
    before = chooser.probabilities(four_groups())
    chooser.learn(Actions(four_groups(), before, torch.ones(4)), 1.0)
    assert torch.equal(chooser.probabilities(four_groups()), before)


# the bandit


def test_a_new_bandit_draws_every_permutation_equally_often() -> None:
    sizes = [0.1, 0.4, 0.5, 0]
    np.testing.assert_allclose(Exp3(config("exp3")).probabilities(four_groups(sizes)), sizes, atol=1e-6)


@pytest.mark.parametrize("worst_case", [0.0, -1.0])
def test_the_bandit_finds_the_better_group(worst_case: float) -> None:
    """One action an episode, as bandits have it; the reward is never negative, or never positive."""
    for seed in range(10):
        bandit, groups, better = Exp3(config("exp3")), four_groups(), seed % 4
        source = torch.Generator().manual_seed(seed)
        for _ in range(300):
            probabilities = 0.9 * bandit.probabilities(groups) + 0.1 * groups.sizes
            counts = F.one_hot(torch.multinomial(probabilities, 1, generator=source)[0], 4).float()
            noise = 0.01 * float(torch.randn((), generator=source))
            bandit.learn(Actions(groups, probabilities, counts), worst_case + float(counts[better]) + noise)
        assert float(bandit.probabilities(groups)[better]) > 0.9


def test_the_bandit_finds_the_better_group_among_many_draws() -> None:
    for seed in range(5):
        bandit, groups, better = Exp3(config("exp3")), four_groups(), seed % 4
        source = torch.Generator().manual_seed(seed)
        for _ in range(200):
            probabilities = 0.9 * bandit.probabilities(groups) + 0.1 * groups.sizes
            drawn = torch.multinomial(probabilities, 200, replacement=True, generator=source)
            counts = torch.bincount(drawn, minlength=4).float()
            bandit.learn(Actions(groups, probabilities, counts), float(counts[better] / 200))
        assert float(bandit.probabilities(groups)[better]) > 0.9


# trials


@pytest.mark.parametrize("name", KINDS)
def test_only_the_policy_and_its_inverse_learn_from_trials(name: str) -> None:
    chooser, groups = build_chooser(config(name, reward="trials"), seed=0), four_groups()
    before = chooser.probabilities(groups)
    chooser.judge(torch.tensor([1.0, -1.0, 0.5, -0.5]))
    change = chooser.probabilities(groups) - before
    if name in ("policy", "inverse"):
        sign = 1 if name == "policy" else -1
        assert sign * change[0] > 0.05 and sign * change[1] < -0.05
    else:
        assert not change.any()


def test_a_policy_that_is_rewarded_for_episodes_does_not_listen_to_trials() -> None:
    chooser, groups = build_chooser(config(), seed=0), four_groups()
    before = chooser.probabilities(groups)
    chooser.judge(torch.tensor([1.0, -1.0, 0.5, -0.5]))
    assert torch.equal(chooser.probabilities(groups), before)


@pytest.mark.parametrize("sizes", [[0.25] * 4, [0.6, 0.2, 0.15, 0.05], [0.5, 0.3, 0.2, 0.0]])
def test_by_trial_no_other_policy_has_more_worth_and_entropy(sizes: list[float]) -> None:
    """Σ π v + τ H, with the entropy of the permutations that are drawn, at its π and around it."""
    torch.manual_seed(0)
    chooser, groups, worth = (
        ByTrial(config(entropy_weight=0.3)),
        four_groups(sizes),
        torch.tensor([0.7, -0.4, 0.2, 0.0]),
    )
    for _ in range(60):  # what came before counts half as much with each
        chooser.judge(worth)
    present = groups.sizes > 0

    def objective(pi: torch.Tensor) -> float:
        pi, size = pi[present], groups.sizes[present]
        return float((pi * worth[present]).sum() - 0.3 * (pi * (pi / size).log()).sum())

    best = chooser.probabilities(groups)
    assert (best[~present] == 0).all() and float(best.sum()) == pytest.approx(1, abs=1e-6)
    for _ in range(200):
        other = torch.softmax(best.log() + 0.3 * torch.randn(4), dim=0)
        assert objective(other) < objective(best)


def test_by_trial_half_is_of_the_last_trials() -> None:
    chooser = ByTrial(config())
    chooser.judge(torch.tensor([1.0, 0, 0, -1]))
    chooser.judge(torch.tensor([0.0, 1, 0, -1]))
    assert chooser.worth.tolist() == [0.25, 0.5, 0, -0.75]
    chooser.learn(Actions(four_groups(), torch.full((4,), 0.25), torch.tensor([9.0, 0, 0, 0])), 1.0)
    assert chooser.worth.tolist() == [0.25, 0.5, 0, -0.75], "a reward teaches nothing"
    chooser.rate_dropped()
    assert chooser.worth.tolist() == [0.25, 0.5, 0, -0.75], "nor does a drop of the rate"


# the checkpoint


@pytest.mark.parametrize("name", KINDS)
def test_goes_on_from_a_checkpoint(name: str, saved_and_loaded: Reload) -> None:
    chooser, groups = build_chooser(config(name), seed=0), four_groups([0.4, 0.3, 0.2, 0.1])

    def learn(one: Chooser) -> torch.Tensor:
        for number, reward in enumerate((0.1, -0.2, 0.3)):
            one.learn(Actions(groups, groups.sizes, torch.arange(4.0) * number + 1), reward)
        return one.probabilities(groups)

    learned = learn(chooser)
    resumed = build_chooser(config(name), seed=1)
    resumed.load_state_dict(saved_and_loaded(chooser.state_dict()))
    assert torch.equal(resumed.probabilities(groups), learned)
    again = learn(chooser)
    assert torch.equal(learn(resumed), again) and (not torch.equal(again, learned)) == (type(chooser) is not Ranked)
