"""A task that is not part of the package: registered, configured, trained, resumed, reported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import unshuffle
from unshuffle.config import REGISTERED, TASK_SYMBOLS, Config, read_config
from unshuffle.data.squares import Squares
from unshuffle.doctor import overfit
from unshuffle.models import build_backbone
from unshuffle.tasks import TASKS, register_task
from unshuffle.tasks.base import Inputs, Network, Task
from unshuffle.tasks.classification import ClassificationTask
from unshuffle.tasks.prepare import prepare
from unshuffle.tasks.rotation import RotationTask

LOCATION = """
import torch
import unshuffle


class LocationTask(unshuffle.ClassificationTask):
    name, grid, classes, answers = "location", 3, 8, range(8)

    def questions(self, features):
        centre, others = features[:, 4:5], torch.cat([features[:, :4], features[:, 5:]], dim=1)
        return torch.cat([centre.expand_as(others), others], dim=2)


unshuffle.register_task("L", LocationTask, unshuffle.ClassificationConfig(crop_size=24, hidden=16))
"""


@pytest.fixture
def location() -> Iterator[type[ClassificationTask]]:
    """The task of LOCATION, registered for one test."""
    tasks, symbols, sections = dict(TASKS), dict(TASK_SYMBOLS), dict(REGISTERED)
    names: dict[str, type[ClassificationTask]] = {}
    exec(LOCATION, names)
    yield names["LocationTask"]
    for registry, before in ((TASKS, tasks), (TASK_SYMBOLS, symbols), (REGISTERED, sections)):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(before)  # type: ignore[attr-defined]


def squares(batch: int = 4, side: int = 96) -> Squares:
    pixels = torch.randint(0, 256, (batch, 1, side, side, 3), generator=torch.Generator().manual_seed(0))
    return Squares.of(pixels.byte())


def test_crops_are_the_cells_of_the_grid(location: type[ClassificationTask], config: Config) -> None:
    task = location(replace(config, registered={"location": replace(REGISTERED["location"], crop_fraction=1.0)}))  # type: ignore[call-arg]
    assert task.parts == 9
    pictures = task.pictures(squares().pixels().unflatten(0, (4, 1)), 32)
    assert pictures.shape == (4, 9, 3, 32, 32)
    expected = squares().pixels()[:, 32:64, 64:].permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(pictures[:, 5], expected)


def test_loss_accuracy_and_validation_against_a_loop(location: type[ClassificationTask], config: Config) -> None:
    torch.manual_seed(0)
    network = Network(build_backbone("tiny"), {"location": location(config)}).eval()
    task = network.tasks["location"]
    crops = task.crops(squares())
    outcome = network({"location": Inputs(crops)})["location"]
    features, head = network.features({"location": crops})["location"], network.heads["location"]
    losses, wrong = [], []
    for parts in features:
        for label, place in enumerate(place for place in range(9) if place != 4):
            logits = head(torch.cat([parts[4], parts[place]]))
            losses.append(F.cross_entropy(logits, torch.tensor(label)))
            wrong.append(int(logits.argmax()) != label)
    torch.testing.assert_close(outcome.loss, torch.stack(losses).mean())
    assert float(outcome.accuracy) == pytest.approx(1 - sum(wrong) / 32)
    validation = task.validate(network, [crops])
    assert validation.error == pytest.approx(sum(wrong) / 32) and validation.chance == 1 - 1 / 8


def test_it_trains_jointly_and_is_reported_and_resumed(
    location: type[ClassificationTask], config: Config, tmp_path: Path
) -> None:
    options = {**SMALL_RUN, "tasks": "S+L", "location": {"hidden": 8}}
    run = unshuffle.pretrain(out=tmp_path / "run", iterations=2, **options)  # type: ignore[arg-type]
    assert [entry["task"] for entry in run.metrics("test") if entry["iteration"] == 2] == ["spatial", "location"]
    assert run.config.section("location").hidden == 8  # type: ignore[attr-defined]
    assert read_config(run.config_file) == run.config
    unshuffle.pretrain(out=tmp_path / "run", resume=True, iterations=4)
    assert max(entry["iteration"] for entry in run.metrics("train")) == 4
    assert "location" in (run.folder / "report.html").read_text()


SMALL_RUN = {
    "synthetic": {"images": 12, "clips": 12, "gallery": 12, "queries": 6},
    "batch_size": 2,
    "data": {"val_size": 4},
    "spatial": {"permutations": 12},
    "log": {"train_every": 1},
    "device": "cpu",
}


def test_doctor_can_overfit_it(location: type[ClassificationTask], config: Config) -> None:
    tasks = replace(config, tasks="L")
    assert overfit(tasks, prepare(tasks), "location", samples=2, choices=2, steps=1)["steps"] == 1


def test_options_of_it_are_checked(location: type[ClassificationTask], tmp_path: Path) -> None:
    with pytest.raises(unshuffle.UserError, match=r"^unknown key location.hiden \(did you mean location.hidden\?\)$"):
        unshuffle.pretrain(tasks="L", location={"hiden": 8})
    with pytest.raises(unshuffle.UserError, match=r"^location.hidden is 0, but must be 1 or more$"):
        unshuffle.pretrain(tasks="L", location={"hidden": 0})
    with pytest.raises(unshuffle.UserError, match=r"^location must hold keys and values$"):
        unshuffle.pretrain(tasks="L", location=3)


def test_a_run_whose_task_is_not_registered_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("preset: demo\ntasks: L\nregistered: {location: {hidden: 8}}\n")
    with pytest.raises(unshuffle.UserError, match="there is no task location: import the module that registers it"):
        read_config(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("preset: demo\nregistered: [1]\n")
    with pytest.raises(unshuffle.UserError, match="registered must hold the sections of tasks"):
        read_config(tmp_path / "config.yaml")


def test_the_symbol_and_the_name_must_be_free(location: type[ClassificationTask]) -> None:
    register_task("L", location)  # again, as when a notebook's cell is run again
    register_task("X", location)
    assert "L" not in TASK_SYMBOLS and TASK_SYMBOLS["X"] == "location"

    def named(name: str) -> type[Task]:
        return type("Other", (RotationTask,), {"name": name})

    with pytest.raises(unshuffle.UserError, match=r"^'S' is the spatial task already: choose another letter for oth"):
        register_task("S", named("other"))
    with pytest.raises(unshuffle.UserError, match=r"but must be a capital letter other than P$"):
        register_task("P", named("other"))
    for name in ("rotation", "optim"):
        with pytest.raises(unshuffle.UserError, match=f"^a task cannot be named '{name}'"):
            register_task("O", named(name))
    with pytest.raises(unshuffle.UserError, match=r"^the name of the task is 'My Task', but must be a word in lower"):
        register_task("O", named("My Task"))


@pytest.mark.slow
def test_an_installed_package_brings_its_task_to_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "location.py").write_text(LOCATION)
    (tmp_path / "location-1.0.dist-info").mkdir()
    (tmp_path / "location-1.0.dist-info" / "METADATA").write_text("Name: location\nVersion: 1.0\n")
    entry_points = "[unshuffle.tasks]\nlocation = location\n"
    (tmp_path / "location-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    small = "--synthetic.images 12 --synthetic.clips 12 --synthetic.gallery 12 --synthetic.queries 6 --data.val_size 4"
    for command in (
        f"pretrain --tasks L --iterations 1 --batch-size 2 --device cpu --out run {small}",
        "report run",
        "pretrain --resume --out run --iterations 2",
    ):
        words = [sys.executable, "-m", "unshuffle", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert unshuffle.Run(tmp_path / "run").metrics_file.read_text().count('"task": "location"') > 2


def test_a_step_copies_nothing_to_a_gpu_once_it_is_warm(location: type[ClassificationTask], config: Config) -> None:
    """A captured step refuses such copies. Tensors without data stand for those of a GPU."""
    copies: list[str] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            given = [value for value in args if isinstance(value, Tensor)]
            if given and isinstance(result, Tensor) and result.is_cuda and not any(value.is_cuda for value in given):
                copies.append(str(function))
            return result

    for task, width in ((RotationTask(config), 6), (location(config), 12)):
        with FakeTensorMode(allow_non_fake_inputs=True):
            head = torch.nn.Linear(width, task.classes, device="cuda")
            features = torch.empty(2, task.parts, 6, device="cuda")
            with Copies():
                task.outcome(head, features, {})
                assert copies, "the labels of the first step"
                copies.clear()
                task.outcome(head, features, {})
        assert not copies


def test_variants_may_depend_on_what_a_subclass_sets_and_on_the_crop_size(config: Config) -> None:
    class Halves(RotationTask):
        answers = (0, 1)

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.halves = 2

        def variants(self, crops: Tensor) -> Tensor:
            return torch.cat(crops.chunk(self.halves, dim=-1), dim=1)

    assert Halves(config).parts == 2


def test_variants_are_what_the_backbone_sees(config: Config) -> None:
    class Mirror(RotationTask):
        classes, answers = 2, (0, 1)

        def variants(self, crops: Tensor) -> Tensor:
            return torch.cat([crops, crops.flip(4)], dim=1)

    task = Mirror(config)
    crops = task.crops(squares())
    assert task.parts == 2 and torch.equal(crops[:, 1], crops[:, 0].flip(3))
    assert crops.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
