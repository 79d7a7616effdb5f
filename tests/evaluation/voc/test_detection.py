from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from unshuffle.data.voc import CLASSES, Devkit, VocImage
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import find_evaluation
from unshuffle.evaluation.voc.detection import (
    SCHEDULES,
    VocDetection,
    hflip_boxes,
    read_resized,
    training_sample,
)

MakeDevkit = Callable[..., Path]


def test_schedules_as_published() -> None:
    short, long = SCHEDULES["40k"], SCHEDULES["150k"]
    assert [short.recipe.learning_rate(at) for at in (0, 29_999, 30_000)] == pytest.approx([1e-3, 1e-3, 1e-4])
    assert short.freeze_conv1 and short.scales == (600,) and short.recipe.iterations == 40_000
    assert [long.recipe.learning_rate(at) for at in (0, 50_000, 100_000, 149_999)] == pytest.approx(
        [1e-3, 1e-4, 1e-5, 1e-5]
    )
    assert not long.freeze_conv1 and len(long.scales) == 5 and long.max_side == 2000


def test_the_short_side_is_resized_within_the_limit_of_the_long_side(tmp_path: Path) -> None:
    for width, (height, expected) in {120: (60, 1.5), 200: (60, 0.8)}.items():
        Image.new("RGB", (width, height)).save(tmp_path / "a.png")
        pixels, factor = read_resized(
            VocImage("a", tmp_path / "a.png", (height, width)), 90, 180 if width == 120 else 160
        )
        assert factor == pytest.approx(expected) and pixels.shape == (round(60 * factor), round(width * factor), 3)


@given(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20)).map(
        lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
    )
)
def test_flipped_boxes_hold_the_flipped_pixels(box: tuple[int, int, int, int]) -> None:
    image = torch.zeros(40, 45)
    image[box[1] : box[3], box[0] : box[2]] = 1
    left, top, right, bottom = hflip_boxes(torch.tensor([box]), 45)[0].tolist()
    assert image.flip(1)[top:bottom, left:right].all() and (bottom - top) * (right - left) == image.sum()


def test_sampled_regions_stay_on_their_objects(devkit: MakeDevkit) -> None:
    images = Devkit(devkit(test=6), 2007).with_objects("test").images
    rng, sides = np.random.default_rng(0), set()
    for image in images * 4:
        schedule = SCHEDULES["150k"].__class__(SCHEDULES["40k"].recipe, (88, 132), 1000, freeze_conv1=True)
        pixels, targets = training_sample(image, torch.zeros(0, 4), schedule, 64, rng)
        assert len(targets.labels) == len(image.objects)
        sides.add(pixels.shape[0])
        for (left, top, right, bottom), label in zip(targets.boxes.round().int().tolist(), targets.labels, strict=True):
            inside = pixels[top:bottom, left:right].float().mean(dim=(0, 1))
            labels = [annotated.label for annotated in image.objects]
            assert int(label) in labels
            if len(labels) == 1:
                assert int(inside.argmax()) == int(label), "the first three classes are red, green and blue"
    assert sides == {88, 132}


def test_difficult_objects_are_training_targets_too(devkit: MakeDevkit, annotate: Callable) -> None:
    root = devkit(test=1)
    objects = [("cat", (1, 1, 40, 40), True), ("dog", (50, 40, 80, 80), False)]
    annotate(root / "VOC2007/Annotations/000000.xml", objects)
    (image,) = Devkit(root, 2007).with_objects("test").images
    proposals = torch.tensor([[0.0, 0, 40, 40], [49, 39, 80, 79]])
    _, targets = training_sample(image, proposals, SCHEDULES["40k"], 64, np.random.default_rng(0))
    assert set(targets.labels.tolist()) == {CLASSES.index("cat"), CLASSES.index("dog")}


def write_proposals(root: Path, file: Path, sets: tuple[str, ...]) -> Path:
    """Write random boxes, and boxes that overlap the objects more or less well."""
    rng, arrays = np.random.default_rng(0), {}
    for image in (image for name in sets for image in Devkit(root, 2007).with_objects(name).images):
        corner, side = rng.uniform(0, 50, (60, 2)), rng.uniform(20, 45, (60, 2))
        random_boxes = np.concatenate([corner, corner + side], axis=1)
        near = [np.array(annotated.box) + rng.uniform(-9, 9, 4) for annotated in image.objects for _ in range(12)]
        arrays[image.name] = np.concatenate([random_boxes, near])
    np.savez(file, **arrays)
    return file


def tiny_run(root: Path, file: Path, **options: object) -> VocDetection:
    defaults = {"weights": "random:tiny", "voc": root, "hidden": 64, "scale": 88, "proposals": (file,), "workers": 1}
    return VocDetection(**{**defaults, **options})  # type: ignore[arg-type]


@pytest.mark.slow
def test_coloured_squares_are_detected(devkit: MakeDevkit, tmp_path: Path) -> None:
    root = devkit(trainval=40, test=20)
    file = write_proposals(root, tmp_path / "proposals.npz", ("trainval", "test"))
    console = Console(record=True, width=160)
    untrained = tiny_run(root, file, iterations=1).run(Console(quiet=True)).metrics["mAP_11_point"]
    result = tiny_run(root, file, iterations=120, lr=0.02, init_std=0.1, schedule="150k").run(console)
    assert result.metrics["mAP_11_point"] > max(40, 2 * untrained)
    console.print(result.table)
    assert "AP (11-point)" in console.export_text() and "schedule 150k" in result.statement
    assert result.metrics["AP_area"]["sofa"] is None


def test_evaluation_is_resumed_from_out(devkit: MakeDevkit, tmp_path: Path) -> None:
    root, quiet = devkit(trainval=4, test=3), Console(quiet=True)
    file = write_proposals(root, tmp_path / "proposals.npz", ("trainval", "test"))
    first = tiny_run(root, file, iterations=3, out=tmp_path / "out").measure(quiet)  # leaves its checkpoint
    again = tiny_run(root, file, iterations=3, out=tmp_path / "out").measure(quiet)
    assert first.metrics == again.metrics == tiny_run(root, file, iterations=3).run(quiet).metrics


def test_images_without_proposals_are_reported_and_evaluated(devkit: MakeDevkit, tmp_path: Path) -> None:
    root, console = devkit(trainval=2, test=2), Console(record=True, width=120)
    file = write_proposals(root, tmp_path / "all.npz", ("trainval", "test"))
    boxes = dict(np.load(file))
    np.savez(file, **{**boxes, "000000": np.zeros((0, 4)), "000003": np.zeros((0, 4))})
    result = tiny_run(root, file, iterations=2).run(console)
    assert "2 images without usable proposals" in console.export_text() and result.metrics["test_images"] == 2


def test_user_errors_are_explained(devkit: MakeDevkit, tmp_path: Path) -> None:
    root, quiet = devkit(trainval=3, test=2), Console(quiet=True)
    file = write_proposals(root, tmp_path / "proposals.npz", ("trainval",))
    with pytest.raises(UserError, match="have none for 2 images of the image sets, the first being 000003"):
        tiny_run(root, file).run(quiet)
    file = write_proposals(root, tmp_path / "proposals.npz", ("trainval", "test"))
    with pytest.raises(UserError, match="not a plain chain of layers"):
        tiny_run(root, file, weights="random:resnet18").run(quiet)
    assert find_evaluation("voc-detection") is VocDetection and VocDetection.quick().preset == "quick"
