from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from unshuffle.data.voc import Devkit
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import find_evaluation
from unshuffle.evaluation.voc.segmentation import (
    LABEL_NAMES,
    SCHEDULES,
    FCN32s,
    VocSegmentation,
    all_background,
    interpolation_matrix,
    read_image_and_mask,
)
from unshuffle.models import build_backbone
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.chain import Geometry

MakeDevkit = Callable[..., Path]


def test_schedules_as_published() -> None:
    assert (
        all(SCHEDULES["100k"].learning_rate(at) == 1e-4 for at in (0, 50_000, 99_999))
        and SCHEDULES["100k"].accumulate == 20
    )
    long = SCHEDULES["150k"]
    assert [long.learning_rate(at) for at in (0, 49_999, 50_000, 100_000, 149_999)] == pytest.approx(
        [1e-4, 1e-4, 1e-5, 1e-6, 1e-6]
    )


def test_confusion_of_predicting_background_everywhere() -> None:
    confusion = torch.tensor([[5, 3, 0], [1, 1, 0], [0, 0, 0]])
    assert all_background(confusion).tolist() == [[8, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_images_are_read_with_their_masks(devkit: MakeDevkit) -> None:
    (image, *_) = Devkit(devkit(val=2), 2007).with_masks("val").images
    pixels, mask = read_image_and_mask(image)
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
    result = tiny_run(root, iterations=120, lr=0.05, init_std=0.1).run(console)
    assert result.metrics["mIoU"] > result.metrics["chance"] + 20
    console.print(result.table)
    assert result.metrics["IoU"]["sofa"] is None and "tested on VOC2007 val (15)" in result.statement
    assert "background" in console.export_text()


def test_evaluation_is_resumed_from_out(devkit: MakeDevkit, tmp_path: Path) -> None:
    root, quiet = devkit(train=4, val=3), Console(quiet=True)
    first = tiny_run(root, iterations=3, out=tmp_path / "out").measure(quiet)  # leaves its checkpoint
    again = tiny_run(root, iterations=3, out=tmp_path / "out").measure(quiet)
    assert first.metrics == again.metrics == tiny_run(root, iterations=3).run(quiet).metrics
    Image.fromarray(np.ones((88, 104), np.uint8)).save(root / "VOC2007/SegmentationClass/000002.png")
    with pytest.raises(UserError, match="other options, weights or files"):
        tiny_run(root, iterations=3, out=tmp_path / "out").run(quiet)


def test_the_statement_of_a_short_run_names_its_iterations(devkit: MakeDevkit) -> None:
    root, console = devkit(train=3, val=2), Console(record=True, width=200)
    (root / "VOC2007/SegmentationClass/000001.png").unlink()
    result = tiny_run(root, iterations=1, test_set="train").run(console)
    assert "1 instead of 100,000 iterations of 2 whole images" in result.statement
    assert "hidden 64" in result.statement and "2 of the test files are training files too" in result.statement
    assert result.metrics["skipped"]["files"][0] == {"file": "000001", "reason": "the mask is missing"}
    assert result.metrics["shared_files"] == 2 and not any(" " in key for key in result.metrics)
    console.print(result.table)
    printed = console.export_text()
    assert "nearly every pixel is predicted as background" in printed
    assert "  skipped 000001: the mask is missing" in printed and "only 2 training images for 20 classes" in printed


def test_ignored_pixels_do_not_count(devkit: MakeDevkit) -> None:
    root, quiet = devkit(train=3, val=2), Console(quiet=True)
    all_pixels = tiny_run(root, iterations=1).run(quiet)
    for name in ("000003", "000004"):
        file = root / f"VOC2007/SegmentationClass/{name}.png"
        labels = np.array(Image.open(file))
        labels[labels != 0] = 255
        Image.fromarray(labels).save(file)
    ignored = tiny_run(root, iterations=1).run(quiet)
    assert all_pixels.metrics["pixel_accuracy"] < 100 and ignored.metrics["pixel_accuracy"] == 100


def test_user_errors_are_explained(devkit: MakeDevkit) -> None:
    root, quiet = devkit(train=2, val=2), Console(quiet=True)
    with pytest.raises(UserError, match="not a plain chain of layers"):
        tiny_run(root, weights="random:resnet18").run(quiet)
    with pytest.raises(UserError, match="no image of VOC2007 train can be used: 2 because the mask is missing"):
        tiny_run(root, masks="SegmentationClassAug").run(quiet)
    assert find_evaluation("voc-segmentation") is VocSegmentation and VocSegmentation.quick().preset == "quick"


# ---- FCN-32s


def build_fcn(name: str) -> FCN32s:
    return FCN32s(fold_batch_norm(build_backbone(name).for_evaluation()), 16, 0.05).eval()


def test_caffenet_has_the_geometry_of_fcn() -> None:
    network = build_fcn("caffenet")
    assert network.layers[0].padding == (100, 100)
    assert network.geometry == Geometry(32, 31 - 18), "63 x 63 deconvolution, cropped by 18"


def test_interpolation_equals_the_deconvolution_and_crop_of_fcn() -> None:
    scores = torch.randn(3, 7, 9)
    line = 1 - (torch.arange(63) - 31).abs() / 32
    weight = (line[:, None] * line[None]).expand(3, 1, 63, 63)
    whole = F.conv_transpose2d(scores[None], weight, stride=32, groups=3)[0]
    height, width = 180, 250
    expected = whole[:, 18 : 18 + height, 18 : 18 + width]
    grid = Geometry(32, 13)
    interpolated = interpolation_matrix(grid, 7, height) @ scores @ interpolation_matrix(grid, 9, width).T
    torch.testing.assert_close(interpolated, expected)


@pytest.mark.parametrize("name", ["caffenet", "alexnet", "tiny", "caffenet-lrn"])
def test_every_pixel_of_any_image_is_scored(name: str) -> None:
    network = build_fcn(name)
    stride = network.geometry.stride
    for side in range(60, 60 + 2 * stride, 5):
        with torch.no_grad():
            cells = network.head(network.layers(torch.zeros(1, 3, side, 64))).shape[2]
        assert (interpolation_matrix(network.geometry, cells, side).sum(dim=1) > 0).all()


def test_output_has_the_size_of_the_image() -> None:
    for height, width in ((75, 101), (40, 64)):
        image = torch.randint(0, 255, (height, width, 3), dtype=torch.uint8)
        assert build_fcn("tiny")(image).shape == (len(LABEL_NAMES), height, width)


def test_a_change_in_the_image_changes_the_scores_there() -> None:
    network = build_fcn("tiny")
    nn.init.normal_(network.head[-1].weight)
    nn.init.normal_(network.head[0].weight, std=0.1)
    image = torch.randint(90, 160, (160, 160, 3), dtype=torch.uint8)
    changed = image.clone()
    changed[96:112, 32:48] = changed[96:112, 32:48].flip(0)
    with torch.no_grad():
        change = (network(image) - network(changed)).abs().sum(dim=0)
    rows, columns = torch.arange(160.0), torch.arange(160.0)
    centre = (
        float((change.sum(dim=1) * rows).sum() / change.sum()),
        float((change.sum(dim=0) * columns).sum() / change.sum()),
    )
    assert centre == pytest.approx((103.5, 39.5), abs=8)
