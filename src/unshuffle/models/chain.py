"""Backbones as a chain of layers, for evaluations that change the padding or omit the last pooling."""

import copy
from collections.abc import Iterable
from typing import NamedTuple

from torch import fx, nn

from unshuffle.errors import UserError
from unshuffle.models.registry import Backbone


class Geometry(NamedTuple):
    """The position of a map's cells in the image."""

    stride: int
    """Pixels from one cell to the next."""
    centre: float
    """Pixel coordinate of the centre of the first cell's receptive field."""


def chain_of(backbone: Backbone) -> nn.Sequential:
    """Return copies of a backbone's layers one after another; only backbones without branches have this form."""
    try:
        traced = fx.symbolic_trace(backbone)
    except Exception:  # tracing runs the backbone's own code, which may raise anything
        raise _not_a_chain(backbone) from None
    placeholder, *nodes, output = traced.graph.nodes
    layers: list[nn.Module] = []
    previous = placeholder
    for node in nodes:
        if node.op != "call_module" or node.args != (previous,) or node.kwargs:
            raise _not_a_chain(backbone)
        layers.append(copy.deepcopy(traced.get_submodule(str(node.target))))
        previous = node
    if output.args != (previous,):
        raise _not_a_chain(backbone)
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


def _not_a_chain(backbone: Backbone) -> UserError:
    name = backbone.architecture or type(backbone).__name__
    return UserError(
        f"{name} is not a plain chain of layers, so its padding cannot be changed: "
        "use detection and segmentation with backbones such as caffenet, alexnet and tiny"
    )


def first_convolution(layers: nn.Sequential) -> nn.Conv2d:
    """Return the first convolution of a chain."""
    return next(layer for layer in layers if isinstance(layer, nn.Conv2d))


def geometry(layers: Iterable[nn.Module]) -> Geometry:
    """Return the stride of a chain and the centre of its first cell."""
    stride, centre = 1, 0.0
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            centre += stride * ((side_of(layer.kernel_size) - 1) / 2 - side_of(layer.padding))
            stride *= side_of(layer.stride)
    return Geometry(stride, centre)


def side_of(value: int | str | tuple[int, ...]) -> int:
    """Return a layer's kernel size, stride or padding, which must be the same for both axes."""
    assert not isinstance(value, str)
    if isinstance(value, int):
        return value
    assert len(set(value)) == 1
    return value[0]
