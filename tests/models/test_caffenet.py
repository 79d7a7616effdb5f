import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unshuffle.config import paper
from unshuffle.models import build_backbone
from unshuffle.models.heads import ConcatHead, LstmHead, build_head
from unshuffle.models.registry import backbone_features

# name, parameters of the convolution, groups, map side at 75 px (stride 2), map side at 227 px (stride 4)
LAYERS = [
    ("conv1", 34_944, 1, 33, 55),
    ("conv2", 307_456, 2, 16, 27),
    ("conv3", 885_120, 1, 7, 13),
    ("conv4", 663_936, 2, 7, 13),
    ("conv5", 442_624, 2, 7, 13),
]
CHANNELS = {"conv1": 96, "conv2": 256, "conv3": 384, "conv4": 384, "conv5": 256}


def count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(("name", "parameters", "groups"), [layer[:3] for layer in LAYERS])
def test_convolutions_match_the_layer_table(name: str, parameters: int, groups: int) -> None:
    block = build_backbone("caffenet").get_submodule(name)
    convolution, batch_norm, activation = block.children()
    assert isinstance(convolution, nn.Conv2d)
    assert (count(convolution), convolution.groups) == (parameters, groups)
    assert isinstance(batch_norm, nn.BatchNorm2d) and isinstance(activation, nn.ReLU)


@pytest.mark.parametrize(("size", "evaluation", "pool5"), [(75, False, 3), (227, True, 6)])
def test_map_shapes_match_the_layer_table(size: int, evaluation: bool, pool5: int) -> None:
    backbone = build_backbone("caffenet").eval()
    if evaluation:
        backbone = backbone.for_evaluation()
    shapes = {}
    for name in CHANNELS:
        backbone.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: shapes.__setitem__(name, tuple(output.shape))
        )
    with torch.no_grad():
        output = backbone(torch.randn(2, 3, size, size))
    sides = {name: at_227 if evaluation else at_75 for name, _, _, at_75, at_227 in LAYERS}
    assert shapes == {name: (2, CHANNELS[name], side, side) for name, side in sides.items()}
    assert output.shape == (2, 256, pool5, pool5)
    assert output.flatten(1).shape[1] == (9216 if evaluation else 2304)


def test_the_evaluation_form_keeps_the_weights() -> None:
    backbone = build_backbone("caffenet").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    evaluated = backbone.for_evaluation()
    assert not evaluated.training
    assert all(torch.equal(value, before[key]) for key, value in evaluated.state_dict().items())


@pytest.mark.parametrize("name", ["caffenet", "caffenet-lrn"])
@pytest.mark.parametrize(("size", "stride"), [(75, 2), (138, 2), (139, 4), (192, 4), (227, 4)])
def test_whole_images_pass_conv1_with_the_stride_of_evaluations(name: str, size: int, stride: int) -> None:
    backbone, images = build_backbone(name).eval(), torch.randn(2, 3, size, size)
    (conv1,) = [module for module in backbone.modules() if isinstance(module, nn.Conv2d) and module.in_channels == 3]
    with torch.no_grad():
        torch.testing.assert_close(conv1(images), F.conv2d(images, conv1.weight, conv1.bias, stride=stride))
        in_training = backbone(images)
        assert torch.equal(backbone.for_evaluation()(images), in_training) == (stride == 4)


def test_heads_of_the_paper_preset() -> None:
    config = paper()
    features = backbone_features(build_backbone("caffenet"), config.spatial.crop_size)
    assert features == 2304
    spatial = build_head(features, config.spatial.parts, config.spatial.permutations, config.spatial.head)
    temporal = build_head(features, config.temporal.parts, config.temporal.permutations, config.temporal.head)
    assert isinstance(spatial, ConcatHead) and isinstance(temporal, LstmHead)
    assert count(spatial.fc6) == 2304 * 1024 + 1024
    assert count(spatial.fc7) == 9 * 1024 * 4096 + 4096
    assert count(spatial.fc8) == 4096 * 1000 + 1000
    assert count(spatial) == count(spatial.fc6) + count(spatial.fc7) + count(spatial.fc8)
    assert count(temporal.fc6) == 2304 * 512 + 512
    assert count(temporal.lstm) == 4 * (512 * 256 + 256 * 256 + 2 * 256)  # torch has two biases per gate
    assert count(temporal.fc8) == 256 * 1000 + 1000
    assert count(temporal) == count(temporal.fc6) + count(temporal.lstm) + count(temporal.fc8)


def test_tiny_has_three_by_three_features_at_24_pixels() -> None:
    with torch.no_grad():
        assert build_backbone("tiny")(torch.randn(2, 3, 24, 24)).shape == (2, 96, 3, 3)


def slow_lrn(maps: np.ndarray) -> np.ndarray:
    """Caffe's formula over 5 channels, with α / 5 times the sum of squares."""
    result = np.empty_like(maps)
    for channel in range(maps.shape[1]):
        window = maps[:, max(0, channel - 2) : channel + 3]
        result[:, channel] = maps[:, channel] / (1 + 1e-4 / 5 * (window**2).sum(axis=1)) ** 0.75
    return result


def test_caffenet_lrn_against_a_plain_reference() -> None:
    backbone = build_backbone("caffenet-lrn").eval()
    weights = backbone.state_dict()
    with torch.no_grad():
        images = 300 * torch.randn(1, 3, 75, 75)  # large enough for the response normalisation to matter
        maps = images
        for number, (stride, padding, groups) in enumerate([(2, 0, 1), (1, 2, 2), (1, 1, 1), (1, 1, 2), (1, 1, 2)], 1):
            weight, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            maps = F.conv2d(maps, weight, bias, stride, padding, groups=groups).relu()
            if number in (1, 2, 5):
                maps = F.max_pool2d(maps, 3, 2)
            if number in (1, 2):
                maps = torch.from_numpy(slow_lrn(maps.double().numpy())).float()
        actual = backbone(images)
    assert not torch.allclose(actual, maps.new_zeros(()))
    torch.testing.assert_close(actual, maps, rtol=1e-4, atol=1e-4 * float(maps.max()))


def test_caffenet_lrn_features_in_training_and_evaluation() -> None:
    backbone = build_backbone("caffenet-lrn")
    assert backbone_features(backbone, 75) == 2304
    assert backbone_features(backbone.for_evaluation(), 227) == 9216
