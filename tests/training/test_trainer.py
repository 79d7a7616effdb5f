import copy
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import unshuffle
from unshuffle.config import Config
from unshuffle.data.squares import Squares
from unshuffle.errors import UserError
from unshuffle.models.weights import load_backbone, read_weights
from unshuffle.permutations import permutation_set, save_permutations
from unshuffle.policy import rollouts
from unshuffle.policy.rollouts import Rollouts
from unshuffle.policy.state import PermutationValidation
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.run import Run
from unshuffle.tasks.base import Outcome
from unshuffle.tasks.prepare import prepare
from unshuffle.training.display import Display
from unshuffle.training.log import NoLog, RunLog
from unshuffle.training.step import Step
from unshuffle.training.trainer import Tally, Trainer, build_trainer, choose_layout


def make(config: Config) -> Trainer:
    return build_trainer(config, prepare(config))


def assert_same_weights(one: Run, other: Run) -> None:
    left, right = load_backbone(one.weights).state_dict(), load_backbone(other.weights).state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("tasks", "first", "last"),
    [
        ("S", ["spatial"], ["spatial"]),
        ("T", ["temporal"], ["temporal"]),
        ("S+T", ["spatial", "temporal"], ["spatial", "temporal"]),
        ("S&T", ["spatial"], ["temporal"]),
        ("R", ["rotation"], ["rotation"]),
        ("S+T+R", ["spatial", "temporal", "rotation"], ["spatial", "temporal", "rotation"]),
        ("S+R&T", ["spatial", "rotation"], ["temporal"]),
        ("I", ["instance"], ["instance"]),
        ("S+T+I", ["spatial", "temporal", "instance"], ["spatial", "temporal", "instance"]),
    ],
)
def test_which_tasks_are_trained_when(
    small: Any, tmp_path: Path, tasks: str, first: list[str], last: list[str]
) -> None:
    trainer = make(small(tmp_path / "run", tasks=tasks))
    assert trainer.active_tasks(0) == tuple(first)
    assert trainer.active_tasks(8) == tuple(last)
    run = run_pretraining(small(tmp_path / "run", tasks=tasks, log={"train_every": 1}))
    logged = [list(entry["loss"]) for entry in run.metrics("train")]
    assert logged[0] == first
    assert logged[-1] == last
    assert [entry["accuracy"].keys() == entry["loss"].keys() for entry in run.metrics("train")] == [True] * 9
    assert {entry["task"] for entry in run.metrics("validation")} == {*first, *last}, "all tasks are validated"


def test_s_and_t_changes_over_at_half_of_the_iterations(small: Any, tmp_path: Path) -> None:
    trainer = make(small(tmp_path / "run", tasks="S&T", optim={"iterations": 10, "milestones": []}))
    assert [trainer.active_tasks(step) for step in (4, 5)] == [("spatial",), ("temporal",)]


def test_stages_have_equal_numbers_of_iterations(small: Any, tmp_path: Path) -> None:
    trainer = make(small(tmp_path / "run", tasks="R&S&T", optim={"iterations": 11, "milestones": []}))
    tasks = [trainer.active_tasks(step) for step in range(11)]
    assert tasks == [("rotation",)] * 3 + [("spatial",)] * 4 + [("temporal",)] * 4


def without_dropout(**others: Any) -> dict[str, Any]:
    """Changes of the config after which a step depends on its batch and weights alone."""
    values: dict[str, Any] = {"optim": {"warmup": 0, "milestones": []}}
    for task in ("spatial", "temporal"):
        values[task] = {"head": {"dropout": 0.0}, **others.get(task, {})}
    return {**others, **values}


