from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import average_precision_score

from unshuffle.data.voc import CLASSES, VocImage, VocObject
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import find_evaluation
from unshuffle.evaluation.voc.classification import (
    RECIPE,
    VocClassification,
    chance_level,
    class_average_precisions,
    image_labels,
    multi_label_loss,
    random_scaled_crop,
)

MakeDevkit = Callable[..., Path]
BOX = (0.0, 0.0, 1.0, 1.0)


def annotated_image(*objects: tuple[int, bool]) -> VocImage:
    return VocImage("x", Path(), (10, 10), tuple(VocObject(label, BOX, difficult) for label, difficult in objects))


def test_a_class_with_difficult_objects_alone_is_unknown() -> None:
    labels = image_labels(
        [
            annotated_image((3, True)),
            annotated_image((3, True), (3, False)),
            annotated_image((3, False), (3, True)),
            annotated_image(),
        ]
    )
    assert labels[:, 3].tolist() == [-1, 1, 1, 0]
    assert labels.abs().sum() == 3


def test_unknown_classes_do_not_contribute_to_the_loss() -> None:
    labels = torch.tensor([[1, 0, -1], [0, -1, 1]])
    logits = torch.randn(2, 3, requires_grad=True)
    loss = multi_label_loss(logits, labels)
    loss.backward()
    known = [(i, j) for i in range(2) for j in range(3) if labels[i, j] >= 0]
    probabilities = torch.sigmoid(logits.detach())
    terms = [-torch.log(probabilities[at] if labels[at] else 1 - probabilities[at]) for at in known]
    assert float(loss.detach()) == pytest.approx(float(sum(terms)) / 2, rel=1e-5)
    assert logits.grad is not None and torch.equal(logits.grad == 0, labels == -1)


def test_average_precision_ignores_unknown_images() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(40, 4)), rng.integers(-1, 2, (40, 4))
    labels[:, 3] = np.where(labels[:, 3] == 1, 0, labels[:, 3])  # a class without positives
    precisions = class_average_precisions(scores, labels)
    for label in range(3):
        known = labels[:, label] >= 0
        assert precisions["area"][label] == pytest.approx(
            average_precision_score(labels[known, label], scores[known, label])
        )
    assert np.isnan(precisions["area"][3]) and np.isnan(precisions["11-point"][3])


def test_chance_is_about_the_map_of_random_scores() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((4000, 3)) < [0.1, 0.5, 0.0], 1, 0)
    labels[rng.random(labels.shape) < 0.2] = -1
    random_scores = class_average_precisions(rng.random(labels.shape), labels)["area"]
    assert chance_level(labels) == pytest.approx(100 * np.nanmean(random_scores), abs=2)


def test_crops_lie_within_the_image_and_are_scaled_and_flipped() -> None:
    rows, columns = np.mgrid[:60, :90]
    pixels = np.stack([columns, rows, np.zeros_like(rows)], axis=2).astype(np.uint8)  # each pixel encodes its position
    rng = np.random.default_rng(0)
    spans, flipped = [], []
    for _ in range(200):
        crop = random_scaled_crop(pixels, 40, rng).astype(int)
        assert crop.shape == (40, 40, 3)
        flipped.append(crop[0, 0, 0] > crop[0, -1, 0])
        spans.append(abs(int(crop[0, -1, 0]) - int(crop[0, 0, 0])))
        assert abs(spans[-1] - int(crop[-1, 0, 1] - crop[0, 0, 1])) <= 2, "the shape is kept"
    assert 60 < sum(flipped) < 140
    assert 17 <= min(spans) < 24 and 55 < max(spans) <= 60, "scales 0.5 (no more than the image) to 2"


def test_schedule_as_published() -> None:
    assert RECIPE.iterations == 80_000 and RECIPE.clip == 10 and RECIPE.weight_decay == 1e-6
    assert (
        RECIPE.learning_rate(9_999) == 0.001
        and RECIPE.learning_rate(10_000) == 0.0005
        and RECIPE.learning_rate(79_999) == 0.001 / 128
    )


def tiny_run(root: Path, **options: object) -> VocClassification:
    defaults = {"weights": "random:tiny", "voc": root, "batch_size": 16, "hidden": 64, "crops": 4, "workers": 1}
    return VocClassification(**{**defaults, **options})  # type: ignore[arg-type]


@pytest.mark.slow
def test_colours_are_learned(devkit: MakeDevkit) -> None:
    root = devkit(trainval=60, test=30)
    console = Console(record=True, width=160)
    result = tiny_run(root, iterations=50, lr=0.05, hidden=256, init_std=0.07, crops=2).run(console)
    assert 33 < result.metrics["chance"] < 55
    assert result.metrics["mAP_area"] > result.metrics["chance"] + 25
    console.print(result.table)
    printed = console.export_text()
    assert "VOC2007 test: 30 images" in printed and "not in the mean" in printed and "tvmonitor" in printed
    assert result.metrics["AP_area"]["tvmonitor"] is None
    assert "11-point" in result.statement and "2 random crops" in result.statement


def test_evaluation_is_resumed_from_out(devkit: MakeDevkit, annotate: Callable, tmp_path: Path) -> None:
    root, console = devkit(trainval=8, test=6), Console(quiet=True)
    first = tiny_run(root, iterations=4, out=tmp_path / "out").measure(console)  # leaves its checkpoint
    again = tiny_run(root, iterations=4, out=tmp_path / "out").measure(console)
    assert first.metrics == again.metrics == tiny_run(root, iterations=4).run(console).metrics
    with pytest.raises(UserError, match="other options"):
        tiny_run(root, iterations=4, lr=0.5, out=tmp_path / "out").run(console)
    annotate(root / "VOC2007/Annotations/000003.xml", [("cat", (1, 1, 40, 40), False)])
    with pytest.raises(UserError, match="other options, weights or files"):
        tiny_run(root, iterations=4, out=tmp_path / "out").run(console)


def test_difficult_objects_alone_cannot_be_evaluated(devkit: MakeDevkit, annotate: Callable) -> None:
    root = devkit(trainval=2, test=1)
    annotate(root / "VOC2007/Annotations/000002.xml", [("cat", (1, 1, 40, 40), True)])
    with pytest.raises(UserError, match="no objects that count"):
        tiny_run(root, iterations=1).run(Console(quiet=True))


def test_it_is_registered_and_needs_a_devkit() -> None:
    assert find_evaluation("voc-classification") is VocClassification
    with pytest.raises(UserError, match="use --voc"):
        VocClassification(weights="random:tiny").run(Console(quiet=True))
    assert VocClassification.quick().preset == "quick" and len(CLASSES) == 20
