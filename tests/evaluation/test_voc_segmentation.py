from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import find_evaluation
from unshuffle.evaluation.voc import Devkit
from unshuffle.evaluation.voc_segmentation import SCHEDULES, VocSegmentation, all_background, read_pair

MakeDevkit = Callable[..., Path]


def test_the_published_schedules() -> None:
    assert (
        all(SCHEDULES["100k"].learning_rate(at) == 1e-4 for at in (0, 50_000, 99_999))
        and SCHEDULES["100k"].accumulate == 20
    )
    three = SCHEDULES["150k"]
    assert [three.learning_rate(at) for at in (0, 49_999, 50_000, 100_000, 149_999)] == pytest.approx(
        [1e-4, 1e-4, 1e-5, 1e-6, 1e-6]
    )


def test_calling_everything_background() -> None:
    confusion = torch.tensor([[5, 3, 0], [1, 1, 0], [0, 0, 0]])
    assert all_background(confusion).tolist() == [[8, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_images_come_with_their_masks(devkit: MakeDevkit) -> None:
    (image, *_) = Devkit(devkit(val=2), 2007).with_masks("val").images
    pixels, mask = read_pair(image)
    assert pixels.shape == (88, 104, 3) and mask.shape == (88, 104)
    for label in set(mask.unique().tolist()) - {0}:
        assert int(pixels[mask == label].float().mean(dim=0).argmax()) == label - 1


def tiny_run(root: Path, **options: object) -> VocSegmentation:
    defaults = {"weights": "random:tiny", "voc": root, "year": 2007, "hidden": 64, "workers": 1, "accumulate": 2}
    return VocSegmentation(**{**defaults, **options})  # type: ignore[arg-type]


@pytest.mark.slow
def test_colours_are_segmented(devkit: MakeDevkit) -> None:
    root = devkit(train=30, val=15)
    console = Console(record=True, width=160)
    result = tiny_run(root, iterations=120, lr=0.05, deviation=0.1).run(console)
    assert result.metrics["mIoU"] > result.metrics["chance"] + 20
    console.print(result.table)
    assert result.metrics["IoU"]["sofa"] is None and "tested on VOC2007 val (15)" in result.statement
    assert "background" in console.export_text()


def test_resumed_from_out(devkit: MakeDevkit, tmp_path: Path) -> None:
    root, quiet = devkit(train=4, val=3), Console(quiet=True)
    first = tiny_run(root, iterations=3, out=tmp_path / "out").measure(quiet)  # which leaves the checkpoint
    again = tiny_run(root, iterations=3, out=tmp_path / "out").measure(quiet)
    assert first.metrics == again.metrics == tiny_run(root, iterations=3).run(quiet).metrics
    Image.fromarray(np.ones((88, 104), np.uint8)).save(root / "VOC2007/SegmentationClass/000002.png")
    with pytest.raises(UserError, match="other options, weights or files"):
        tiny_run(root, iterations=3, out=tmp_path / "out").run(quiet)


def test_a_short_run_does_not_claim_the_schedule(devkit: MakeDevkit) -> None:
    root, console = devkit(train=3, val=2), Console(record=True, width=200)
    (root / "VOC2007/SegmentationClass/000001.png").unlink()
    result = tiny_run(root, iterations=1, test_set="train").run(console)
    assert "1 instead of 100,000 iterations of 2 whole images" in result.statement
    assert "hidden 64" in result.statement and "2 of the test files are training files too" in result.statement
    assert result.metrics["skipped"]["files"][0] == {"file": "000001", "reason": "the mask is missing"}
    assert result.metrics["shared_files"] == 2 and not any(" " in key for key in result.metrics)
    console.print(result.table)
    said = console.export_text()
    assert "it calls nearly everything background" in said
    assert "  000001: the mask is missing" in said and "only 2 training images for 20 classes" in said


def test_ignored_pixels_do_not_count(devkit: MakeDevkit) -> None:
    root, quiet = devkit(train=3, val=2), Console(quiet=True)
    plain = tiny_run(root, iterations=1).run(quiet)
    for name in ("000003", "000004"):
        file = root / f"VOC2007/SegmentationClass/{name}.png"
        labels = np.array(Image.open(file))
        labels[labels != 0] = 255
        Image.fromarray(labels).save(file)
    ignored = tiny_run(root, iterations=1).run(quiet)
    assert plain.metrics["pixel_accuracy"] < 100 and ignored.metrics["pixel_accuracy"] == 100


def test_what_the_user_can_put_right(devkit: MakeDevkit) -> None:
    root, quiet = devkit(train=2, val=2), Console(quiet=True)
    with pytest.raises(UserError, match="no plain chain of layers"):
        tiny_run(root, weights="random:resnet18").run(quiet)
    with pytest.raises(UserError, match="no image of VOC2007 train can be used: 2 because the mask is missing"):
        tiny_run(root, masks="SegmentationClassAug").run(quiet)
    assert find_evaluation("voc-segmentation") is VocSegmentation and VocSegmentation.quick().preset == "quick"
