import pytest
import torch
from torch import nn

from unshuffle.config import paper
from unshuffle.models import build_backbone
from unshuffle.models.heads import ConcatHead, LstmHead, build_head
from unshuffle.models.ordering import backbone_features

# Name, parameters of the convolution, groups, side at 75 px (stride 2), side at 227 px (stride 4)
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
def test_the_convolutions_of_the_layer_table(name: str, parameters: int, groups: int) -> None:
    block = build_backbone("caffenet").get_submodule(name)
    convolution, batch_norm, activation = block.children()
    assert isinstance(convolution, nn.Conv2d)
    assert (count(convolution), convolution.groups) == (parameters, groups)
    assert isinstance(batch_norm, nn.BatchNorm2d) and isinstance(activation, nn.ReLU)


@pytest.mark.parametrize(("size", "evaluation", "pool5"), [(75, False, 3), (227, True, 6)])
def test_the_maps_of_each_layer(size: int, evaluation: bool, pool5: int) -> None:
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


def test_the_form_for_evaluation_keeps_the_weights() -> None:
    backbone = build_backbone("caffenet").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    evaluated = backbone.for_evaluation()
    assert not evaluated.training
    assert all(torch.equal(value, before[key]) for key, value in evaluated.state_dict().items())


def test_the_heads_of_the_paper() -> None:
    config = paper()
    features = backbone_features(build_backbone("caffenet"), config.shuffle.crop_size)
    assert features == 2304
    spatial = build_head(features, config.shuffle.tiles, config.permutations.spatial, config.model.spatial)
    temporal = build_head(features, config.shuffle.frames, config.permutations.temporal, config.model.temporal)
    assert isinstance(spatial, ConcatHead) and isinstance(temporal, LstmHead)
    assert count(spatial.fc6) == 2304 * 1024 + 1024
    assert count(spatial.fc7) == 9 * 1024 * 4096 + 4096
    assert count(spatial.fc8) == 4096 * 1000 + 1000
    assert count(spatial) == count(spatial.fc6) + count(spatial.fc7) + count(spatial.fc8)
    assert count(temporal.fc6) == 2304 * 512 + 512
    assert count(temporal.lstm) == 4 * (512 * 256 + 256 * 256 + 2 * 256)  # torch has two biases a gate
    assert count(temporal.fc8) == 256 * 1000 + 1000
    assert count(temporal) == count(temporal.fc6) + count(temporal.lstm) + count(temporal.fc8)


def test_tiny_has_three_by_three_features_at_24_pixels() -> None:
    with torch.no_grad():
        assert build_backbone("tiny")(torch.randn(2, 3, 24, 24)).shape == (2, 96, 3, 3)
