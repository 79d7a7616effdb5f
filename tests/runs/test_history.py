"""What happened in a run, against slow and obvious counts."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from unshuffle.policy.groups import gumbel, select
from unshuffle.runs import history
from unshuffle.runs.history import (
    Rollouts,
    SamplingState,
    all_rollouts,
    choose_tasks,
    error_kind,
    error_label,
    evenly_spaced,
    open_run,
    ordering_tasks,
    pair_fractions,
    read_history,
    read_sampling_states,
    read_states,
    reported_errors,
    state_files,
    tasks_of,
)
from unshuffle.runs.run import Run


def test_the_errors_to_report_are_those_on_the_test_set(run: Run, tmp_path: Path) -> None:
    assert error_kind(run, "spatial") == "test"
    assert reported_errors(run, "spatial") == [e for e in run.metrics("test") if e["task"] == "spatial"] != []
    without = Run(tmp_path)
    entries = [entry for entry in run.metrics() if (entry["kind"], entry.get("task")) != ("test", "spatial")]
    without.metrics_file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert (error_kind(without, "spatial"), error_kind(without, "temporal")) == ("validation", "test")
    assert reported_errors(without, "spatial") == list(run.metrics("validation", "spatial"))


def test_errors_of_several_kinds_have_no_common_name() -> None:
    assert error_label(["test", "test"]) == "test error"
    assert error_label(["validation"]) == "validation error"
    assert error_label(["test", "validation"]) == error_label([]) == "error"


def test_errors_and_sampling_counts_of_every_validation(run: Run) -> None:
    history = read_history(run, "temporal")
    assert history.iterations.tolist() == [0, 2, 4, 6, 8, 10, 12]
    logged = [entry["error"] for entry in run.metrics("validation") if entry["task"] == "temporal"]
    assert history.errors.mean(axis=1).tolist() == pytest.approx(logged)
    assert history.sampled.sum(axis=1).tolist() == [0] + 6 * [2 * 4 * 2]  # iterations, samples, permutations of each


def test_no_wrong_bit_in_a_state_is_more_than_a_file_left_out(copied: Run) -> None:
    file = state_files(copied, "spatial")[1]
    good, whole = file.read_bytes(), len(state_files(copied, "spatial"))
    for position in range(0, 8 * len(good), 211):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        file.write_bytes(damaged)
        assert len(list(read_states(copied, "spatial", ("permutation_errors", "sampled")))) in (whole - 1, whole)


def test_a_state_with_a_damaged_directory_is_left_out_as_a_whole(copied: Run) -> None:
    file = state_files(copied, "spatial")[1]
    good, whole = file.read_bytes(), len(state_files(copied, "spatial"))
    first = good.index(b"PK\x01\x02")
    others = good.index(b"PK\x05\x06") - good.index(b"PK\x01\x02", first + 1)
    hidden = bytearray(good)
    hidden[first + 32 : first + 34] = others.to_bytes(2, "little")  # all other entries are its comment
    unnamed = bytearray(good)
    unnamed[good.rindex(b"permutation_errors")] ^= 1
    for damaged in (hidden, unnamed):
        file.write_bytes(damaged)
        states = list(read_states(copied, "spatial", ("permutation_errors", "sampled")))
        assert len(states) == whole - 1 and all(
            "sampled" in state and "permutation_errors" in state for state in states
        )


def test_an_array_with_an_unreadable_header_is_left_out(copied: Run) -> None:
    file = state_files(copied, "spatial")[1]
    whole = len(state_files(copied, "spatial"))
    header = b"{'descr': ("
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("iteration", "permutation_errors"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert len(list(read_states(copied, "spatial", ("permutation_errors",)))) == whole - 1


def test_incomplete_files_of_a_killed_run_are_left_out(copied: Run) -> None:
    half = copied.states / "spatial-00000012.npz"
    half.write_bytes(half.read_bytes()[:100])
    (copied.states / "spatial-00000006.npz").write_bytes(b"")
    with copied.metrics_file.open("a") as file:
        file.write('{"iteration": 14, "kind": "valida')
    assert read_history(copied, "spatial").iterations.tolist() == [0, 2, 4, 8, 10]


def test_states_from_before_a_run_was_resumed_are_left_out(copied: Run) -> None:
    (copied.states / "spatial-00000099.npz").write_bytes((copied.states / "spatial-00000012.npz").read_bytes())
    assert [file.name for file in state_files(copied, "spatial")][-1] == "spatial-00000012.npz"


def test_without_states(copied: Run) -> None:
    for file in copied.states.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="was it deleted"):
        read_history(copied, "spatial")


def test_tasks(run: Run) -> None:
    assert choose_tasks(run, None) == ["spatial", "temporal"] and choose_tasks(run, "temporal") == ["temporal"]
    with pytest.raises(ValueError, match="no permutation set for the vertical task; choose one of spatial, temporal"):
        choose_tasks(run, "vertical")


def test_open_run_requires_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder"):
        open_run(tmp_path)


def sampling_state(groups: list[int], probabilities: list[float], errors: list[float]) -> SamplingState:
    return SamplingState(0, np.array(errors), np.ones(len(errors)), np.array(groups), np.array(probabilities))


def test_preferences_against_the_probability_of_each_permutation() -> None:
    groups, probabilities = [0, 1, 1, 2, 2, 2, 2, 2], [0.5, 0.25, 0.25]
    state = sampling_state(groups, probabilities, [0.0] * 8)
    for permutation, group in enumerate(groups):
        members = [other for other in groups if other == group]
        chance = probabilities[group] / len(members)  # a group first, then one of its members
        assert state.preferences[group] == pytest.approx(chance * len(groups))
        assert state.likelihoods[permutation] == pytest.approx(chance * len(groups))
    assert state.sizes == pytest.approx([1 / 8, 2 / 8, 5 / 8])


def test_a_group_without_members_is_not_preferred() -> None:
    assert sampling_state([0, 0, 2], [0.5, 0.2, 0.3], [0, 0, 0]).preferences[1] == 0


def test_extremes_are_the_hardest_and_the_easiest_third() -> None:
    errors = [0.9, 0.1, 0.5, 0.8, 0.2, 0.5]
    state = sampling_state([0, 1, 1, 0, 1, 1], [0.6, 0.4], errors)
    hardest, easiest = [0, 3], [1, 4]
    weight = {0: 0.6 / 2 * 6, 1: 0.4 / 4 * 6}
    by_hand = [np.mean([weight[[0, 1, 1, 0, 1, 1][p]] for p in third]) for third in (hardest, easiest)]
    assert state.extremes == pytest.approx((1.8, 0.6)) and by_hand == pytest.approx([1.8, 0.6])


def test_nothing_is_active_before_the_policy_starts() -> None:
    assert not SamplingState(0, np.zeros(3), np.zeros(3), None, None).is_active


def test_groups_of_pairs_are_equal_parts() -> None:
    state = SamplingState(0, np.zeros(10), np.zeros(10), None, np.array([0.6, 0.25, 0.15]))
    assert state.sizes == pytest.approx([1 / 3] * 3)
    assert state.preferences == pytest.approx([1.8, 0.75, 0.45])
    assert state.is_active and state.extremes == pytest.approx((1.8, 0.45)), "the hardest group and the easiest"


@pytest.mark.parametrize("probabilities", [[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.02, 0.03, 0.05, 0.9]])
@pytest.mark.parametrize("candidates", [1, 2, 4, 16])
def test_fractions_of_pairs_against_sampling(probabilities: list[float], candidates: int) -> None:
    """Many samples of which each has 8 permutations chosen among its candidates, as in training."""
    generator, shape = torch.Generator().manual_seed(0), (2000, 8 * candidates)
    logits = torch.rand((*shape, 4), generator=generator)
    noise = gumbel(shape, generator)
    labels = torch.randint(4, shape, generator=generator)
    selected = select(logits, labels, torch.tensor(probabilities).log(), noise, count=8)
    sampled = np.bincount(selected.groups.flatten().numpy(), minlength=4) / (2000 * 8)
    assert pair_fractions(np.array(probabilities), candidates) == pytest.approx(sampled, abs=0.015)


def test_what_is_never_preferred_is_sampled_when_nothing_else_is_left() -> None:
    assert pair_fractions(np.array([1.0, 0.0, 0.0, 0.0]), 2) == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6], abs=1e-6)


def test_sampling_states_are_the_validations_of_the_run(run: Run, uniform_run: Run) -> None:
    states = read_sampling_states(run, "spatial")
    assert [state.iteration for state in states] == [0, 2, 4, 6, 8, 10, 12]
    for state in states:
        with np.load(run.states / f"spatial-{state.iteration:08d}.npz") as arrays:
            assert state.errors == pytest.approx(arrays["permutation_errors"])
            for group, probability in enumerate(arrays["probabilities"]):
                assert state.likelihoods[arrays["groups"] == group].sum() / 6 == pytest.approx(probability)
    assert all(state.groups is None for state in read_sampling_states(uniform_run, "spatial"))


def test_sampling_states_show_the_probabilities_after_the_rollouts(pair_run: Run) -> None:
    """The states are written before the rollouts; the learning-rate drop at iteration 9 changes nothing."""
    states = {state.iteration: state for state in read_sampling_states(pair_run, "spatial")}
    rollouts = {e["iteration"]: e["probability"] for e in pair_run.metrics("rollouts") if e["task"] == "spatial"}
    assert list(states) == [0, 2, 4, 6, 8, 10, 12] and list(rollouts) == [2, 4, 6, 8, 10]
    assert all(state.is_active and state.groups is None for state in states.values())
    for iteration in rollouts:
        assert states[iteration].probabilities == pytest.approx(pair_fractions(np.array(rollouts[iteration]), 3))
    assert len({tuple(probability) for probability in rollouts.values()}) > 1, "they change them"
    arrays = {int(state["iteration"]): state for state in read_states(pair_run, "spatial", ("acting_probabilities",))}
    assert arrays[10]["acting_probabilities"] == pytest.approx(rollouts[8]), "what was sampled since iteration 8"


def test_rollouts_after_which_nothing_was_sampled_yet(tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    policy = {"num_groups": 2, "sampler": "rollouts", "rollout_iterations": 1}
    run = tiny_run(tmp_path / "run", tasks="S", policy=policy, optim={"iterations": 4, "milestones": []})
    lines = [line for line in run.metrics_file.read_text().splitlines() if '"iteration": 4' not in line]
    run.metrics_file.write_text("\n".join(lines) + "\n")  # it is still training
    (rollouts,) = run.metrics("rollouts")
    assert rollouts["iteration"] == 2
    assert read_sampling_states(run, "spatial")[-1].probabilities == pytest.approx(rollouts["probability"])


def test_evenly_spaced() -> None:
    assert evenly_spaced(range(3), 3) == [0, 1, 2] and evenly_spaced(range(9), 3) == [0, 4, 8]
    assert evenly_spaced([], 3) == []


def test_rollouts_of_a_run(run: Run, pair_run: Run) -> None:
    assert list(all_rollouts(run)) == list(run.metrics("rollouts", "spatial")) == []
    both = ("spatial", "temporal")
    assert list(all_rollouts(pair_run)) == [Rollouts(iteration, 3, 2, both) for iteration in (2, 4, 6, 8, 10)]
    for entry in pair_run.metrics("rollouts", "temporal"):
        assert entry["task"] == "temporal" and len(entry["errors"]) == len(entry["advantage"]) == 3


def test_all_tasks_share_their_rollouts(copied: Run) -> None:
    """One training for each group, as many as the task with most groups has."""
    with copied.metrics_file.open("a") as file:
        for iteration, task, errors in ((4, "spatial", [0.5]), (8, "spatial", [0.5, 0.4]), (8, "temporal", [0.5] * 3)):
            entry = {"iteration": iteration, "kind": "rollouts", "task": task, "iterations": 5, "errors": errors}
            file.write(json.dumps(entry | {"probability": errors, "advantage": errors}) + "\n")
    assert list(all_rollouts(copied)) == [Rollouts(4, 1, 5, ("spatial",)), Rollouts(8, 3, 5, ("spatial", "temporal"))]


def test_a_task_without_a_permutation_set_orders_nothing(copied: Run) -> None:
    with copied.metrics_file.open("a") as file:
        file.write('{"iteration": 12, "kind": "validation", "task": "rotation", "error": 0.5, "chance": 0.75}\n')
    assert tasks_of(copied) == ["spatial", "temporal", "rotation"]
    assert ordering_tasks(copied) == choose_tasks(copied, None) == ["spatial", "temporal"]
    with pytest.raises(ValueError, match="no permutation set for the rotation task"):
        choose_tasks(copied, "rotation")


def test_each_state_is_read_once(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = mock.Mock(wraps=history._read_state)
    monkeypatch.setattr(history, "_read_state", reader)
    files = state_files(copied, "spatial")
    for _ in range(2):
        assert len(read_sampling_states(copied, "spatial")) == len(read_history(copied, "spatial").errors) == len(files)
    assert [call.args[0] for call in reader.call_args_list] == files
    os.utime(files[0], (1, 1))  # it was written again, by a resumed run
    read_history(copied, "spatial")
    assert reader.call_count == len(files) + 1
