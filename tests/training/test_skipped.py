"""Steps that are skipped because their loss or gradients are not finite."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.cli import run as run_command
from unshuffle.errors import UserError
from unshuffle.options import write_config
from unshuffle.pretraining import run_pretraining
from unshuffle.report.views import describe_run
from unshuffle.runs.checkpoints import checkpoint_iterations, list_checkpoints, load_checkpoint
from unshuffle.runs.folders import find_runs
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import prepare
from unshuffle.training.skipped import SkippedSteps
from unshuffle.training.trainer import Trainer, build_trainer


def flags(first: int, *skipped: bool) -> dict[int, Tensor]:
    return {first + number: torch.tensor(value) for number, value in enumerate(skipped)}


def test_steps_are_counted_in_all_and_in_a_row() -> None:
    steps, some = SkippedSteps(), flags(5, True, False, True, True)
    steps.count(some)
    assert (steps.total, steps.in_a_row, steps.last, steps.unlogged) == (3, 2, 8, [5, 7, 8])
    assert some == {}, "nothing is counted twice"
    steps.count({})
    assert steps.in_a_row == 2
    steps.count(flags(9, True))
    assert (steps.total, steps.in_a_row) == (4, 3)
    resumed = SkippedSteps()
    resumed.load_state_dict(steps.state_dict())
    assert resumed == steps
    resumed.count(flags(10, False))
    assert resumed.in_a_row == 0 and steps.in_a_row == 3


@pytest.mark.parametrize(
    ("total", "in_a_row", "iterations", "excess"),
    [
        (3, 3, 100, None),
        (4, 4, 100, "4 steps in a row were"),
        (10, 1, 100, None),
        (11, 1, 100, "11 of 100 steps were"),
        (3, 1, 4, None),  # too few to tell
        (4, 1, 5, "4 of 5 steps were"),
    ],
)
def test_when_too_many_are_skipped(total: int, in_a_row: int, iterations: int, excess: str | None) -> None:
    assert SkippedSteps(total, longest=in_a_row).excess(3, iterations) == excess


def test_a_row_that_has_ended_before_the_check_counts() -> None:
    steps = SkippedSteps()
    steps.count(flags(0, True, True, True, True, False))
    assert steps.in_a_row == 0 and steps.excess(3, 1000) == "4 steps in a row were" and steps.excess(4, 1000) is None
    once = SkippedSteps()
    once.count(flags(7, False, True, False))
    assert once.excess(0, 1000) == "a step was"


def final(run: Run) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(run.checkpoints)[-1])


def test_a_run_continues_after_steps_that_are_not_finite(small: Any, poisoned: Any, tmp_path: Path) -> None:
    config, text = small(tmp_path / "run"), io.StringIO()
    with poisoned(0, 4):
        run = run_pretraining(config, console=Console(file=text, width=200))
    state = final(run)
    assert state["iteration"] == 9 and state["skipped"]["total"] == 2
    assert all(bool(value.isfinite().all()) for value in state["network"].values())
    lines = list(run.metrics("skipped"))
    assert [(line["iteration"], line["step"]) for line in lines] == [(2, 1), (6, 5)]
    assert {name: len(files) for name, files in lines[0]["files"].items()} == {"spatial": 4, "temporal": 4}
    assert [line["skipped"] for line in run.metrics("train")] == [1, 0, 1, 0, 0]
    assert all(np.isfinite(list(line["loss"].values())).all() for line in run.metrics("train"))
    sampled = [np.load(run.states / f"spatial-{iteration:08d}.npz")["sampled"].sum() for iteration in (3, 4, 6, 7, 9)]
    assert sampled == [16, 8, 8, 8, 16], "two permutations of four samples in each step but those two"
    sentence = "2 of 9 steps were skipped because the loss or a gradient was not finite"
    assert sentence in text.getvalue() and "2 steps skipped (not finite)" in text.getvalue()
    assert any(sentence in remark for remark in describe_run(find_runs([run.folder])[0], "blue")["remarks"])


def test_the_files_are_those_of_the_batch(small: Any, poisoned: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", tasks="S", log={"train_every": 1})
    with poisoned(3):
        run = run_pretraining(config)
    (line,) = run.metrics("skipped")
    stream = build_trainer(config, prepare(config)).streams["spatial"]
    names = [stream.samples.source.names[item] for item in stream.items(3).tolist()]
    assert line["files"] == {"spatial": names} and len(set(names)) == 4


def test_too_many_in_a_row_stop_the_run_and_name_the_files(small: Any, poisoned: Any, tmp_path: Path) -> None:
    config = small(
        tmp_path / "run", optim={"iterations": 30, "max_skipped_steps": 3}, policy={"interval": 30, "batches": 30}
    )
    with poisoned(*range(5, 30)), pytest.raises(UserError) as stopped:
        run_pretraining(config)
    run, sentence = Run(tmp_path / "run"), str(stopped.value)
    assert checkpoint_iterations(run.checkpoints) == [4], "none is written amid skipped steps"
    *_, last = run.metrics("skipped")
    assert last["step"] == 10 and last["iteration"] == 10
    assert sentence.startswith("5 steps in a row were skipped because loss or gradients were not finite")
    assert f"the last one step 10 with {last['files']['spatial'][0]}" in sentence
    assert "the checkpoint of iteration 4 is kept" in sentence and "\n" not in sentence
    assert all(bool(value.isfinite().all()) for value in final(run)["network"].values())
    # the cause is gone: the run continues to its end
    resumed = run_pretraining(config, resume=True)
    assert final(resumed)["iteration"] == 30


def test_a_tenth_of_all_steps_is_too_many(small: Any, poisoned: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", optim={"max_skipped_steps": 2})
    with poisoned(0, 2, 4, 6), pytest.raises(UserError, match=r"^3 of 6 steps were skipped"):
        run_pretraining(config)


def test_the_command_ends_with_exit_code_2(
    small: Any, poisoned: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(small(tmp_path / "run", optim={"max_skipped_steps": 0}), tmp_path / "config.yaml")
    with poisoned(*range(9)):
        command = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "command")]
        assert run_command(command) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("unshuffle: 2 steps in a row were skipped") and "there is no checkpoint yet" in line


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_never_saved(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    step = Trainer.step

    def damaging(self: Trainer, *args: Any) -> None:
        if self.iteration == 5:
            with torch.no_grad():
                next(self.network.heads["spatial"].parameters()).flatten()[0] = value
        step(self, *args)

    monkeypatch.setattr(Trainer, "step", damaging)
    config = small(tmp_path / "run", optim={"max_skipped_steps": 1}, policy={"interval": 9, "batches": 9})
    with pytest.raises(UserError, match="3 steps in a row were skipped"):
        run_pretraining(config)
    run = Run(tmp_path / "run")
    assert checkpoint_iterations(run.checkpoints) == [4]
    assert all(bool(value.isfinite().all()) for value in final(run)["network"].values())


@pytest.mark.parametrize("kill_at", [4, 5, 7])
@pytest.mark.parametrize("train_every", [2, 3])
def test_a_run_with_skipped_steps_resumes_bit_exactly(
    small: Any, poisoned: Any, tmp_path: Path, train_every: int, kill_at: int
) -> None:
    """Also one whose checkpoint was written before the skipped step was logged."""

    class Killed(BaseException):
        pass

    def die(self: Trainer, *args: Any) -> None:
        if self.iteration == kill_at:
            raise Killed
        step(self, *args)

    step, options = Trainer.step, {"log": {"train_every": train_every, "checkpoint_every": 4}}
    with poisoned(1, 2, 6):
        whole = run_pretraining(small(tmp_path / "whole", **options))
        config = small(tmp_path / "interrupted", **options)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Trainer, "step", die)
            run_pretraining(config)
        resumed = run_pretraining(config, resume=True)
    one, other = final(whole), final(resumed)
    assert one["skipped"] == other["skipped"] and one["skipped"]["total"] == 3
    for name, value in one["network"].items():
        assert torch.equal(value, other["network"][name]), name
    assert whole.weights.read_bytes() == resumed.weights.read_bytes()
    lines = [[{**line, "seconds": 0, "time": 0} for line in run.metrics("skipped")] for run in (whole, resumed)]
    assert lines[0] == lines[1] and len(lines[0]) == 3


def test_rollouts_with_steps_that_are_not_finite_leave_no_trace(small: Any, poisoned: Any, tmp_path: Path) -> None:
    """The steps 4 to 6 are also those of the rollouts at iteration 3; only those of the training count."""
    rollouts = {"sampler": "rollouts", "grouping": "pairs", "prior_correction": False, "rollout_iterations": 3}
    with poisoned(4):
        run = run_pretraining(small(tmp_path / "run", policy=rollouts))
    assert final(run)["skipped"]["total"] == 1 and len(list(run.metrics("skipped"))) == 1
    assert all(np.isfinite(line["errors"]).all() for line in run.metrics("rollouts"))
