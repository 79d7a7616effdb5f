import pytest
import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.chain import chain_of, geometry


@pytest.mark.parametrize("name", ["caffenet", "tiny"])
def test_a_chain_computes_the_same_as_its_backbone(name: str) -> None:
    backbone = build_backbone(name).for_evaluation()
    images = torch.randn(1, 3, backbone.eval_size, backbone.eval_size)
    with torch.no_grad():
        assert torch.equal(chain_of(backbone)(images), backbone(images))


def test_a_chain_copies_every_layer() -> None:
    backbone = build_backbone("caffenet")
    pools = [layer for layer in chain_of(backbone) if isinstance(layer, nn.MaxPool2d)]
    assert len({id(pool) for pool in pools}) == 3, "the backbone uses one pooling layer three times"
    next(chain_of(backbone).parameters()).data.zero_()
    assert next(backbone.parameters()).any()


class Branching(Backbone):
    channels = 3

    def forward(self, images: Tensor) -> Tensor:
        return images + images


@pytest.mark.parametrize("backbone", [Branching(), build_backbone("resnet18")])
def test_a_backbone_with_branches_raises(backbone: Backbone) -> None:
    with pytest.raises(UserError, match="is not a plain chain of layers"):
        chain_of(backbone)


@pytest.mark.parametrize("name", ["caffenet", "tiny"])
def test_geometry_against_the_receptive_field_of_a_gradient(name: str) -> None:
    layers = chain_of(build_backbone(name).for_evaluation()).eval()
    for layer in layers:
        if isinstance(layer, nn.Conv2d):  # plain sums, so that every pixel has a gradient
            nn.init.constant_(layer.weight, 1.0)
    smooth = [
        nn.AvgPool2d(layer.kernel_size, layer.stride) if isinstance(layer, nn.MaxPool2d) else layer for layer in layers
    ]
    side = 64 + 8 * geometry(layers).stride
    for cell in (3, 4):
        images = torch.ones(1, 3, side, side, requires_grad=True)
        nn.Sequential(*smooth)(images)[0, 0, cell, cell].backward()
        assert images.grad is not None
        receptive_field = torch.nonzero(images.grad[0, 0].abs().sum(dim=0))[:, 0]
        centre = float(receptive_field.min() + receptive_field.max()) / 2
        assert centre == geometry(layers).stride * cell + geometry(layers).centre
