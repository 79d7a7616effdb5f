import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.errors import UserError
from unshuffle.models import BACKBONES, Backbone, build_backbone, register_backbone
from unshuffle.models.registry import IMAGENET, PER_IMAGE, Normalisation, backbone_features

CROP = {"alexnet": 75, "caffenet": 75, "caffenet-lrn": 75}
"""Crop size of the backbones for which 24 pixels are too few."""


def crop_size(name: str) -> int:
    return CROP.get(name, 24)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_output_maps_have_the_stated_channels(name: str) -> None:
    backbone = build_backbone(name).eval()
    side = crop_size(name)
    with torch.no_grad():
        maps = backbone(torch.randn(2, 3, side, side))
    assert maps.ndim == 4 and maps.shape[:2] == (2, backbone.channels)
    assert maps.isfinite().all() and not torch.equal(maps[0], maps[1])
    assert backbone_features(backbone, side) == maps[0].numel()


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_accepts_its_evaluation_size(name: str) -> None:
    backbone = build_backbone(name).for_evaluation()
    assert not backbone.training
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, backbone.eval_size, backbone.eval_size))
    assert maps.shape[:2] == (1, backbone.channels)


STAGES = {
    "alexnet": {"conv1": (64, 55), "conv2": (192, 27), "conv3": (384, 13), "conv4": (256, 13), "conv5": (256, 13)},
    "caffenet": {"conv1": (96, 55), "conv2": (256, 27), "conv3": (384, 13), "conv4": (384, 13), "conv5": (256, 13)},
    "tiny": {"conv1": (32, 48), "conv2": (48, 48), "conv3": (96, 24), "conv4": (96, 24)},
    "resnet18": {"layer1": (64, 56), "layer2": (128, 28), "layer3": (256, 14), "layer4": (512, 7)},
}
STAGES["caffenet-lrn"] = STAGES["caffenet"]


@pytest.mark.parametrize("name", sorted(STAGES))
def test_pooling_the_last_stage_gives_the_output(name: str) -> None:
    backbone = build_backbone(name).for_evaluation()
    images = torch.randn(1, 3, backbone.eval_size, backbone.eval_size)
    with torch.no_grad():
        stages, maps = backbone.stages(images), backbone(images)
    assert {key: (value.shape[1], value.shape[2]) for key, value in stages.items()} == STAGES[name]
    assert all(float(value.min()) == 0 for value in stages.values()), "after the ReLU"
    last = next(reversed(stages.values()))
    pooled = last.mean(dim=(2, 3), keepdim=True) if name == "resnet18" else F.max_pool2d(last, 2 + (name != "tiny"), 2)
    torch.testing.assert_close(pooled, maps)


def test_a_backbone_without_stages_has_pool5_only() -> None:
    backbone, images = Mean(), torch.randn(2, 3, 8, 8)
    assert list(backbone.stages(images)) == ["pool5"] and torch.equal(
        backbone.stages(images)["pool5"], backbone(images)
    )


@pytest.mark.parametrize("name", ["alexnet", "caffenet", "caffenet-lrn", "resnet18", "tiny"])
def test_every_weight_gets_a_gradient(name: str) -> None:
    backbone = build_backbone(name)
    backbone(torch.randn(2, 3, crop_size(name), crop_size(name))).square().sum().backward()
    assert all(weight.grad is not None for weight in backbone.parameters())


def test_measuring_the_features_leaves_the_backbone_unchanged() -> None:
    backbone = build_backbone("tiny").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    backbone_features(backbone, 24)
    assert backbone.training
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def assert_size(images: Tensor) -> Tensor:
    raise AssertionError("Input height (9) doesn't match model (224).\nmore about it")


def test_an_unsuitable_input_size_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^--size 20 does not suit this backbone: \S.*$"):
        backbone_features(build_backbone("caffenet"), 20, "--size")
    backbone = build_backbone("tiny")
    monkeypatch.setattr(backbone, "forward", assert_size)  # as timm does
    with pytest.raises(UserError, match=r"^size 9 does not suit this backbone: Input .* \(224\)\.$"):
        backbone_features(backbone, 9)


def test_two_builds_have_different_weights() -> None:
    first, second = (next(build_backbone("tiny").parameters()) for _ in range(2))
    assert not torch.equal(first, second)


def test_an_unknown_name_lists_the_backbones() -> None:
    with pytest.raises(
        UserError,
        match=r"no backbone 'cafenet' \(did you mean caffenet\?\); choose from alexnet, .*torchvision:NAME",
    ):
        build_backbone("cafenet")


class Mean(Backbone):
    """One layer on the mean colour."""

    channels = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 1)

    def forward(self, images: Tensor) -> Tensor:
        mapped: Tensor = self.layer(images.mean(dim=(2, 3), keepdim=True))
        return mapped


def test_the_decorator_registers_a_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.models.registry.BACKBONES", registry := dict(BACKBONES))
    assert register_backbone("mean")(Mean) is Mean
    assert registry["mean"] is Mean and "mean" not in BACKBONES
    backbone = build_backbone("mean")
    assert isinstance(backbone, Mean) and backbone_features(backbone, 9) == 5
    with pytest.raises(AssertionError, match="twice"):
        register_backbone("mean")(Mean)


def test_per_image_normalisation_against_numpy() -> None:
    images = torch.rand(3, 3, 8, 9)
    array = images.double().numpy()
    expected = (array - array.mean(axis=(2, 3), keepdims=True)) / array.std(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(PER_IMAGE(images), expected, atol=1e-5)


def test_per_channel_normalisation_against_numpy() -> None:
    images = torch.rand(2, 3, 4, 5)
    normalised = Normalisation((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(images)
    for channel, (mean, std) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        np.testing.assert_allclose(normalised[:, channel], (images[:, channel] - mean) / std, rtol=1e-6)


@pytest.mark.parametrize("normalisation", [PER_IMAGE, IMAGENET, Normalisation((0.5, 0.0, 1e-05), (1.0, 2.5, 3.0))])
def test_parsing_returns_what_was_written(normalisation: Normalisation) -> None:
    assert Normalisation.from_json(normalisation.to_json()) == normalisation


def test_an_unknown_normalisation_raises() -> None:
    with pytest.raises(UserError, match="states is unknown: by hand"):
        Normalisation.from_json("by hand")


def test_a_backbone_normalises_as_its_weights_need() -> None:
    backbone, images = build_backbone("tiny"), torch.rand(2, 3, 8, 8)
    assert torch.equal(backbone.normalise(images), PER_IMAGE(images))
    backbone.normalisation = IMAGENET
    assert torch.equal(backbone.normalise(images), IMAGENET(images))
