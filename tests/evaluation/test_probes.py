import json
import shutil
import signal
from contextlib import AbstractContextManager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from torch import nn

from unshuffle import cli
from unshuffle.console import Advance, progress
from unshuffle.data import dataset
from unshuffle.data.dataset import LabelledDataset
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation import finetuning
from unshuffle.evaluation.classification import Classification, CosineRecipe, FineTuning, note_unlearned
from unshuffle.evaluation.features import find_backbone
from unshuffle.evaluation.finetuning import Recipe
from unshuffle.evaluation.probes import (
    Linear,
    LinearProbes,
    NonLinear,
    alexnet_head,
    batch_norm_head,
    choose_c,
    frozen_maps,
    logistic_regression,
    probe_table,
    standardised,
)
from unshuffle.evaluation.protocol import rounded
from unshuffle.files import locked_folder

QUIET = Console(quiet=True)
TINY = {"weights": "random:tiny", "device": "cpu", "workers": 1}


@pytest.mark.parametrize(
    ("sizes", "is_papers", "is_published"),
    [
        ((1000, 1_281_167, 50_000), True, True),
        ((1000, 1_281_167, 50_000), False, False),
        ((1000, 100_000, 50_000), True, False),
        ((101, 1212, 606), True, False),
    ],
)
def test_published_figures_are_for_the_papers_protocol_on_imagenet(
    sizes: tuple[int, int, int], is_papers: bool, is_published: bool
) -> None:
    classes, train, test = (range(size) for size in sizes)
    training = mock.MagicMock(classes=classes, labels=classes, __len__=lambda _: len(train))
    testing = mock.MagicMock(__len__=lambda _: len(test))
    setting = mock.Mock(training=training, testing=testing, trained_classes=len(classes))
    output = StringIO()
    table = probe_table({"pool5": {"top1": 1.0, "top5": 2.0}}, setting, is_papers, {"pool5": "linear"})
    Console(file=output, width=200).print(table)
    assert ("published, ImageNet, top 1" in output.getvalue()) == ("36.5" in output.getvalue()) == is_published
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["chance,", "top", "1", f"{100 / len(classes):.1f}"] in lines


def test_an_unchanged_linear_probe_is_the_papers_and_a_short_one_is_not() -> None:
    assert (
        Linear().is_papers() and NonLinear().is_papers() and Linear(layers=("pool5",)).is_papers(frozenset({"layers"}))
    )
    for other in (
        Linear(fast=True),
        Linear(iterations=5),
        Linear.quick(),
        NonLinear(protocol="rotnet"),
        NonLinear.quick(),
    ):
        assert not other.is_papers(), other


def test_sizes_are_those_of_the_protocol() -> None:
    maps = frozen_maps(find_backbone("random:caffenet"), torch.zeros(1, 227, 227, 3, dtype=torch.uint8))
    sides = {name: tuple(layer.shape[2:]) for name, layer in maps.items()}
    assert sides == {f"conv{n}": (s, s) for n, s in zip(range(1, 6), (10, 6, 5, 5, 6), strict=True)} | {"pool5": (6, 6)}
    numbers = [layer[0].numel() for layer in maps.values()]
    assert numbers == [9600, 9216, 9600, 9600, 9216, 9216]


def test_some_layers_only() -> None:
    backbone, blank = find_backbone("random:tiny"), torch.zeros(1, 96, 96, 3, dtype=torch.uint8)
    assert list(frozen_maps(backbone, blank, ("conv3", "pool5"))) == ["conv3", "pool5"]
    with pytest.raises(UserError, match="no layer conv9; there are conv1"):
        frozen_maps(backbone, blank, ("conv9",))


