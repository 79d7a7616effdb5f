from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from unshuffle import cli
from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.saliency import grey_levels, half_area, saliency
from unshuffle.data.voc import CLASSES as VOC_CLASSES
from unshuffle.evaluation.features import find_backbone
from unshuffle.evaluation.finetuning import Classifier

Analyse = Callable[..., AnalysisResult]
CLASSES = ("cat", "dog", "gnu")


def classifier(seed: int, classes: tuple[str, ...] = CLASSES, side: int = 96) -> Classifier:
    backbone = find_backbone("random:tiny", seed)
    features = backbone(torch.zeros(1, 3, side, side)).numel()
    return Classifier(backbone, [nn.Linear(features, len(classes))], classes).eval()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "0 broken.png").write_text("no image")
        pixels = np.random.default_rng(number).integers(0, 256, (120, 130, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name / "1.png")
    return tmp_path / "images"


def test_saliency_against_small_changes_of_each_pixel() -> None:
    model = classifier(0, side=16)
    model.backbone.double(), model.head.double()
    torch.manual_seed(0)
    pictures, labels, step = torch.randn(2, 3, 16, 16, dtype=torch.float64), torch.tensor([2, 0]), 1e-6
    maps, scores = saliency(model, pictures, labels)
    assert maps.shape == (2, 16, 16) and torch.equal(scores, model(pictures).detach())
    for image, (row, column) in ((0, (3, 4)), (0, (15, 0)), (1, (8, 8))):
        slopes = []
        for channel in range(3):
            changed = pictures.clone()
            changed[image, channel, row, column] += step
            difference = model(changed)[image, labels[image]] - scores[image, labels[image]]
            slopes.append(abs(float(difference.detach())) / step)
        assert float(maps[image, row, column]) == pytest.approx(max(slopes), rel=1e-4, abs=1e-9)


def test_half_area_by_hand() -> None:
    assert half_area(torch.tensor([[8.0, 1.0], [1.0, 1.0]])) == 25
    assert half_area(torch.tensor([[3.0, 3.0], [2.0, 2.0]])) == 50
    assert half_area(torch.ones(4, 5)) == 50
    assert half_area(torch.zeros(4, 5)) == 5


def test_shades_are_black_to_white() -> None:
    grey = grey_levels(np.linspace(0, 2, 400, dtype=np.float32).reshape(20, 20))
    assert grey.dtype == np.uint8 and grey.shape == (20, 20, 3)
    assert grey[0, 0, 0] == 0 and grey[-1, -1].tolist() == [255] * 3
    assert (grey_levels(np.zeros((4, 4), np.float32)) == 0).all()


def test_two_networks_side_by_side(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        classifier(seed).save(tmp_path / f"out{seed}")
    outs = [str(tmp_path / "out0"), str(tmp_path / "out1")]
    line = ["analyze", "saliency", str(images), *outs, "--names", "S+T", "$random$", "--out", str(tmp_path / "here")]
    assert cli.run([*line, "--device", "cpu"]) == 0
    assert "2 images" in capsys.readouterr().out
    lines = (tmp_path / "here" / "saliency.csv").read_text().splitlines()
    assert len(lines) == 5 and lines[3].startswith("$random$,")
    assert "$random$" in (tmp_path / "here" / "saliency.svg").read_text()


def test_of_the_same_network_twice(images: Path, tmp_path: Path, analyse: Analyse) -> None:
    path = classifier(0).save(tmp_path / "out")
    analysis = analyse("saliency", images=images, classifiers=(path, path), names=("a", "b"), device="cpu")
    assert analysis.metrics["a"] == analysis.metrics["b"]
    assert [row["label"] for row in analysis.rows] == ["cat", "dog"] * 2
    assert len(analysis.figure().axes) == 2 + 4


def test_an_image_of_voc_is_of_its_largest_object(tmp_path: Path, analyse: Analyse) -> None:
    folder = tmp_path / "VOC2007"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    Image.fromarray(np.full((100, 100, 3), 90, np.uint8)).save(folder / "JPEGImages" / "1.jpg")
    (folder / "ImageSets" / "Main" / "test.txt").write_text("1\n")
    boxes = {"bird": (1, 1, 20, 20), "cat": (1, 1, 90, 50), "dog": (1, 1, 30, 99)}
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, (a, b, c, d) in boxes.items()
    )
    (folder / "Annotations" / "1.xml").write_text(f"<annotation>{objects}</annotation>")
    path = classifier(0, VOC_CLASSES).save(tmp_path / "out")
    analysis = analyse("saliency", images=tmp_path, year=2007, classifiers=(path,), device="cpu")
    assert [row["label"] for row in analysis.rows] == ["cat"]
    with pytest.raises(ValueError, match="were not trained on the classes of VOC"):
        analyse("saliency", images=tmp_path, year=2007, classifiers=(classifier(0).save(tmp_path / "o"),), device="cpu")


def test_what_cannot_be_compared(images: Path, tmp_path: Path, analyse: Analyse) -> None:
    one, other = classifier(0).save(tmp_path / "one"), classifier(0, ("cat", "dog", "emu")).save(tmp_path / "other")
    with pytest.raises(ValueError, match="other was trained on other classes than one: they cannot be compared"):
        analyse("saliency", images=images, classifiers=(one.parent, other.parent), device="cpu")
    with pytest.raises(ValueError, match="give one classifier or more"):
        analyse("saliency", images=images, classifiers=(), device="cpu")
    for name in ("cat", "dog"):
        (images / name / "1.png").unlink()
    with pytest.raises(ValueError, match="none of the 2 images can be read"):
        analyse("saliency", images=images, classifiers=(one,), device="cpu")
