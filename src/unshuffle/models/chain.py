"""Backbones that are a plain chain of layers, for tasks that change a backbone's padding or leave its last pooling out."""

import copy
from collections.abc import Iterable
from typing import NamedTuple

from torch import fx, nn

from unshuffle.errors import UserError
from unshuffle.models.registry import Backbone


class Geometry(NamedTuple):
    """Where the cells of a map lie in the image."""

    stride: int
    """Pixels from one cell to the next."""
    centre: float
    """The pixel at the centre of what the first cell sees."""


def chain_of(backbone: Backbone) -> nn.Sequential:
    """The layers of a backbone one after another, each its own copy; only backbones without branches have this form."""
    try:
        traced = fx.symbolic_trace(backbone)
    except Exception:  # tracing runs the backbone's own code, which may fail in any way
        raise _no_chain(backbone) from None
    placeholder, *nodes, output = traced.graph.nodes
    layers: list[nn.Module] = []
    before = placeholder
    for node in nodes:
        if node.op != "call_module" or node.args != (before,) or node.kwargs:
            raise _no_chain(backbone)
        layers.append(copy.deepcopy(traced.get_submodule(str(node.target))))
        before = node
    if output.args != (before,):
        raise _no_chain(backbone)
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


def _no_chain(backbone: Backbone) -> UserError:
    name = backbone.architecture or type(backbone).__name__
    return UserError(
        f"{name} is no plain chain of layers, whose padding this task must change: "
        "detection and segmentation are for backbones such as caffenet, alexnet and tiny"
    )


def first_convolution(layers: nn.Sequential) -> nn.Conv2d:
    """Conv1."""
    return next(layer for layer in layers if isinstance(layer, nn.Conv2d))


def geometry(layers: Iterable[nn.Module]) -> Geometry:
    """Stride of a chain, and where its first cell looks."""
    stride, centre = 1, 0.0
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            centre += stride * ((side_of(layer.kernel_size) - 1) / 2 - side_of(layer.padding))
            stride *= side_of(layer.stride)
    return Geometry(stride, centre)


def side_of(value: int | str | tuple[int, ...]) -> int:
    """A layer's setting, which is the same for both sides of an image."""
    assert not isinstance(value, str)
    if isinstance(value, int):
        return value
    assert len(set(value)) == 1
    return value[0]
