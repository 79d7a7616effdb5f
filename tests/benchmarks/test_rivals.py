import argparse
import csv
import importlib
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from unshuffle.config import small
from unshuffle.options import merge, write_yaml

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, whose changes of the trainer end with the test."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("rivals")
    monkeypatch.setattr(module.trainer_module, "make_resident", module.make_resident)
    return module


# ---- SimCLR


@pytest.mark.parametrize("side", [2, 3, 8])
def test_off_diagonal_is_what_a_mask_selects(rivals: ModuleType, side: int) -> None:
    square, mask = torch.randn(side, side), ~torch.eye(side, dtype=torch.bool)
    assert torch.equal(rivals.off_diagonal(square), square[mask])
    with rivals.OffDiagonal():
        assert torch.equal(square[mask], rivals.off_diagonal(square)) and torch.equal(
            square[1:], square.narrow(0, 1, side - 1)
        )


def lightly_task(rivals: ModuleType, temperature: float = 0.2) -> Any:
    pytest.importorskip("lightly.loss")
    options = {"crop_size": 24, "hidden": 8, "output": 6, "temperature": temperature}
    return rivals.LightlySimCLR(merge(small(), {"tasks": "I", "instance": options}))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("batch", [2, 7])
def test_loss_and_gradients_are_lightlys_to_the_bit(rivals: ModuleType, batch: int, temperature: float) -> None:
    task = lightly_task(rivals, temperature)
    from lightly.loss import NTXentLoss

    torch.manual_seed(0)
    head, features = task.build_head(10), torch.randn(batch, 2, 10)
    first, second = head(features.flatten(0, 1)).unflatten(0, (batch, 2)).unbind(1)
    expected = NTXentLoss(temperature)(first, second)
    loss = task.outcome(head, features, {}).loss

    def gradients(total: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(total, list(head.parameters()))

    assert torch.equal(loss, expected)
    assert all(torch.equal(*pair) for pair in zip(gradients(loss), gradients(expected), strict=True))


def test_a_step_of_simclr_reads_nothing_back(rivals: ModuleType) -> None:
    """Tensors without data raise where a value or a shape would depend on it."""
    task = lightly_task(rivals)
    from lightly.loss import NTXentLoss

    with FakeTensorMode():
        head, features = task.build_head(10), torch.empty(5, 2, 10)
        task.outcome(head, features, {}).loss.backward()
        with pytest.raises(DynamicOutputShapeException):
            NTXentLoss()(features[:, 0], features[:, 1])


def test_simclr_has_the_augmentations_of_lightly(rivals: ModuleType) -> None:
    pytest.importorskip("lightly.transforms")
    from lightly.transforms import SimCLRTransform

    crop, flip, _, _, jitter, grayscale, blur, *_ = SimCLRTransform().transforms[0].transform.transforms
    colours = jitter.transforms[0]
    views = merge(small(), rivals.simclr_options(0.2)).instance.views
    assert (views.scale, views.ratio, views.hflip) == (tuple(crop.scale), tuple(crop.ratio), flip.p)
    assert (views.jitter, views.grayscale, views.blur, views.sigma) == (jitter.p, grayscale.p, blur.prob, blur.sigmas)
    for name in ("brightness", "contrast", "saturation"):
        assert getattr(colours, name) == pytest.approx((max(0, 1 - getattr(views, name)), 1 + getattr(views, name)))
    assert colours.hue == (-views.hue, views.hue)


# ---- the campaign


SHARED: dict[str, Any] = {
    "model": {"backbone": "tiny"},
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 24, "clips": 12, "image_size": 48, "frame_size": 32, "clip_frames": 9},
    "spatial": {"crop_size": 24, "permutations": 5, "batch_size": 2, "head": {"fc6": 8, "hidden": 8}},
    "temporal": {"crop_size": 24, "permutations": 5, "batch_size": 2, "head": {"fc6": 8, "hidden": 8}},
    "instance": {"crop_size": 24, "batch_size": 4, "hidden": 8, "output": 4},
    "optim": {"batch_size": 4},
}
KNOWN = "arm,seed,samples,iterations,allowed,start,milliseconds,trained,images_top1\n"


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in file.read_text().splitlines() if not line.startswith("#")))


