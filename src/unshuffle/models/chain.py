"""Backbones as a chain of layers, for evaluations that change the padding or omit the last pooling."""

import copy
from collections.abc import Iterable
from itertools import pairwise
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


class _Tracer(fx.Tracer):
    """A tracer that takes every convolution as one layer, those of our own classes too."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Conv2d) or super().is_leaf_module(module, name)


def chain_of(backbone: Backbone) -> nn.Sequential:
    """Return copies of a backbone's layers one after another; only backbones without branches have this form."""
    error = UserError(
        f"{backbone.architecture or type(backbone).__name__} is not a plain chain of layers, so its padding cannot be "
        "changed: use detection and segmentation with backbones such as caffenet, alexnet and tiny"
    )
    try:
        nodes = list(_Tracer().trace(backbone).nodes)
    except Exception:  # tracing runs the backbone's own code, which may raise anything
        raise error from None
    are_linked = all(node.args == (previous,) and not node.kwargs for previous, node in pairwise(nodes))
    calls = nodes[1:-1]  # without input and output
    if not are_linked or any(node.op != "call_module" for node in calls):
        raise error
    layers = [copy.deepcopy(backbone.get_submodule(str(node.target))) for node in calls]
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


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
