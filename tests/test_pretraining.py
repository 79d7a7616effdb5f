import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import unshuffle
from unshuffle import pretraining
from unshuffle.config import SyntheticConfig, demo, with_options
from unshuffle.report.page import write_report
from unshuffle.report.views import _read_skipped
from unshuffle.runs.folders import find_runs
from unshuffle.stopping import Stopped
from unshuffle.tasks.prepare import prepare
from unshuffle.training.trainer import Trainer, build_trainer

TINY = {
    "preset": "demo",
    "device": "cpu",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 16, "clips": 12, "gallery": 12, "queries": 6},
    "spatial": {"permutations": 4},
    "temporal": {"permutations": 4},
    "optim": {"iterations": 2, "batch_size": 2},
    "policy": {"num_groups": 2},
    "log": {"pictures": False},
}


def photos(folder: Path, count: int, classes: int = 1) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % classes}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(path)
    return folder


def test_pretrain_from_python_returns_the_run(tmp_path: Path) -> None:
    run = unshuffle.pretrain(out=tmp_path / "run", **TINY)
    assert run.folder == tmp_path / "run"
    assert run.config.optim.iterations == 2
    assert {entry["kind"] for entry in run.metrics()} >= {"start", "train", "validation", "monitor", "baseline"}
    backbone = unshuffle.load_backbone(run.folder)
    image = unshuffle.preprocess(Image.new("RGB", (120, 100), "red"), backbone.eval_size)
    assert backbone(image[None]).flatten(1).shape == (1, 96 * 12 * 12)
    assert not backbone.training