def gradients_of_a_step(trainer: Trainer, *tasks: str) -> dict[str, torch.Tensor]:
    """The gradients of the backbone in the first step, in evaluation mode, without an update."""
    trainer.network.eval()
    trainer.iteration = 0
    trainer.optimisers.step = lambda iteration, skipped: None  # type: ignore[method-assign]
    trainer.step({task: trainer.streams[task].batch(0).to(trainer.device) for task in tasks}, Tally())
    gradients = {name: weight.grad for name, weight in trainer.network.backbone.named_parameters()}
    return {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


def test_one_step_sums_the_losses_of_all_tasks(small: Any, tmp_path: Path) -> None:
    """The gradient of a step on three tasks, one of them with larger crops, is the sum of their gradients."""
    trainer = make(small(tmp_path / "run", **without_dropout(tasks="S+T+R")))
    assert {task.settings.crop_size for task in trainer.tasks.values()} == {16, 24}
    together = gradients_of_a_step(trainer, "spatial", "temporal", "rotation")
    alone = [gradients_of_a_step(trainer, task) for task in trainer.tasks]
    assert together.keys() == alone[0].keys() == alone[2].keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[0][name] + alone[1][name] + alone[2][name], msg=name)
        assert all(gradients[name].any() for gradients in alone), name


def test_the_losses_are_weighted(small: Any, tmp_path: Path) -> None:
    weights = {"spatial": 2.0, "temporal": 0.25, "rotation": 1.0}
    sections = {task: {"loss_weight": weight} for task, weight in weights.items()}
    weighted = make(small(tmp_path / "run", **without_dropout(tasks="S+T+R", **sections)))
    plain = make(small(tmp_path / "run", **without_dropout(tasks="S+T+R")))
    together = gradients_of_a_step(weighted, *weights)
    alone = {task: gradients_of_a_step(plain, task) for task in weights}
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, sum(weights[task] * alone[task][name] for task in weights), msg=name)
    tally = Tally()
    weighted.step({"spatial": weighted.streams["spatial"].batch(0)}, tally)
    plain_tally = Tally()
    plain.step({"spatial": plain.streams["spatial"].batch(0)}, plain_tally)
    assert weighted.iteration == plain.iteration == 2
    assert torch.equal(tally.losses["spatial"], plain_tally.losses["spatial"]), "the log shows the loss itself"


def test_a_task_may_have_a_batch_size_of_its_own(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", tasks="S+T+R", temporal={"batch_size": 2}, rotation={"batch_size": 6})
    trainer = make(config)
    assert {task: len(squares) for task, squares in trainer.load(0).items()} == {
        "spatial": 4,
        "temporal": 2,
        "rotation": 6,
    }
    inputs = trainer.inputs(trainer.load(0))
    assert {task: tuple(batch.crops.shape) for task, batch in inputs.items()} == {
        "spatial": (4, 9, 3, 16, 16),
        "temporal": (2, 4, 3, 16, 16),
        "rotation": (6, 4, 3, 24, 24),
    }
    tally = Tally()
    trainer.step(trainer.load(0), tally)
    assert (tally.samples, tally.crops) == (12, 4 * 9 + 2 * 4 + 6 * 4)
    run = run_pretraining(config)
    assert np.load(run.states / "temporal-00000001.npz")["sampled"].sum() == 4, "two permutations of two samples"


def test_a_rotation_run_trains_saves_resumes_and_writes_a_report(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"tasks": "R", "log": {"pictures": True}}
    whole = run_pretraining(small(tmp_path / "whole", **values))
    assert [list(entry["loss"]) for entry in whole.metrics("train")] == [["rotation"]] * 5
    validations = list(whole.metrics("validation"))
    assert {(entry["task"], entry["chance"]) for entry in validations} == {("rotation", 0.75)}
    assert [entry["iteration"] for entry in validations] == [0, 1, 3, 4, 6, 7, 9]
    assert not list(whole.metrics("episode")) and not list(whole.states.iterdir())
    assert "rotation" in whole.report.read_text()
    assert not list(whole.permutations.iterdir()), "there are no permutations"
    assert read_weights(whole.weights)[1]["rotation_crop_size"] == "24"
    step = Trainer.step

    def failing_step(self: Trainer, *args: Any) -> None:
        if self.iteration == 5:
            raise UserError("the disk is full")
        step(self, *args)

    config = small(tmp_path / "interrupted", **values)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="disk"):
        patch.setattr(Trainer, "step", failing_step)
        run_pretraining(config)
    resumed = run_pretraining(config, resume=True)
    assert_same_weights(resumed, whole)
    assert [entry["error"] for entry in resumed.metrics("validation")] == [entry["error"] for entry in validations]
    assert resumed.report.exists()