def test_a_probe_normalises_without_learning_to_and_is_linear() -> None:
    probes = LinearProbes({"blocks.0": torch.zeros(1, 4, 2, 2), "b": torch.zeros(1, 6, 1, 1)}, classes=3)
    assert sorted(name for name, _ in probes.named_parameters()) == [
        f"probes.{layer}.2.{kind}" for layer in "01" for kind in ("bias", "weight")
    ]
    maps = {"b": torch.randn(5, 6, 1, 1), "blocks.0": 3 + 2 * torch.randn(5, 4, 2, 2)}
    scores = probes(maps)
    assert scores.shape == (5, 2, 3)
    mean, variance = maps["blocks.0"].mean(dim=(0, 2, 3)), maps["blocks.0"].var(dim=(0, 2, 3), correction=0)
    standard = (maps["blocks.0"] - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
    weight, bias = probes.get_parameter("probes.0.2.weight"), probes.get_parameter("probes.0.2.bias")
    torch.testing.assert_close(scores[:, 0], standard.flatten(1) @ weight.T + bias)


def test_the_heads_of_both_protocols() -> None:
    noroozi, rotnet = (
        [type(layer) for layer in build(20, 8, 3).children()] for build in (alexnet_head, batch_norm_head)
    )
    with_dropout, with_bn = [nn.Linear, nn.ReLU, nn.Dropout], [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert noroozi == [nn.Flatten, *with_dropout, *with_dropout, nn.Linear]
    assert rotnet == [nn.Flatten, *with_bn, *with_bn, nn.Linear]


def test_alexnets_head_against_its_formula() -> None:
    torch.manual_seed(0)
    head, maps = alexnet_head(48, 300, 7), torch.randn(5, 12, 2, 2)
    fc6, fc7, fc8 = (layer for layer in head.modules() if isinstance(layer, nn.Linear))
    assert [(layer.in_features, layer.out_features) for layer in (fc6, fc7, fc8)] == [(48, 300), (300, 300), (300, 7)]
    for layer, std, bias in ((fc6, 0.005, 0.1), (fc7, 0.005, 0.1), (fc8, 0.01, 0.0)):
        assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.05) and bool((layer.bias == bias).all())
    values = maps.flatten(1)
    for layer in (fc6, fc7):
        values = (values @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(head.eval()(maps), values @ fc8.weight.T + fc8.bias)
    dropped = [layer.p for layer in head.modules() if isinstance(layer, nn.Dropout)]
    assert dropped == [0.5, 0.5] and not torch.equal(head.train()(maps), head(maps))


@pytest.fixture
def trained_with(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, int]]:
    """The schedule and the batch size of each training, none of which takes place."""
    trainings: list[tuple[Recipe, int]] = []

    def skipped(self: Classification, setting: object, network: nn.Module, recipe: Recipe, *others: object) -> object:
        trainings.append((recipe, self.batch_size))
        return torch.eye(3), torch.arange(3)

    monkeypatch.setattr(Classification, "train_and_test", skipped)
    return trainings


def test_the_schedules_of_both_protocols(classes: tuple[Path, Path], trained_with: list[tuple[Recipe, int]]) -> None:
    """RotNet's counts epochs: 40 of 24 images in batches of 192 are 5 iterations."""
    paper = NonLinear(**TINY, train=str(classes[0]), test=str(classes[1]))
    assert "differs from --preset paper" not in paper.run(QUIET).statement
    assert trained_with[-1] == (Recipe(350_000, 0.01, 0.9, 5e-4, (100_000, 200_000, 300_000), 0.1), 256)
    assert "protocol rotnet" in replace(paper, protocol="rotnet").run(QUIET).statement
    assert trained_with[-1] == (Recipe(5, 0.1, 0.9, 5e-4, (1, 2, 4), lrs=(0.1, 0.01, 0.002, 0.0004)), 192)
    replace(paper, protocol="rotnet", batch_size=24).run(QUIET)
    assert (trained_with[-1][0].iterations, trained_with[-1][0].milestones) == (40, (10, 20, 30))
    replace(paper, iterations=35, lr=0.5, batch_size=7, weight_decay=0.1).run(QUIET)
    assert trained_with[-1] == (Recipe(35, 0.5, 0.9, 0.1, (10, 20, 30), 0.1), 7)
    replace(NonLinear.quick(), **TINY, train=paper.train, test=paper.test).run(QUIET)
    recipe, batch_size = trained_with[-1]
    assert (recipe.iterations, recipe.lr, recipe.milestones, batch_size) == (125, 0.1, (31, 62, 94), 64)


def test_learning_rates() -> None:
    steps = Recipe(40, 0.1, milestones=(10, 20), lrs=(0.1, 0.01, 0.002))
    assert [steps.learning_rate(at) for at in (0, 9, 10, 19, 20, 39)] == [0.1, 0.1, 0.01, 0.01, 0.002, 0.002]
    cosine = CosineRecipe(100, 0.2)
    assert (
        cosine.learning_rate(0) == 0.2
        and cosine.learning_rate(50) == pytest.approx(0.1)
        and 0 < cosine.learning_rate(99) < 1e-4
    )


EVALUATIONS: dict[str, Classification] = {
    "fast": Linear(**TINY, fast=True, layers=("conv2", "pool5")),
    "linear": Linear(**TINY, iterations=24, batch_size=12, drop_every=20, layers=("conv2", "pool5")),
    "noroozi": NonLinear(**TINY, iterations=40, lr=0.1, hidden=1024, batch_size=12),
    "rotnet": NonLinear(**TINY, protocol="rotnet", iterations=40, lr=0.05, hidden=32, batch_size=12),
    "finetune": FineTuning(**TINY, epochs=8, lr=0.01, batch_size=12),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_each_beats_chance_on_textures(name: str, classes: tuple[Path, Path]) -> None:
    train, test = classes
    result = replace(EVALUATIONS[name], train=train, test=test).run(QUIET)
    metrics = result.metrics["pool5"] if name in ("fast", "linear") else result.metrics
    assert metrics["top1"] > 66, "chance is 33"
    skipped = result.metrics["skipped"]
    assert skipped["count"] == 2 and [Path(entry["file"]).parts[-3:] for entry in skipped["files"]] == [
        (side, "down", "broken.jpg") for side in ("train", "test")
    ]
    assert result.metrics["train_images"] == 24 and result.metrics["test_images"] == 15
    assert result.metrics["chance"] == pytest.approx(100 / 3) and result.metrics["shared_files"] == 0
    assert "24 training images" in result.statement and "centre crop of 96 px" in result.statement


@pytest.mark.parametrize(("loss", "output"), [(1.0, ""), (float("nan"), ""), (3.2, "is 3.20, above 1.61 at chance")])
def test_a_note_about_a_loss_above_chance(loss: float, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    note_unlearned(Console(), loss, 5)
    out = capsys.readouterr().out
    assert output in out and bool(output) == bool(out)


@pytest.mark.parametrize(
    ("images", "least", "steps", "remark"),
    [(640, 1, (20, 30, 40), "only 40 iterations"), (60, 100, (50, 75, 100), ""), (1280, 50, (40, 60, 80), "")],
)
def test_few_images_mean_more_epochs_or_a_note(
    images: int, least: int, steps: tuple[int, ...], remark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = synthetic_images(2, 16, seed=0)
    dataset = LabelledDataset("", source, [0] * images, [0] * images, ["a"], "images")
    assert FineTuning(batch_size=64).iterations_until((2, 3, 4), dataset, least, Console()) == steps
    out = capsys.readouterr().out
    assert remark in out and bool(remark) == bool(out)


def test_a_note_about_a_learning_rate_that_is_too_high(
    classes: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for rate, loud in ((0.001, False), (30.0, True)):
        short = FineTuning(**TINY, epochs=2, batch_size=6, lr=rate, train=classes[0], test=classes[1])
        short.run(Console(width=200))
        assert ("at chance" in capsys.readouterr().out) == loud


@pytest.mark.parametrize(("name", "title"), [("linear", "training the classifiers"), ("finetune", "fine-tuning")])
def test_the_progress_bar_has_the_right_title(
    name: str, title: str, classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def noted(console: Console, title: str, total: int, done: int) -> AbstractContextManager[Advance]:
        titles.append(title)
        return progress(console, title, total, done)

    monkeypatch.setattr(finetuning, "progress", noted)
    replace(SHORT[name], train=classes[0], test=classes[1]).run(QUIET)
    assert titles == [title]


SHORT: dict[str, Classification] = {
    "linear": Linear(**TINY, iterations=8, batch_size=6, drop_every=5, save_every=4, layers=("conv4", "pool5")),
    "noroozi": NonLinear(**TINY, iterations=8, hidden=16, batch_size=6, save_every=4),
    "rotnet": NonLinear(**TINY, protocol="rotnet", iterations=8, hidden=16, batch_size=6, save_every=4),
    "finetune": FineTuning(**TINY, epochs=2, batch_size=6, save_every=4),
}


@pytest.mark.parametrize("name", SHORT)
def test_an_interrupted_training_resumes(
    name: str, classes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = classes
    unbroken = replace(SHORT[name], train=train, test=test).run(QUIET)
    resumed = replace(SHORT[name], train=train, test=test, out=tmp_path)
    step, done = finetuning._step, []

    def step_until(*args: object) -> torch.Tensor:
        if len(done) == 6:
            raise KeyboardInterrupt
        done.append(1)
        return step(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(finetuning, "_step", step_until)
    with pytest.raises(KeyboardInterrupt):
        resumed.run(QUIET)
    monkeypatch.setattr(finetuning, "_step", step)
    unfinished = tmp_path / "unfinished"
    assert [path.name for path in (unfinished / "checkpoints").iterdir()] == ["00000004.pt"]
    assert (unfinished / "features").exists(), "not read again to see whether it can be"
    with pytest.raises(UserError, match="other options"):
        replace(resumed, seed=1).run(QUIET)
    (tmp_path / "checkpoints").mkdir()
    assert resumed.run(QUIET).metrics == unbroken.metrics
    assert not unfinished.exists() and (tmp_path / "checkpoints").exists(), "those of a run are not its own"


@pytest.mark.parametrize("out", [True, False])
def test_a_signal_saves_and_says_how_to_resume(
    out: bool,
    classes: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, done = finetuning._step, []

    def interrupted(*args: object) -> torch.Tensor:
        done.append(1)
        if len(done) == 3:
            signal.raise_signal(signal.SIGTERM)
        return step(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(finetuning, "_step", interrupted)
    line = ["evaluate", "finetune", "--weights", "random:tiny", "--device", "cpu", "--batch_size", "6", "--epochs", "2"]
    folders = ["--train", str(classes[0]), "--test", str(classes[1]), *(["--out", str(tmp_path)] if out else [])]
    assert cli.run([*line, *folders]) == 128 + signal.SIGTERM
    output = capsys.readouterr().err
    if out:
        assert output == f"interrupted at iteration 3 of 8; the same command continues from {tmp_path}\n"
        assert [path.name for path in (tmp_path / "unfinished" / "checkpoints").iterdir()] == ["00000003.pt"]
        return
    (state,) = (dataset.CACHE / "evaluations").iterdir()
    assert output == f"interrupted at iteration 3 of 8; the same command continues from {state}\n"
    monkeypatch.setattr(finetuning, "_step", step)
    assert cli.run([*line, *folders, "--json", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr().out
    assert "resuming after iteration 3" in printed and not list(state.parent.iterdir())
    unbroken = FineTuning(**TINY, train=str(classes[0]), test=str(classes[1]), batch_size=6, epochs=2).run(QUIET)
    assert json.loads((tmp_path / "a.json").read_text())["metrics"] == rounded(unbroken.metrics)


def interrupted_evaluation(classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command line of an evaluation that was interrupted after its first step."""
    line = ["evaluate", "finetune", "--weights", "random:tiny", "--device", "cpu", "--batch-size", "6", "--epochs", "1"]
    line += ["--train", str(classes[0]), "--test", str(classes[1])]
    step = finetuning._step

    def interrupted(*args: object) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        return step(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(finetuning, "_step", interrupted)
        assert cli.run(line) == 128 + signal.SIGINT
    return line


def test_an_interrupted_evaluation_of_other_files_starts_again(
    classes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = shutil.copytree(classes[0], tmp_path / "train")
    line = interrupted_evaluation((train, classes[1]), monkeypatch)
    next(file for file in (train / "down").iterdir() if file.name != "broken.jpg").unlink()
    assert cli.run(line) == 0
    assert "weights or data have changed since" in capsys.readouterr().out
    assert not list((dataset.CACHE / "evaluations").iterdir())


def test_the_same_evaluation_twice_at_once_is_refused(
    classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = interrupted_evaluation(classes, monkeypatch)
    (state,) = (dataset.CACHE / "evaluations").iterdir()
    with locked_folder(state, "free"):
        assert cli.run(line) == 2
    assert "the same evaluation is running in another process" in capsys.readouterr().err


def test_without_room_in_the_cache_nothing_is_kept(
    classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unshuffle.cli.evaluate.MIN_FREE", 1e30)
    interrupted_evaluation(classes, monkeypatch)
    assert "nothing is saved" in capsys.readouterr().err


# a schedule that fits the data


def sized(monkeypatch: pytest.MonkeyPatch, size: int) -> dict[str, str]:
    monkeypatch.setattr("unshuffle.evaluation.classification.open_dataset", lambda address: range(size))
    return {"train": "somewhere"}


@pytest.mark.parametrize("size", [3, 72, 1212, 5000])
def test_few_images_are_probed_by_logistic_regression(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options, choice = Linear.fitted(sized(monkeypatch, size))
    assert options == Linear(preset="auto", fast=True)
    assert choice == f"logistic regression (--fast) for {size:,} training images"


def test_many_images_are_probed_for_as_many_epochs_as_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    options, choice = Linear.fitted(sized(monkeypatch, 51_200))
    assert (options.fast, options.iterations, options.drop_every, options.batch_size) == (False, 5600, 1600, 256)
    assert choice == "5,600 steps of SGD in batches of 256 for 51,200 training images"
    whole, _ = Linear.fitted(sized(monkeypatch, 1_281_167))
    assert (whole.iterations, whole.drop_every) == (140_000, 40_000), "ImageNet"
    limited, _ = Linear.fitted({**sized(monkeypatch, 51_200), "limit": 100})
    assert limited.fast


def test_options_of_sgd_ask_for_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    few = sized(monkeypatch, 72)
    options, _ = Linear.fitted({**few, "iterations": 700})
    assert (options.fast, options.iterations, options.drop_every, options.batch_size) == (False, 700, 200, 64)
    options, _ = Linear.fitted({**few, "fast": False})
    assert (options.fast, options.iterations) == (False, 500)


def test_the_nonlinear_probe_fits_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    options, choice = NonLinear.fitted(sized(monkeypatch, 72))
    assert (options.protocol, options.iterations, options.hidden, options.batch_size) == ("rotnet", 125, 512, 64)
    assert choice == ("protocol rotnet, layers of 512, 125 steps of SGD in batches of 64 for 72 training images")
    many, _ = NonLinear.fitted(sized(monkeypatch, 19_200))
    assert (many.iterations, many.hidden, many.batch_size) == (4000, 4096, 192), "40 epochs"
    noroozi, _ = NonLinear.fitted({**sized(monkeypatch, 25_600), "protocol": "noroozi"})
    assert (noroozi.iterations, noroozi.batch_size) == (7000, 256), "70 epochs"


def test_fine_tuning_fits_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    options, choice = FineTuning.fitted(sized(monkeypatch, 72))
    assert (options.epochs, options.min_iterations) == (50, 100)
    assert choice == "50 epochs, 100 steps at least, for 72 training images"
    assert FineTuning.fitted(sized(monkeypatch, 128_000))[0].epochs == 10
    assert FineTuning.fitted(sized(monkeypatch, 10**7))[0].epochs == 1


def test_the_default_says_what_it_chose(classes: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--weights", "random:tiny", "--train", str(classes[0]), "--test", str(classes[1]), "--device", "cpu"]
    assert cli.run(["evaluate", "linear", *data, "--layers", "pool5"]) == 0
    chosen = capsys.readouterr().out.splitlines()[0]
    assert chosen == ("logistic regression (--fast) for 25 training images; --preset paper has the published schedule")


def test_a_note_about_training_files_in_the_test(
    classes: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(classes[0])
    result = replace(EVALUATIONS["fast"], train=classes[0], test=tmp_path / "link").run(Console())
    words = "25 of the test files are training files too"
    assert f"note: {words}" in capsys.readouterr().out and words in result.statement
    assert result.metrics["shared_files"] == 25


def test_a_limit_below_the_number_of_classes_is_of_fewer_classes(classes: tuple[Path, Path]) -> None:
    result = replace(EVALUATIONS["fast"], train=classes[0], test=classes[1], limit=2).run(QUIET)
    assert result.metrics["chance"] == 50 and ", 2 classes;" in result.statement


@pytest.mark.parametrize(("limit", "named"), [(20, "fast, limit 20, layers pool5"), (2000, "fast, layers pool5")])
def test_a_limit_is_named_where_it_leaves_something_out(limit: int, named: str, classes: tuple[Path, Path]) -> None:
    fast = replace(Linear.quick(), **TINY, train=classes[0], test=classes[1], limit=limit, layers=("pool5",))
    departures = fast.run(QUIET).statement.partition("differs from --preset paper: ")[2]
    assert sorted(departures.split(", ")) == sorted(named.split(", "))


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_empty_class_is_refused(name: str, classes: tuple[Path, Path], tmp_path: Path) -> None:
    train = shutil.copytree(classes[0], tmp_path / "train")
    for file in (train / "chess").iterdir():
        file.write_text("no image")
    with pytest.raises(UserError, match="the class chess has no readable image"):
        replace(EVALUATIONS[name], train=train, test=classes[1]).run(QUIET)
    for file in (train / "chess").iterdir():
        file.unlink()
    with pytest.raises(UserError, match=r"1 of the 3 classes of .* have no images \(chess\)"):
        replace(EVALUATIONS[name], train=train, test=classes[1]).run(QUIET)


@pytest.mark.parametrize("file", ["new/out/a.json", "new/a.json"])
def test_figures_go_into_folders_that_out_makes(file: str, classes: tuple[Path, Path], tmp_path: Path) -> None:
    folders = ["--train", str(classes[0]), "--test", str(classes[1]), "--out", str(tmp_path / "new" / "out")]
    line = [
        "evaluate",
        "linear",
        "--preset",
        "quick",
        "--weights",
        "random:tiny",
        "--device",
        "cpu",
        "--layers",
        "pool5",
    ]
    assert cli.run([*line, *folders, "--json", str(tmp_path / "other" / "a.json")]) == 2
    assert cli.run([*line, *folders, "--json", str(tmp_path / file)]) == 0
    assert json.loads((tmp_path / file).read_text())["command"] == "evaluate linear"


def test_the_command(classes: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = map(str, classes)
    line = ["linear", "--preset", "quick", "--weights", "random:tiny", "--train", train, "--test", test]
    assert cli.run(["evaluate", *line, "--device", "cpu", "--layers", "pool5", "--json", str(tmp_path / "a.json")]) == 0
    output = capsys.readouterr().out
    assert "logistic regression" in output and "chance, top 1" in output and "published" not in output
    assert "only 24 training images for 3 classes, 8 of each" in output and "train/down/broken.jpg: " in output
    assert "differs from --preset paper: fast, layers pool5" in output
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["config"]["fast"] is True and document["metrics"]["pool5"]["top1"] > 66


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("linear --weights random:tiny", "give --train and --test"),
        (
            "nonlinear --weights random:tiny --protocol rotnet --batch_size 1",
            "batch normalisation of --protocol rotnet",
        ),
        ("finetune --weights random:tiny --train nowhere --test nowhere", "nowhere does not exist or is not a folder"),
        ("finetune --weights random:tiny --train a --test a --batch_size 1", "batch_size is 1, but must be 2 or more"),
        ("linear --weights random:tiny --train a --test a --drop_every 0", "drop_every is 0, but must be 1 or more"),
        ("linear --weights random:tiny --train a --test a --c -1", "c is -1.0, but must be 0 or more"),
        ("nonlinear --weights random:tiny --train a --test a --iterations 0", "iterations is 0, but must be 1 or more"),
        ("quadratic", "there is no evaluation 'quadratic'"),
    ],
)
def test_mistakes(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["evaluate", *line.split()]) == 2
    output = capsys.readouterr().err
    assert sentence in output and len(output.splitlines()) == 1


def test_videos_are_not_classified(class_clips: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="holds videos, but this evaluation classifies images"):
        Linear(**TINY, train=class_clips[0], test=class_clips[1]).run(QUIET)


@pytest.mark.parametrize("c", [0.1, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_scikit_learn(c: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 120)
    features = rng.normal(size=(120, 30)) + rng.normal(size=(4, 30))[labels]
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=5000).fit(features, labels)
    weight, bias = logistic_regression(
        torch.from_numpy(features).to(dtype),
        torch.from_numpy(labels),
        4,
        c=c,
        tolerance=1e-7 if dtype == torch.float32 else 1e-10,
    )
    asked = torch.from_numpy(rng.normal(size=(50, 30))).to(dtype)
    ours = (asked @ weight.T + bias).softmax(dim=1).double()
    assert np.abs(ours.numpy() - theirs.predict_proba(asked.double().numpy())).max() < 2e-3
    assert np.abs(weight.double().numpy() - theirs.coef_).max() < 5e-3


def test_standardisation() -> None:
    features = torch.randn(50, 16) * torch.arange(16) + 3  # the first dimension is constant
    standard, extreme = standardised(features, torch.full((2, 16), 1e9))
    scaled = standard * 4
    assert scaled.mean(dim=0).abs().max() < 1e-5
    assert torch.allclose(scaled[:, 1:].std(dim=0, correction=0), torch.ones(15), atol=1e-4)
    assert (extreme[:, 0] == 0).all()


def test_the_penalty_is_chosen_on_held_out_images() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, generator=generator) < 0.3).long()
    noisy = torch.randn(200, 100, generator=generator)  # one dimension of a hundred tells something
    noisy[:, 0] += 2 * labels
    assert choose_c(noisy, labels, 2, torch.Generator().manual_seed(0)) == 1.0
    faint = 0.02 * labels[:, None] + 0.002 * torch.randn(200, 4, generator=generator)  # a penalty hides it
    assert choose_c(faint, labels, 2, torch.Generator().manual_seed(0)) > 1.0
