import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unshuffle.evaluation.fcn import LABELS, Fcn32, interpolation
from unshuffle.models import build_backbone
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.chain import Geometry


def build(name: str) -> Fcn32:
    return Fcn32(fold_batch_norm(build_backbone(name).for_evaluation()), 16, 0.05).eval()


def test_caffenet_has_fcns_geometry() -> None:
    network = build("caffenet")
    assert network.layers[0].padding == (100, 100)
    assert network.geometry == Geometry(32, 31 - 18), "63 x 63 deconvolution, cropped by 18"


def test_interpolation_is_fcns_deconvolution_and_crop() -> None:
    scores = torch.randn(3, 7, 9)
    line = 1 - (torch.arange(63) - 31).abs() / 32
    weight = (line[:, None] * line[None]).expand(3, 1, 63, 63)
    whole = F.conv_transpose2d(scores[None], weight, stride=32, groups=3)[0]
    height, width = 180, 250
    expected = whole[:, 18 : 18 + height, 18 : 18 + width]
    where = Geometry(32, 13)
    ours = interpolation(where, 7, height) @ scores @ interpolation(where, 9, width).T
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["caffenet", "alexnet", "tiny", "caffenet-lrn"])
def test_every_pixel_of_any_image_is_scored(name: str) -> None:
    network = build(name)
    stride = network.geometry.stride
    for side in range(60, 60 + 2 * stride, 5):
        with torch.no_grad():
            cells = network.head(network.layers(torch.zeros(1, 3, side, 64))).shape[2]
        assert (interpolation(network.geometry, cells, side).sum(dim=1) > 0).all()


def test_output_has_the_size_of_the_image() -> None:
    for height, width in ((75, 101), (40, 64)):
        image = torch.randint(0, 255, (height, width, 3), dtype=torch.uint8)
        assert build("tiny")(image).shape == (LABELS, height, width)


def test_a_change_in_the_image_changes_the_scores_there() -> None:
    network = build("tiny")
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