def test_the_tally_sums_the_steps_of_each_task() -> None:
    tally = Tally()
    for loss, accuracy in ((1.0, 0.5), (3.0, 1.0)):
        tally.add("spatial", Outcome(torch.tensor(loss), torch.tensor(accuracy)), torch.tensor(False))
    tally.add("temporal", Outcome(torch.tensor(7.0), torch.tensor(0.0)), torch.tensor(False))
    tally.add("temporal", Outcome(torch.tensor(torch.nan), torch.tensor(0.5)), torch.tensor(True))
    assert tally.steps == {"spatial": 2, "temporal": 1}
    assert {task: float(total) for task, total in tally.losses.items()} == {"spatial": 4.0, "temporal": 7.0}
    assert {task: float(total) for task, total in tally.accuracies.items()} == {"spatial": 1.5, "temporal": 0.0}


def test_the_run_folder_has_what_the_design_promises(small: Any, tmp_path: Path) -> None:
    run = run_pretraining(small(tmp_path / "run"))
    for name in ("config.yaml", "metrics.jsonl", "backbone.safetensors", "skipped.csv", "tensorboard", "checkpoints"):
        assert (run.folder / name).exists(), name
    monitors = list(run.metrics("monitor"))
    assert [entry["iteration"] for entry in monitors] == [0, 9]
    assert {"top1", "top5"} <= monitors[0].keys()
    assert {entry["name"] for entry in run.metrics("baseline")} == {"raw pixels", "colour histograms"}
    validations = [(entry["task"], entry["iteration"]) for entry in run.metrics("validation")]
    assert validations == [(task, step) for step in (0, 1, 3, 4, 6, 7, 9) for task in ("spatial", "temporal")]
    last = list(run.metrics("validation"))[-1]
    assert last["chance"] == pytest.approx(1 - 1 / 5)
    errors = np.load(run.states / "temporal-00000009.npz")["permutation_errors"]
    assert errors.shape == (5,)
    assert errors.mean() == pytest.approx(last["error"])


# ---- the pretext test set


def test_the_test_error_is_measured_from_start_to_end(small: Any, tmp_path: Path) -> None:
    log = {"monitor_every": 4}
    run = run_pretraining(small(tmp_path / "run", tasks="S+T+R", log=log))
    logged = [(entry["iteration"], entry["task"]) for entry in run.metrics("test")]
    assert logged == [(step, task) for step in (0, 4, 8, 9) for task in ("spatial", "temporal", "rotation")]
    assert [entry["iteration"] for entry in run.metrics("monitor")] == [0, 4, 8, 9], "beside the retrieval"
    assert [entry["chance"] for entry in run.metrics("test")][:3] == pytest.approx([5 / 6, 4 / 5, 3 / 4])
    # the obvious way: every permutation of every sample through the network by itself
    trainer = make(run.config)
    trainer.load_state_dict(load_checkpoint(list_checkpoints(run.checkpoints)[-1]))
    for name, task in trainer.ordering_tasks.items():
        samples = trainer.data.test[name]
        wrong = []
        for item in samples.items:
            crops = task.crops(Squares.of(replace(samples, items=np.array([item])).centres()))
            for label in range(len(task.permutations)):
                wrong.append(int(task.recognise(trainer.network, crops, torch.tensor([label]))) != label)
        last = list(run.metrics("test", name))[-1]
        assert last["error"] == pytest.approx(np.mean(wrong)) and len(wrong) == len(samples) * len(task.permutations)