def test_a_batch_of_instance_discrimination_holds_each_sample_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies of a sample would count as different ones."""
    options = {**TINY, "images": photos(tmp_path / "photos", 12), "instance": {"crop_size": 24, "batch_size": 16}}
    options |= {"tasks": "S+I", "spatial": {"permutations": 4, "batch_size": 16}}
    options["data"] = {**TINY["data"], "cache": str(tmp_path / "cache")}  # type: ignore[dict-item]
    run = unshuffle.pretrain(out=tmp_path / "run", **options)  # type: ignore[arg-type]
    training = next(run.metrics("start"))["splits"]["instance"]["training"]
    assert 6 < training < 12
    assert run.config.batch_size("instance") == training and run.config.batch_size("spatial") == 16
    sentence = f"instance.batch_size is {training} instead of 16: there are no more samples to train on"
    assert sentence in " ".join(capsys.readouterr().out.split())
    batches = build_trainer(run.config, prepare(run.config)).streams["instance"]
    for step in range(5):
        assert len(set(batches.items(step).tolist())) == training
    assert unshuffle.pretrain(out=tmp_path / "run", resume=True, iterations=4).config.optim.iterations == 4


def test_a_folder_of_images_trains_the_spatial_task_alone(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 12, classes=2)
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}}  # type: ignore[dict-item]
    monitor = {"gallery": str(folder), "queries": str(folder)}
    run = unshuffle.pretrain(images=folder, out=tmp_path / "run", monitor=monitor, **options)
    assert {entry["task"] for entry in run.metrics("validation")} == {"spatial"}
    assert [entry["top1"] for entry in run.metrics("monitor")] == [100.0, 100.0]  # every query is in the gallery


@pytest.mark.parametrize(("gpu", "preset"), [(True, "small"), (False, "cpu")])
def test_the_preset_of_own_data_from_python(gpu: bool, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(pretraining, "run_pretraining", lambda config, resume: config)
    assert unshuffle.pretrain(images="x").preset == preset  # type: ignore[attr-defined]
    assert unshuffle.pretrain(images="x", preset="demo").preset == "demo"  # type: ignore[attr-defined]
    assert unshuffle.pretrain().preset == "demo"  # type: ignore[attr-defined]


def test_resume_from_python(tmp_path: Path) -> None:
    unshuffle.pretrain(out=tmp_path / "run", resume=True, **TINY)  # there is no run yet, so it starts
    run = unshuffle.pretrain(out=tmp_path / "run", resume=True)
    assert run.config.synthetic == SyntheticConfig(images=16, clips=12, gallery=12, queries=6)
    with pytest.raises(unshuffle.UserError, match="give out"):
        unshuffle.pretrain(resume=True)


def test_the_weights_of_a_run_that_is_made_longer_are_said_to_be_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unshuffle.pretrain(out=tmp_path / "my run", **TINY)

    def interrupted(trainer: Trainer, *more: Any) -> None:
        raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unshuffle.load_backbone(run.folder)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unshuffle.pretrain(out=run.folder, resume=True, iterations=4)
    sentence = (
        r"are those of iteration 2, and the run is being trained up to 4: continue it with .* --out '.*my run' --re"
    )
    with pytest.warns(UserWarning, match=sentence):
        unshuffle.load_backbone(run.folder)


def test_an_interruption_after_the_last_iteration_says_how_to_get_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pretraining, "save_backbone", interrupted)
        with pytest.raises(Stopped, match=r"stopped after the last iteration.*pretrain --out .*run --resume") as stop:
            unshuffle.pretrain(out=tmp_path / "run", **TINY)
    assert stop.value.iteration == 2
    with pytest.raises(unshuffle.UserError, match=r"the run is not finished, continue it with .* --resume"):
        unshuffle.load_backbone(tmp_path / "run")
    report = tmp_path / "report.html"
    write_report(find_runs([tmp_path / "run"]), report)
    assert "All iterations are done, but the run was stopped before its backbone was written" in report.read_text()
    unshuffle.load_backbone(unshuffle.pretrain(out=tmp_path / "run", resume=True).folder)


def test_a_run_that_has_no_checkpoint_yet_starts_again_from_its_init(tmp_path: Path) -> None:
    warm = unshuffle.pretrain(out=tmp_path / "warm", **TINY)
    run = unshuffle.pretrain(out=tmp_path / "run", init=str(warm.folder), **TINY)
    ended = load_file(run.weights)
    for checkpoint in (run.folder / "checkpoints").iterdir():  # as if it had been killed before the first
        checkpoint.unlink()
    unshuffle.pretrain(out=run.folder, resume=True)
    again = load_file(run.weights)
    assert all(torch.equal(again[key], ended[key]) for key in ended)


def test_runs_that_start_at_once_take_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo-2").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: pretraining._next_folder("demo"), range(8)))
    assert sorted(taken, key=lambda folder: int(folder.name[5:])) == [
        Path("runs", f"demo-{number}") for number in (1, 3, 4, 5, 6, 7, 8, 9)
    ]
    assert pretraining._next_folder("paper") == Path("runs/paper-1")


def test_a_folder_that_another_run_took_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pretraining.build_trainer

    def build_while_another_starts(*arguments: Any) -> Trainer:
        (tmp_path / "run" / "permutations").mkdir(parents=True)
        return build(*arguments)

    monkeypatch.setattr(pretraining, "build_trainer", build_while_another_starts)
    with pytest.raises(unshuffle.UserError, match="another run has begun in"):
        unshuffle.pretrain(out=tmp_path / "run", **TINY)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_wrong_options_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(unshuffle.UserError, match=r"unknown key optim\.iteratons"):
        unshuffle.pretrain(out=tmp_path / "run", optim={"iteratons": 3})
    with pytest.raises(unshuffle.UserError, match="unknown key colour"):
        unshuffle.pretrain(out=tmp_path / "run", colour="blue")


def test_a_preset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(unshuffle.UserError, match="there is no preset 'huge'"):
        unshuffle.pretrain(out=tmp_path / "run", preset="huge")


def test_tuples_are_lists_from_python(tmp_path: Path) -> None:
    run = unshuffle.pretrain(out=tmp_path / "run", **{**TINY, "optim": {**TINY["optim"], "milestones": (1,)}})  # type: ignore[dict-item]
    assert run.config.optim.milestones == (1,)


def test_a_run_that_was_refused_for_its_bad_files_can_be_started_in_the_same_folder(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 12)
    for number in range(3):
        (folder / f"{number}.jpg").touch()
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}}  # type: ignore[dict-item]
    refused = rf"3 of 15 images cannot be used.*; all are listed in {tmp_path}/run/skipped\.csv"
    with pytest.raises(unshuffle.UserError, match=refused):
        unshuffle.pretrain(images=folder, out=tmp_path / "run", **options)
    rows = _read_skipped(tmp_path / "run" / "skipped.csv")["rows"]
    assert rows == [[f"{number}.jpg", "the file is empty"] for number in range(3)]
    options["data"]["max_bad_fraction"] = 0.5  # type: ignore[index]
    run = unshuffle.pretrain(images=folder, out=tmp_path / "run", **options)
    assert run.weights.exists() and _read_skipped(run.skipped)["rows"] == rows


def test_a_file_name_that_is_not_text_is_listed(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 12)
    Path(os.fsdecode(bytes(folder) + b"/\xff\n.jpg")).write_bytes(b"no image")
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}}  # type: ignore[dict-item]
    run = unshuffle.pretrain(images=folder, out=tmp_path / "run", **options)
    assert "udcff" in (run.folder / "skipped.csv").read_text()


def test_a_file_name_in_the_skip_list_is_no_formula(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 12)
    (folder / "=1+1.jpg").write_bytes(b"no image")
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}}  # type: ignore[dict-item]
    run = unshuffle.pretrain(images=folder, out=tmp_path / "run", **options)
    assert (run.folder / "skipped.csv").read_text().splitlines()[1].startswith("'=1+1.jpg,")
    assert _read_skipped(run.skipped)["rows"][0][0] == "=1+1.jpg", "the report shows the name itself"


def test_only_what_is_public_is_there() -> None:
    with pytest.raises(AttributeError):
        _ = unshuffle.nothing  # type: ignore[attr-defined]
    assert sorted(unshuffle.__all__) == [
        "Backbone",
        "ClassificationConfig",
        "ClassificationTask",
        "Index",
        "ItemSampler",
        "Run",
        "SimilarityPage",
        "SpatialTask",
        "TemporalTask",
        "UserError",
        "build_backbone",
        "embed",
        "load_backbone",
        "neighbours_page",
        "permutation_set",
        "preprocess",
        "preset_config",
        "pretrain",
        "register_task",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(unshuffle.UserError, match="cannot be used"):
        unshuffle.pretrain(out=tmp_path / "run", **{**TINY, "device": "cuda"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("preset", ["small", "demo"])
def test_a_warning_before_the_data_where_a_gpu_is_needed(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(*arguments: Any, **options: Any) -> Any:
        raise unshuffle.UserError("the data is opened")

    monkeypatch.setattr(pretraining, "prepare", prepare)
    monkeypatch.setattr(pretraining, "estimate_step", lambda config: 98.3761)
    with pytest.raises(unshuffle.UserError, match="the data is opened"):
        unshuffle.pretrain(images=tmp_path, out=tmp_path / "run", preset=preset)
    expected = (
        "warning: --preset small is made for a GPU; on this CPU 20000 iterations take about 22 days 19 h. "
        "Use --preset cpu instead\n"
    )
    assert capsys.readouterr().out == (expected if preset == "small" else "")


def test_a_large_backbone_on_a_cpu_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**TINY, "optim": {"batch_size": 2}}
    run = unshuffle.pretrain(out=tmp_path / "run", backbone="resnet18", epochs=0.1, tasks="S", **options)
    printed = capsys.readouterr().out
    assert "the backbone resnet18 is made for a GPU; on this CPU each iteration takes about" in printed
    assert "Use --backbone tiny instead" in printed
    assert run.config.optim.epochs == 0.1


def test_the_advice_for_a_large_backbone_is_that_of_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretraining, "estimate_step", lambda config: 1.0)
    (tmp_path / "empty").mkdir()
    options = {**TINY, "preset": "cpu", "images": tmp_path / "empty", "instance": {"crop_size": 32}}
    with pytest.raises(unshuffle.UserError, match="no images found"):
        unshuffle.pretrain(out=tmp_path / "run", backbone="resnet18", **options)
    assert "Use --backbone caffenet instead" in capsys.readouterr().out, "with its weights"


@pytest.mark.parametrize("option", ["data.val_images", "data.test_images", "monitor.gallery", "monitor.queries"])
def test_data_that_is_not_there_is_said_before_anything_is_packed(tmp_path: Path, option: str) -> None:
    folder, (section, field) = photos(tmp_path / "photos", 12), option.split(".")
    data = {**TINY["data"], "cache": str(tmp_path / "cache")}  # type: ignore[dict-item]
    options: dict[str, Any] = {**TINY, "data": data}
    both = {"gallery": str(folder), "queries": str(folder)} if section == "monitor" else options.get(section, {})
    options[section] = {**both, field: str(tmp_path / "nowhere")}
    with pytest.raises(unshuffle.UserError, match=rf"nowhere does not exist: check the path \(--{option}\)"):
        unshuffle.pretrain(images=folder, out=tmp_path / "run", **options)
    assert not (tmp_path / "cache").exists() and not (tmp_path / "run").exists()


def test_what_is_trained_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = unshuffle.pretrain(out=tmp_path / "first", **TINY)
    line = r"preset demo: tiny \(0\.\d\d million weights{}\) on cpu; spatial \(\|Ψ\| = 4\), temporal"
    assert re.search(line.format(""), capsys.readouterr().out)
    unshuffle.pretrain(out=tmp_path / "second", init=str(first.folder), **TINY)
    assert re.search(line.format(f", starting from {first.folder}"), capsys.readouterr().out)


def test_the_estimate_of_a_step_grows_with_the_batch() -> None:
    config = with_options(demo(), {"tasks": "S+T+R+I"})
    few, many = (pretraining.estimate_step(with_options(config, {"batch_size": size})) for size in (2, 4000))
    assert 0 < few < many


def test_epochs_are_stated_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [photos(tmp_path / name, 12) for name in ("a", "b")]
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}, "optim": {"batch_size": 2}}  # type: ignore[dict-item]
    run = unshuffle.pretrain(images=folders, epochs=1, out=tmp_path / "run", **options)
    assert "1 epoch of 18 training samples (spatial task), in batches of 2, are 9 iterations" in capsys.readouterr().out
    stored = yaml.safe_load(run.config_file.read_text())
    assert (stored["optim"]["epochs"], stored["optim"]["iterations"]) == (1.0, 9)
    assert stored["images"] == list(map(str, folders))


def test_tensorboard_has_the_learning_rates_and_the_pictures(tmp_path: Path) -> None:
    run = unshuffle.pretrain(out=tmp_path / "run", **{**TINY, "log": {"pictures": True, "train_every": 1}})
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    lrs = [scalar.value for scalar in board.Scalars("train/lr/backbone")]
    assert lrs == pytest.approx([0.002 * 1 / 50, 0.002 * 2 / 50]), "the demo's warm-up"
    assert "train/lr/spatial" in board.Tags()["scalars"]
    assert board.Tags()["images"] == ["puzzles", "clips", "neighbours"]