@pytest.mark.slow
def test_a_campaign_is_continued(
    rivals: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted runs are trained again, finished ones are not, on another machine neither, and its times count."""
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "shared.yaml", SHARED)
    # another machine has finished seed 0 of I; two iterations of 4 s fit into 10 s with a start of 2 s
    lines = ["I,0,4 instance,2,10,2,4000,9,50.0", "broken,9,,2,10,2,4000,9,40.0"]
    (tmp_path / "known.csv").write_text(KNOWN + "\n".join(lines) + "\n")
    write_yaml(tmp_path / "arms.yaml", {"broken": {"tasks": "I", "init": "nothing.pth"}})
    interrupted = tmp_path / "out" / "10s" / "I" / "seed-1"
    interrupted.mkdir(parents=True)
    (interrupted / "config.yaml").write_text("a run that was interrupted")

    def program(words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["rivals.py", *shlex.split(words)])
        rivals.main()

    common = "--out out --results results --device cpu --known known.csv "
    training = f"train {common} --shared shared.yaml --arms arms.yaml I --seconds 10 --seeds 3"
    with pytest.raises(SystemExit, match="3 of the runs failed"):
        program(training)
    assert "nothing.pth" in capsys.readouterr().err
    finished = sorted(str(file.parent.relative_to("out")) for file in Path("out").glob("*/*/*/rival.json"))
    assert finished == ["10s/I/seed-1", "10s/I/seed-2"]
    monkeypatch.setattr(rivals, "train_one", None)
    ours = training.replace("arms.yaml ", "")
    program(ours)
    assert capsys.readouterr().out == "", "nothing is left to train"

    images = "--train synthetic:images:24:1 --test synthetic:images:12:2"
    program(f"{ours} {images}")
    table = rows(tmp_path / "results" / "rivals_cpu.csv")
    assert [f"{row['arm']} {row['seed']}" for row in table] == ["I 0", "I 1", "I 2", "broken 9"]
    assert table[0]["images_top1"] == "50.0" and table[0]["images_linear"] == "" and "frames_top1" not in table[0]
    assert [table[1][name] for name in ("samples", "iterations", "milliseconds")] == ["4 instance", "2", "4000.0"]
    evaluation = f"evaluate {common} {images} --frames_train synthetic:videos:12:1 --frames_test synthetic:videos:6:2"
    program(f"{evaluation} --jobs 2")
    both = rows(tmp_path / "results" / "rivals_cpu.csv")
    assert [{**row, "frames_top1": both[number]["frames_top1"]} for number, row in enumerate(table)] == both
    assert 0 < float(both[1]["frames_top1"]) <= 100
    monkeypatch.setattr(rivals, "build_evaluation", None)  # all is read
    capsys.readouterr()
    program(evaluation)
    assert rows(tmp_path / "results" / "rivals_cpu.csv") == both
    assert "I, 10 s (3 seeds): images_top1" in capsys.readouterr().out


def test_all_arms_take_what_they_share(rivals: ModuleType, tmp_path: Path) -> None:
    """Arms of ordering tasks alone have full batches and weights, unless the shared options have others."""
    write_yaml(tmp_path / "shared.yaml", {"spatial": {"batch_size": 3}, "temporal": {"loss_weight": 0.5}})
    args = argparse.Namespace(
        arms=["S+T", "S+T+I", "R"], shared=tmp_path / "shared.yaml", images=None, videos=None, device="cpu"
    )
    args.sibling_pattern = ""
    configs = rivals.arms(args)
    assert [configs[arm].tasks for arm in args.arms] == args.arms
    assert [configs[arm].batch_size("spatial") for arm in ("S+T", "S+T+I")] == [3, 3]
    assert [configs[arm].batch_size("temporal") for arm in ("S+T", "S+T+I")] == [128, small().temporal.batch_size]
    assert [configs[arm].spatial.loss_weight for arm in ("S+T", "S+T+I")] == [1.0, small().spatial.loss_weight]
    assert [configs[arm].temporal.loss_weight for arm in ("S+T", "S+T+I")] == [0.5, 0.5]


def test_the_shorter_time_of_an_arm_counts(rivals: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms take turns, so that a slow minute does not fall on one of them; one that fails is left out."""
    measured = {("A", 0): 5.0, ("B", 0): 3.0, ("A", 1): 4.0, ("B", 1): 6.0}
    order = []

    def time_of_arm(arm: str, config: object, number: int, args: object) -> Any:
        order.append((arm, number))
        return rivals.Times(1.0, measured[arm, number])

    monkeypatch.setattr(rivals, "time_of_arm", time_of_arm)
    rows = [
        {"arm": "known", "start": "2", "milliseconds": "7"},
        {"arm": "not asked for", "start": "2", "milliseconds": "7"},
    ]
    times = rivals.times_of(dict.fromkeys(["A", "broken", "B", "known"]), rows, None)
    assert {arm: tuple(time) for arm, time in times.items()} == {"A": (1, 4), "B": (1, 3), "known": (2, 7)}
    assert order == [("A", 0), ("broken", 0), ("B", 0), ("A", 1), ("B", 1)]


@pytest.mark.slow
def test_arms_are_timed_once(
    rivals: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "shared.yaml", SHARED)
    (tmp_path / "out" / "timed" / "I").mkdir(parents=True)
    (tmp_path / "out" / "timed" / "I" / "config.yaml").write_text("a measurement that was interrupted")
    words = "train --out out --device cpu --shared shared.yaml --arms I --seconds 1 --seeds 1 --timed 50 100"
    monkeypatch.setattr(sys, "argv", ["rivals.py", *words.split()])
    rivals.main()
    run = json.loads(Path("out/1s/I/seed-0/rival.json").read_text())
    assert run["start"] > 1 and run["iterations"] == 2, "the start alone takes longer"
    assert 0 < run["milliseconds"] < 1000
    monkeypatch.setattr(rivals, "time_of", None)
    monkeypatch.setattr(sys, "argv", ["rivals.py", *words.replace("seconds 1", "seconds 2").split()])
    rivals.main()
    again = json.loads(Path("out/2s/I/seed-0/rival.json").read_text())
    assert [again[name] for name in ("start", "milliseconds")] == [run[name] for name in ("start", "milliseconds")]
