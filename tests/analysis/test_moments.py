"""What the policy preferred, against a slow and obvious count."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from unshuffle.analysis.history import read_states
from unshuffle.analysis.moments import Moment, pair_shares, read_moments, spread
from unshuffle.policy.groups import gumbel, select
from unshuffle.run import Run


def moment(groups: list[int], probabilities: list[float], errors: list[float]) -> Moment:
    return Moment(0, np.array(errors), np.array(groups), np.array(probabilities))


def test_preferences_against_the_chance_of_each_permutation() -> None:
    groups, probabilities = [0, 1, 1, 2, 2, 2, 2, 2], [0.5, 0.25, 0.25]
    found = moment(groups, probabilities, [0.0] * 8)
    for permutation, group in enumerate(groups):
        members = [other for other in groups if other == group]
        chance = probabilities[group] / len(members)  # a group first, then one of its members
        assert found.preferences[group] == pytest.approx(chance * len(groups))
        assert found.likelihoods[permutation] == pytest.approx(chance * len(groups))
    assert found.sizes == pytest.approx([1 / 8, 2 / 8, 5 / 8])


def test_a_group_without_members_is_not_preferred() -> None:
    assert moment([0, 0, 2], [0.5, 0.2, 0.3], [0, 0, 0]).preferences[1] == 0


def test_ends_are_the_hardest_and_the_easiest_third() -> None:
    errors = [0.9, 0.1, 0.5, 0.8, 0.2, 0.5]
    found = moment([0, 1, 1, 0, 1, 1], [0.6, 0.4], errors)
    hardest, easiest = [0, 3], [1, 4]
    weight = {0: 0.6 / 2 * 6, 1: 0.4 / 4 * 6}
    by_hand = [np.mean([weight[[0, 1, 1, 0, 1, 1][p]] for p in third]) for third in (hardest, easiest)]
    assert found.ends == pytest.approx((1.8, 0.6)) and by_hand == pytest.approx([1.8, 0.6])


def test_nothing_acts_before_the_policy_begins() -> None:
    assert not Moment(0, np.zeros(3), None, None).acts


def test_groups_of_pairs_are_equal_parts() -> None:
    found = Moment(0, np.zeros(10), None, np.array([0.6, 0.25, 0.15]))
    assert found.sizes == pytest.approx([1 / 3] * 3)
    assert found.preferences == pytest.approx([1.8, 0.75, 0.45])
    assert found.acts and found.ends == pytest.approx((1.8, 0.45)), "the hardest group and the easiest"


@pytest.mark.parametrize("probabilities", [[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.02, 0.03, 0.05, 0.9]])
@pytest.mark.parametrize("candidates", [1, 2, 4, 16])
def test_shares_of_pairs_against_draws(probabilities: list[float], candidates: int) -> None:
    """Many samples of which each has 8 permutations chosen among its candidates, as in training."""
    generator, shape = torch.Generator().manual_seed(0), (2000, 8 * candidates)
    logits = torch.rand((*shape, 4), generator=generator)
    noise = gumbel(shape, generator)
    permutations = torch.randint(4, shape, generator=generator)
    selected = select(logits, permutations, torch.tensor(probabilities).log(), noise, count=8)
    drawn = np.bincount(selected.groups.flatten().numpy(), minlength=4) / (2000 * 8)
    assert pair_shares(np.array(probabilities), candidates) == pytest.approx(drawn, abs=0.015)


def test_what_is_never_preferred_is_drawn_when_nothing_else_is_left() -> None:
    assert pair_shares(np.array([1.0, 0.0, 0.0, 0.0]), 2) == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6], abs=1e-6)


def test_moments_are_the_validations_of_the_run(run: Run, uniform_run: Run) -> None:
    moments = read_moments(run, "spatial")
    assert [one.iteration for one in moments] == [0, 2, 4, 6, 8, 10, 12]
    for one in moments:
        with np.load(run.states / f"spatial-{one.iteration:08d}.npz") as state:
            assert one.errors == pytest.approx(state["permutation_errors"])
            for group, probability in enumerate(state["probabilities"]):
                assert one.likelihoods[state["groups"] == group].sum() / 6 == pytest.approx(probability)
    assert all(one.groups is None for one in read_moments(uniform_run, "spatial"))


def test_moments_of_trials_show_what_was_drawn_after_them(pair_run: Run) -> None:
    """The states are written before the trials; the drop of the rate at iteration 9 changes nothing."""
    moments = {one.iteration: one for one in read_moments(pair_run, "spatial")}
    trials = {e["iteration"]: e["probability"] for e in pair_run.metrics("rollouts") if e["task"] == "spatial"}
    assert list(moments) == [0, 2, 4, 6, 8, 10, 12] and list(trials) == [2, 4, 6, 8, 10]
    assert all(one.acts and one.groups is None for one in moments.values())
    for iteration in trials:
        assert moments[iteration].probabilities == pytest.approx(pair_shares(np.array(trials[iteration]), 3))
        assert trials[iteration] != pytest.approx(trials.get(iteration - 2, [1 / 3] * 3)), "they say something new"
    states = {int(state["iteration"]): state for state in read_states(pair_run, "spatial", ("acting_probabilities",))}
    assert states[10]["acting_probabilities"] == pytest.approx(trials[8]), "what was drawn since iteration 8"


def test_trials_that_nothing_was_drawn_after_yet(tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    policy = {"num_groups": 2, "sampler": "rollouts", "rollout_iterations": 1}
    run = tiny_run(tmp_path / "run", tasks="S", policy=policy, optim={"iterations": 4, "milestones": []})
    lines = [line for line in run.metrics_file.read_text().splitlines() if '"iteration": 4' not in line]
    run.metrics_file.write_text("\n".join(lines) + "\n")  # it still goes
    (trials,) = run.metrics("rollouts")
    assert trials["iteration"] == 2
    assert read_moments(run, "spatial")[-1].probabilities == pytest.approx(trials["probability"])


def test_spread() -> None:
    assert spread(range(3), 3) == [0, 1, 2] and spread(range(9), 3) == [0, 4, 8]
    assert spread([], 3) == []
