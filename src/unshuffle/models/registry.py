"""The registry of backbones: a decorator registers a backbone under a name that then works everywhere.

A backbone also states how its images are normalised, and the file of its weights records it.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from unshuffle.data.crops import normalise
from unshuffle.data.media import explain
from unshuffle.errors import UserError
from unshuffle.wording import did_you_mean


@dataclass(frozen=True)
class Normalisation:
    """The mean to subtract from each channel and the std to divide it by; if empty, those of each image itself."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, images: Tensor) -> Tensor:
        """Return (N, 3, H, W) images in [0, 1] normalised."""
        if not self.mean:
            return normalise(images)
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def to_json(self) -> str:
        """Return the metadata of a weights file."""
        return json.dumps({"mean": self.mean, "std": self.std})

    @classmethod
    def from_json(cls, text: str) -> "Normalisation":
        """Return the normalisation that a weights file states."""
        try:
            return cls(**{name: tuple(map(float, values)) for name, values in json.loads(text).items()})
        except (ValueError, TypeError, AttributeError):
            raise UserError(f"the normalisation that the weights file states is unknown: {text}") from None


SIZE_STEP = 16
"""Sizes that are tried for a network without patches are multiples of it, as its maps are halved several times."""
PER_IMAGE = Normalisation()
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Backbone(nn.Module):
    """A backbone: (N, 3, H, W) images to the (N, channels, h, w) map that the paper calls pool5."""

    architecture: str = ""
    """Name that `build_backbone` takes."""
    metadata: Mapping[str, str] = MappingProxyType({})
    """The metadata of its weights file."""
    channels: int
    """Channels of the map pool5."""
    eval_size: int = 227
    """Default input size at evaluation, in pixels."""
    size_multiple: int | None = None
    """Input sides must be multiples of this; None: any size."""
    normalisation: Normalisation = PER_IMAGE
    """The normalisation its weights were trained with; a new backbone is trained on unshuffle's own crops."""
    published_normalisation: Normalisation = PER_IMAGE
    """The normalisation of weights files by others, which do not state it."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the pool5 map."""
        raise NotImplementedError

    def normalise(self, images: Tensor) -> Tensor:
        """Return (N, 3, H, W) images in [0, 1] normalised for these weights."""
        return self.normalisation(images)

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """Return the intermediate maps by name, from first to last, each after its ReLU and before its pooling."""
        return {"pool5": self(images)}

    def training_pass(self, images: Tensor) -> Tensor:
        """Return the pool5 map in training; a backbone may override it with a faster equivalent for some device."""
        maps: Tensor = self(images)
        return maps

    def for_evaluation(self) -> "Backbone":
        """Switch to the form that evaluations use and return it; by default the evaluation mode of torch."""
        return self.eval()

    def forms(self) -> dict[str, nn.Module]:
        """Return the same layers, nested as in the files of other programs; `torchvision` is the form to export."""
        return {"unshuffle": self, "torchvision": self}


class SequentialBackbone(Backbone):
    """A backbone of layers one after another; `conv1`, `conv2` and so on are the maps after each ReLU."""

    def layers(self) -> list[nn.Module]:
        """Return the layers in the order of the forward pass, or blocks of layers that end with a ReLU."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Return the output of the last layer."""
        for layer in self.layers():
            images = layer(images)
        return images

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps after each ReLU."""
        stages: dict[str, Tensor] = {}
        for layer in self.layers():
            images = layer(images)
            if isinstance(layer, nn.ReLU | nn.Sequential):
                stages[f"conv{len(stages) + 1}"] = images
        return stages

    def forms(self) -> dict[str, nn.Module]:
        """Add the form of one sequence `features`, as torchvision writes a plain network; AlexNet, if it is folded."""
        flat: list[nn.Module] = []
        for layer in self.layers():
            flat += layer if isinstance(layer, nn.Sequential) else [layer]
        features = [layer for layer in flat if not isinstance(layer, nn.Identity)]  # left by folding
        return {"unshuffle": self, "torchvision": nn.Sequential(OrderedDict(features=nn.Sequential(*features)))}


@torch.no_grad()
def backbone_features(backbone: Backbone, side: int, option: str = "size") -> int:
    """Return the length of the backbone's flattened output for one square image.

    `option` names the setting that `side` comes from, for the error message.
    """
    was_training = backbone.training
    backbone.eval()  # this pass must not change BN's running statistics
    try:
        features: Tensor = backbone(torch.zeros(1, 3, side, side, device=next(backbone.parameters()).device))
    except (RuntimeError, AssertionError) as error:  # timm asserts
        problem = explain(error).splitlines()[0]
        raise UserError(f"{option} {side} does not suit this backbone: {problem}") from None
    finally:
        backbone.train(was_training)
    return int(features.numel())


def fitting_crop_size(backbone: Backbone, side: int) -> int:
    """Return the crop size to use for `side`: itself, the next larger one that suits the network, or its published one.

    Networks of patches take whole patches only, deep networks need a smallest size, and some have a fixed one.
    """
    if backbone.size_multiple is None:
        return side
    first = _next_multiple(side, backbone.size_multiple)
    step = backbone.size_multiple if backbone.size_multiple > 1 else SIZE_STEP
    candidates: list[int] = [first, *range(_next_multiple(first, step), backbone.eval_size, step), backbone.eval_size]
    for candidate in candidates:
        with suppress(UserError):
            backbone_features(backbone, candidate)
            return candidate
    return side  # which gives the error message of the network


def _next_multiple(side: int, multiple: int) -> int:
    return -(-side // multiple) * multiple


BACKBONES: dict[str, Callable[[], Backbone]] = {}
FAMILIES: dict[str, Callable[[str], Backbone]] = {}
"""Classes or functions that build backbones by their own names, as `family:NAME`."""


def register_backbone(name: str) -> Callable[[Callable[[], Backbone]], Callable[[], Backbone]]:
    """Register a backbone class, or a function that builds one, under a name."""

    def register(build: Callable[[], Backbone]) -> Callable[[], Backbone]:
        assert name not in BACKBONES, f"backbone {name} is registered twice"
        BACKBONES[name] = build
        return build

    return register


def build_backbone(name: str) -> Backbone:
    """Return a new backbone with random weights."""
    family, _, member = name.partition(":")
    if family in FAMILIES and member:
        backbone = FAMILIES[family](member)
    elif name in BACKBONES:
        backbone = BACKBONES[name]()
    else:
        known = [*sorted(BACKBONES), *(f"{family}:NAME" for family in sorted(FAMILIES))]
        hint = _did_you_mean_member(name.lower()) or did_you_mean(name.lower(), BACKBONES)
        raise UserError(f"there is no backbone '{name}'{hint}; choose from {', '.join(known)}")
    backbone.architecture = name
    return backbone


def _did_you_mean_member(name: str) -> str:
    """Return ` (did you mean torchvision:NAME?)` if a family has a network of this name; otherwise nothing."""
    for family, build in FAMILIES.items():
        with suppress(UserError), torch.device("meta"):
            build(name)
            return f" (did you mean {family}:{name}?)"
    return ""
