import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import unshuffle
from unshuffle import pretraining
from unshuffle.config import SyntheticConfig
from unshuffle.report.views import _read_skipped
from unshuffle.training.trainer import Trainer

TINY = {
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


def test_a_folder_of_images_trains_the_spatial_task_alone(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 12, classes=2)
    options = {**TINY, "data": {**TINY["data"], "cache": str(tmp_path / "cache")}}  # type: ignore[dict-item]
    monitor = {"gallery": str(folder), "queries": str(folder)}
    run = unshuffle.pretrain(images=folder, out=tmp_path / "run", monitor=monitor, **options)
    assert {entry["task"] for entry in run.metrics("validation")} == {"spatial"}
    assert [entry["top1"] for entry in run.metrics("monitor")] == [100.0, 100.0]  # every query is in the gallery


def test_resume_from_python(tmp_path: Path) -> None:
    unshuffle.pretrain(out=tmp_path / "run", resume=True, **TINY)  # there is no run yet, so it starts
    run = unshuffle.pretrain(out=tmp_path / "run", resume=True)
    assert run.config.synthetic == SyntheticConfig(images=16, clips=12, gallery=12, queries=6)
    with pytest.raises(unshuffle.UserError, match="give out"):
        unshuffle.pretrain(resume=True)


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
        "UserError",
        "embed",
        "load_backbone",
        "neighbours_page",
        "preprocess",
        "pretrain",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(unshuffle.UserError, match="cannot be used"):
        unshuffle.pretrain(out=tmp_path / "run", **{**TINY, "device": "cuda"})