def test_it_needs_no_retrieval_monitor(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", log={"monitor_every": 4})
    trainer, run = make(config), Run(tmp_path / "run")
    assert trainer.monitor is None
    with RunLog(run) as log:
        trainer.train(run, log, Display(trainer.statuses(), 9, console=Console(quiet=True)))
    assert [entry["iteration"] for entry in run.metrics("test", "temporal")] == [0, 4, 8, 9]
    assert not list(run.metrics("monitor"))


def test_nothing_in_the_training_depends_on_the_test_set(small: Any, tmp_path: Path) -> None:
    """Neither weights, nor samplers, nor rollouts, nor validations: with other pixels only the test errors change."""
    entries, tests, states = [], [], []
    for noise in (False, True):
        config = small(tmp_path / f"run {noise}", log={"monitor_every": 3}, **with_rollouts())
        trainer, run = make(config), Run(tmp_path / f"run {noise}")
        for pixels in trainer._own_test.values():
            if noise:
                generator = torch.Generator().manual_seed(0)  # dropout uses the global one
                pixels.copy_(torch.randint(256, pixels.shape, generator=generator))
        with RunLog(run) as log:
            trainer.train(run, log, Display(trainer.statuses(), 9, console=Console(quiet=True)))
        kinds = ("validation", "episode", "rollouts")
        entries.append([{**entry, "seconds": 0, "time": 0} for entry in run.metrics() if entry["kind"] in kinds])
        tests.append([entry["error"] for entry in run.metrics("test")])
        states.append(bits(trainer.state_dict()))
    assert tests[0] != tests[1]
    assert entries[0] == entries[1] and states[0] == states[1]
    assert {entry["kind"] for entry in entries[0]} == {"validation", "episode", "rollouts"}


def test_a_run_without_a_test_set(small: Any, tmp_path: Path) -> None:
    run = run_pretraining(small(tmp_path / "run", data={"test_size": 0}))
    assert not list(run.metrics("test")) and run.weights.exists()
    few = run_pretraining(small(tmp_path / "few", synthetic={"clips": 9}))
    assert {entry["task"] for entry in few.metrics("test")} == {"spatial"}, "nine clips are too few"


def test_a_resumed_run_needs_the_test_set_it_began_with(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    trainer = make(config)
    state = trainer.state_dict()
    data = prepare(config)
    data.test["spatial"] = replace(data.test["spatial"], items=data.test["spatial"].items[:-1])
    with pytest.raises(UserError, match="the data has changed since the run began"):
        build_trainer(config, data).load_state_dict(state)
    trainer.load_state_dict(state)


def test_the_same_config_gives_the_same_run(small: Any, tmp_path: Path) -> None:
    one, other = (run_pretraining(small(tmp_path / name)) for name in ("one", "other"))
    assert_same_weights(one, other)
    different = run_pretraining(small(tmp_path / "different", seed=1))
    weights = [load_backbone(run.weights).state_dict() for run in (one, different)]
    assert any(not torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_threads_do_not_change_the_run(small: Any, tmp_path: Path) -> None:
    one = run_pretraining(small(tmp_path / "one"))
    several = run_pretraining(small(tmp_path / "several", data={"workers": 4}))
    assert_same_weights(one, several)


def test_init_starts_from_given_weights(small: Any, tmp_path: Path) -> None:
    first = run_pretraining(small(tmp_path / "first"))
    trainer = make(small(tmp_path / "second", init=str(first.folder), seed=5))
    for name, value in load_backbone(first.weights).state_dict().items():
        assert torch.equal(trainer.network.backbone.state_dict()[name], value), name
    with pytest.raises(UserError, match="not of caffenet"):
        make(
            small(
                tmp_path / "third",
                init=str(first.weights),
                model={"backbone": "caffenet"},
                spatial={"crop_size": 75},
                temporal={"crop_size": 75},
            )
        )


@pytest.mark.parametrize("task", ["spatial", "rotation"])
@pytest.mark.parametrize("train_every", [1, 3])
def test_numbers_that_overflow_are_one_sentence_and_never_saved(
    small: Any, tmp_path: Path, train_every: int, task: str
) -> None:
    config = small(
        tmp_path / "run",
        tasks="S+T+R",
        **{task: {"optimiser": {"lr": 1e30, "kind": "sgd"}}},
        log={"train_every": train_every, "checkpoint_every": 1},
    )
    with pytest.raises(UserError, match="weights or outputs overflowed before iteration"):
        run_pretraining(config)
    for path in list_checkpoints(Run(config.out).checkpoints):
        network = load_checkpoint(path)["network"]
        assert all(bool(value.isfinite().all()) for value in network.values())


def test_sets_from_files(small: Any, tmp_path: Path) -> None:
    mine = permutation_set(9, 7, seed=5)
    save_permutations(tmp_path / "mine.npy", mine)
    files = {"spatial": {"permutation_file": str(tmp_path / "mine.npy")}}
    trainer = make(small(tmp_path / "run", **files))
    assert trainer.permutations["spatial"].tolist() == mine.tolist()
    wrong = {"temporal": {"permutation_file": str(tmp_path / "mine.npy")}}
    with pytest.raises(UserError, match="is for 9 parts, but the temporal task has 4"):
        make(small(tmp_path / "run", **wrong))


def test_bf16_steps_are_close_to_fp32(small: Any, tmp_path: Path) -> None:
    losses, gradients = {}, {}
    for precision in ("fp32", "bf16"):
        trainer = make(small(tmp_path / "run", tasks="S+T+R+I", optim={"precision": precision}))
        tally = Tally()
        trainer.step({task: stream.batch(0) for task, stream in trainer.streams.items()}, tally)
        losses[precision] = {task: float(value) for task, value in tally.losses.items()}
        parameters = trainer.network.backbone.parameters()
        gradients[precision] = torch.cat([weight.grad.flatten() for weight in parameters if weight.grad is not None])
    for task, loss in losses["fp32"].items():
        # at chance a loss hardly depends on the features; a temperature multiplies differences
        assert losses["bf16"][task] == pytest.approx(loss, rel=0.02 if task == "instance" else 3e-3)
        assert losses["bf16"][task] != loss
    assert float(torch.cosine_similarity(*gradients.values(), dim=0)) > 0.97
    assert float(gradients["bf16"].norm() / gradients["fp32"].norm()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("device", "onednn", "expected"), [("cpu", True, True), ("cpu", False, False), ("mps", True, False)]
)
def test_convolutions_of_images_are_channels_last_where_that_is_fast(
    precision: str, device: str, onednn: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of other convolutions have no such layout."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5), torch.nn.Conv3d(4, 5, 3), torch.nn.Linear(2, 2))
    choose_layout(network, precision, torch.device(device))
    kernel = network[0].get_parameter("weight")
    assert kernel.is_contiguous(memory_format=torch.channels_last) is expected


# rollouts


def with_rollouts(grouping: str = "pairs", **others: Any) -> dict[str, Any]:
    """Two times three rollouts: one for each group at iterations 3 and 6."""
    grouped = {"grouping": grouping, "prior_correction": grouping == "permutations"}
    return {"policy": {"sampler": "rollouts", "rollout_iterations": 4, **grouped, **others}}


def state_without_advantages(trainer: Trainer) -> dict[str, Any]:
    """The state of a trainer, but for what its samplers have learned."""
    state = copy.deepcopy(trainer.state_dict())
    for task in state["tasks"].values():
        if task:  # rotation has no sampler
            for learned in ("advantage", "preferred", "behaviour"):
                del task["sampler"][learned]
    return {**state, "training": trainer.network.training}


def bits(value: Any) -> Any:
    """Something to compare for equality, tensors by their bits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(inner) for key, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("grouping", ["pairs", "permutations"])
def test_rollouts_leave_no_trace(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouping: str) -> None:
    """Dropout uses the global generator, and a milestone lies within the rollouts of iteration 3."""
    real, iterations, learned = Trainer._run_rollouts, [], []

    def watched(self: Trainer, log: RunLog) -> None:
        before = state_without_advantages(self)
        old_states = {name: task.sampler.state_dict() for name, task in self.ordering_tasks.items()}
        real(self, log)
        assert bits(state_without_advantages(self)) == bits(before)
        for name, task in self.ordering_tasks.items():
            new, old = task.sampler.state_dict(), old_states[name]
            learned.append(not torch.allclose(new["advantage"], old["advantage"], atol=1e-3))
            assert torch.allclose(new["behaviour"], old["behaviour"], atol=1e-3) != learned[-1]
            task.sampled.reduce(lambda own: own)
            assert not task.sampled.permutations.any(), "nothing of a rollout is left to be counted"
        iterations.append(self.iteration)

    # six samples are too few for reliable differences
    monkeypatch.setattr(rollouts, "advantages", lambda errors, count: torch.arange(count) - (count - 1) / 2)
    monkeypatch.setattr(Trainer, "_run_rollouts", watched)
    run_pretraining(small(tmp_path / "run", tasks="S+T+R", **with_rollouts(grouping)))
    assert iterations == [3, 6] and all(learned)


@pytest.mark.parametrize("tasks", ["S+T", "S&T"])
def test_without_learning_from_them_rollouts_change_nothing(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    monkeypatch.setattr(Rollouts, "compare", lambda self, errors: torch.zeros(3))
    with_them = run_pretraining(small(tmp_path / "with", tasks=tasks, **with_rollouts()))
    assert list(with_them.metrics("rollouts"))
    monkeypatch.setattr(Trainer, "_run_rollouts", lambda *_: None)
    without = run_pretraining(small(tmp_path / "without", tasks=tasks, **with_rollouts()))
    states = [load_checkpoint(list_checkpoints(run.checkpoints)[-1]) for run in (with_them, without)]
    assert bits(states[0]) == bits(states[1])


def test_the_log_of_rollouts(small: Any, tmp_path: Path) -> None:
    run = run_pretraining(small(tmp_path / "run", **with_rollouts()))
    entries = list(run.metrics("rollouts"))
    logged = [(entry["iteration"], entry["task"]) for entry in entries]
    assert logged == [(step, task) for step in (3, 6) for task in ("spatial", "temporal")], "none at the end"
    for entry in entries:
        assert entry.keys() == {
            *("iteration", "kind", "seconds", "time", "task"),
            *("iterations", "errors", "advantage", "probability"),
        }
        assert entry["iterations"] == 4
        assert len(entry["errors"]) == len(entry["advantage"]) == len(entry["probability"]) == 3
        assert all(0 <= error <= 1 for error in entry["errors"])
        assert sum(entry["probability"]) == pytest.approx(1, abs=1e-6)


@dataclass
class RolloutStep:
    """A step of a rollout."""

    iteration: int
    behaviour: list[float]
    crops: list[float]


def steps_of_rollouts(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[list[RolloutStep]]:
    """The input of the spatial task in each rollout after three iterations."""
    steps: list[list[RolloutStep]] = []
    train, learn, sampler = Trainer.train_iterations, Step.__call__, trainer.ordering_tasks["spatial"].sampler

    def watched_rollout(self: Trainer, count: int) -> None:
        steps.append([])
        train(self, count)

    def watched_step(self: Step, inputs: Any, iteration: int) -> Any:
        assert isinstance(sampler, Rollouts)
        if steps:
            pixels = inputs["spatial"].crops.flatten()[::997].tolist()
            steps[-1].append(RolloutStep(iteration, sampler.behaviour.tolist(), pixels))
        return learn(self, inputs, iteration)

    monkeypatch.setattr(Trainer, "train_iterations", watched_rollout)
    monkeypatch.setattr(Step, "__call__", watched_step)
    trainer.last = 3
    quiet = Display(trainer.statuses(), 3, console=Console(quiet=True))
    assert trainer.config.out is not None
    trainer.train(Run(trainer.config.out), NoLog(), quiet)
    assert steps == [], "not at the end"
    trainer.last = 9
    trainer._validate(NoLog(), quiet)
    return steps


@pytest.mark.parametrize("length", [1, 4, 5])
def test_rollouts_see_the_same_batches(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """One group preferred; all rollouts on the same batches from the same iteration."""
    options = with_rollouts(exploration=0.0, rollout_iterations=length)
    config = small(tmp_path / "run", optim={"milestones": []}, **options)
    groups = steps_of_rollouts(make(config), monkeypatch)
    assert len(groups) == 3
    for group, steps in enumerate(groups):
        assert [step.iteration for step in steps] == list(range(3, 3 + length))
        for done, step in enumerate(steps):
            np.testing.assert_allclose(step.behaviour, 0.5 * np.eye(3)[group] + 0.5 / 3, atol=1e-6)
            assert step.crops == groups[0][done].crops


def test_the_advantage_of_a_group_follows_from_the_error_after_its_rollout(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With known errors, the group with the lowest error is preferred after the rollouts."""
    errors = {"spatial": [3 / 6, 1 / 6, 3 / 6], "temporal": [3 / 5, 2 / 5, 1 / 5]}
    train, validate, prefer = Trainer.train_iterations, Trainer.validate, Rollouts.prefer
    number: list[int] = []
    preferred: list[int] = []

    def counted(self: Trainer, count: int) -> None:
        number.append(count)
        train(self, count)

    def recorded(self: Rollouts, group: int) -> None:
        preferred.append(group)
        prefer(self, group)

    def with_known_errors(self: Trainer, task: str) -> PermutationValidation:
        validation = validate(self, task)
        if not number or self.iteration == 3:
            return validation
        wrong = round(errors[task][len(number) - 1] * len(validation.state))
        state = torch.full_like(validation.state, 2.0)
        state[:wrong] = 0.5
        return replace(validation, state=state)

    monkeypatch.setattr(Trainer, "train_iterations", counted)
    monkeypatch.setattr(Rollouts, "prefer", recorded)
    monkeypatch.setattr(Trainer, "validate", with_known_errors)
    config = small(tmp_path / "run", optim={"iterations": 4, "milestones": []}, **with_rollouts())
    run = run_pretraining(config)
    assert number == [4, 4, 4] and preferred == [0, 0, 1, 1, 2, 2]
    entries = {entry["task"]: entry for entry in run.metrics("rollouts")}
    for task, expected in errors.items():
        entry = entries[task]
        assert entry["errors"] == pytest.approx(expected)
        assert np.argmax(entry["advantage"]) == np.argmax(entry["probability"]) == np.argmin(expected)
        stored = np.load(run.states / f"{task}-00000004.npz")
        assert stored["acting_probabilities"].tolist() == pytest.approx(entry["probability"])


def test_a_task_that_is_not_trained_now_has_no_rollouts(small: Any, tmp_path: Path) -> None:
    run = run_pretraining(small(tmp_path / "run", tasks="S&T", **with_rollouts()))
    logged = [(entry["iteration"], entry["task"]) for entry in run.metrics("rollouts")]
    assert logged == [(3, "spatial"), (6, "temporal")]


@pytest.mark.parametrize("sampler", ["uniform", "reinforce"])
def test_permutations_are_counted_as_they_are_trained_on(small: Any, tmp_path: Path, sampler: str) -> None:
    """Two permutations of each of four samples in a step."""
    run = run_pretraining(small(tmp_path / "run", policy={"sampler": sampler}))
    for task, count in (("spatial", 6), ("temporal", 5)):
        before = 0
        for step in (0, 1, 3, 4, 6, 7, 9):
            sampled = np.load(run.states / f"{task}-{step:08d}.npz")["sampled"]
            assert sampled.shape == (count,) and sampled.sum() == 8 * (step - before)
            before = step


@pytest.mark.parametrize("action", ["mixture", "batch"])
def test_samples_are_counted_for_each_group(small: Any, tmp_path: Path, action: str) -> None:
    """Two permutations of each of four samples in a step, two steps in an episode; with `batch` of one group a step."""
    run = run_pretraining(small(tmp_path / "run", policy={"action": action}))
    episodes = [(entry["iteration"], sum(entry["sampled"])) for entry in run.metrics("episode")]
    assert episodes == [(step, 16) for step in (3, 6, 9) for _ in ("spatial", "temporal")]
    of_whole_batches = [all(count % 8 == 0 for count in entry["sampled"]) for entry in run.metrics("episode")]
    assert all(of_whole_batches) if action == "batch" else not all(of_whole_batches)


def test_pairs_are_counted_as_they_are_selected(small: Any, tmp_path: Path) -> None:
    """Two permutations of each of four samples in a step, of six candidates."""
    run = run_pretraining(
        small(tmp_path / "run", policy={"grouping": "pairs", "prior_correction": False, "candidates": 3})
    )
    for task, count in (("spatial", 6), ("temporal", 5)):
        before = 0
        for step in (0, 1, 3, 4, 6, 7, 9):
            sampled = np.load(run.states / f"{task}-{step:08d}.npz")["sampled"]
            assert sampled.shape == (count,) and sampled.sum() == 8 * (step - before)
            before = step
        episodes = [entry for entry in run.metrics("episode") if entry["task"] == task]
        assert [(entry["iteration"], sum(entry["sampled"])) for entry in episodes] == [(3, 16), (6, 16), (9, 16)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_on_a_gpu_saves_and_resumes(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", device="cuda", tasks="S+T+R", optim={"precision": "bf16"})
    run = run_pretraining(config)
    before = load_backbone(run.weights).state_dict()
    assert load_backbone(run_pretraining(config, resume=True).weights).state_dict().keys() == before.keys()


@pytest.mark.slow
def test_the_demo_learns_what_the_readme_promises(tmp_path: Path) -> None:
    """The preset with fewer iterations: errors of 0.5 and 0.6 at most, and retrieval ten points above all baselines."""
    shorter = {"iterations": 250, "milestones": [190]}
    run = unshuffle.pretrain(out=tmp_path / "run", device="cpu", optim=shorter, log={"pictures": False})
    last = {entry["task"]: entry["error"] for entry in run.metrics("validation")}
    assert last["spatial"] <= 0.5
    assert last["temporal"] <= 0.6
    first, *_, trained = (entry["top1"] for entry in run.metrics("monitor"))
    others = [entry["top1"] for entry in run.metrics("baseline")]
    assert trained >= max(first, *others) + 10


def test_training_leaves_chance_on_the_synthetic_world(small: Any, tmp_path: Path) -> None:
    config = small(
        tmp_path / "run",
        synthetic={"images": 120, "clips": 100},
        permutations={"per_sample": 5},
        spatial={"head": {"fc6": 64, "hidden": 128, "dropout": 0}},
        # with a shared crop, frames are put in order sooner
        temporal={"shared_crop": True, "head": {"fc6": 64, "hidden": 64, "dropout": 0}},
        optim={"iterations": 120, "batch_size": 16, "milestones": []},
        policy={"interval": 20, "batches": 20},
        log={"monitor_every": 120, "checkpoint_every": 120},
    )
    run = run_pretraining(config)
    last = {entry["task"]: entry for entry in run.metrics("validation")}
    assert last["spatial"]["error"] < 0.3
    assert last["temporal"]["error"] < 0.6


def test_a_run_opens_only_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        Run.open(tmp_path)


def test_a_line_shows_the_validation_of_its_own_iteration(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.training.display.SECONDS_BETWEEN_LINES", -1.0)
    text = io.StringIO()
    run = run_pretraining(small(tmp_path / "run", tasks="S", log={"train_every": 3}), console=Console(file=text))
    errors = {entry["iteration"]: entry["error"] for entry in run.metrics("validation")}
    shown = re.findall(r"^(\d+)/9 .* validation error ([\d.]+)", text.getvalue(), re.MULTILINE)
    lines = dict(shown)  # the last line of each iteration
    assert {step: lines[str(step)] for step in (3, 6, 9)} == {step: f"{errors[step]:.3f}" for step in (3, 6, 9)}
