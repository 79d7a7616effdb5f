"""Backbones of torchvision and timm, and the pretrained weights that these libraries have cached on this machine.

Nothing is ever downloaded.
"""

import importlib.util
import json
import re
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models.registry import (
    BACKBONES,
    FAMILIES,
    IMAGENET,
    Backbone,
    Normalisation,
    SequentialBackbone,
    build_backbone,
    register_backbone,
)
from unshuffle.wording import did_you_mean

_RESIDUAL = ("resnet", "resnext", "wide_resnet")


@register_backbone("alexnet")
class AlexNet(SequentialBackbone):
    """torchvision's AlexNet up to its last pooling, under its names (`features.0.weight`): 9216 features at 224 px."""

    channels = 256
    eval_size = 224
    published_normalisation = IMAGENET

    def __init__(self) -> None:
        super().__init__()
        # built here, since torchvision's class would first initialise the 58 million weights of its classifier
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )

    def layers(self) -> list[nn.Module]:
        """Return conv1 to pool5."""
        return list(self.features)


class ResNet(Backbone):
    """A torchvision ResNet without its classifier; the global average is its pool5, (N, channels, 1, 1)."""

    eval_size = 224
    published_normalisation = IMAGENET

    def __init__(self, name: str) -> None:
        super().__init__()
        import torchvision  # slow to import, and only these backbones need it

        network = torchvision.models.get_model(name, weights=None)
        self.channels = network.fc.in_features
        network.fc = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the average over the last map."""
        average: Tensor = self.network.avgpool(self.stages(images)["layer4"])
        return average

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps `layer1` to `layer4`."""
        network, stages = self.network, {}
        maps = network.maxpool(network.relu(network.bn1(network.conv1(images))))
        for name in ("layer1", "layer2", "layer3", "layer4"):
            maps = stages[name] = network.get_submodule(name)(maps)
        return stages

    def forms(self) -> dict[str, nn.Module]:
        """Add the form under torchvision's own names."""
        return {"unshuffle": self, "torchvision": self.network}


register_backbone("resnet18")(partial(ResNet, "resnet18"))
register_backbone("resnet50")(partial(ResNet, "resnet50"))


def torchvision_backbone(name: str) -> Backbone:
    """Return torchvision's AlexNet or one of its residual networks."""
    import torchvision

    if name == "alexnet":
        return AlexNet()
    if name.startswith(_RESIDUAL) and name in torchvision.models.list_models(module=torchvision.models):
        return ResNet(name)
    hint = "use torchvision:alexnet or a ResNet such as torchvision:resnet34"
    raise UserError(f"torchvision has no backbone '{name}' that is supported; {hint}")


class Timm(Backbone):
    """A timm model without its classifier; the pooled input of the classifier is its pool5, (N, channels, 1, 1).

    Models of patches are built for any input size, with the weights of their published one.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network: Any = _create(name)
        # timm's MetaFormers lack head_hidden_size
        self.channels = getattr(self.network, "head_hidden_size", self.network.num_features)
        published = self.network.pretrained_cfg
        self.eval_size = published["input_size"][-1]
        self.published_normalisation = Normalisation(tuple(published["mean"]), tuple(published["std"]))
        self.size_multiple = _patch_side(self.network)

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features."""
        pooled: Tensor = self.network(images)
        return pooled[:, :, None, None]

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """Return timm's intermediate maps under timm's names, where the model provides them."""
        if not hasattr(self.network, "forward_intermediates"):
            return super().stages(images)
        maps = self.network.forward_intermediates(images, intermediates_only=True)
        return {entry["module"]: stage for entry, stage in zip(self.network.feature_info, maps, strict=True)}

    def forms(self) -> dict[str, nn.Module]:
        """Add the form under timm's own names."""
        return {"unshuffle": self, "torchvision": self.network}


def _create(name: str) -> Any:
    """Return a timm model for any input size, if it has an option for that."""
    timm = _timm()
    if not timm.is_model(name.partition(".")[0]):  # behind the dot are the weights that would be downloaded
        raise UserError(f"timm has no model '{name}'{did_you_mean(name, timm.list_models())}")
    for options in ({"dynamic_img_size": True}, {"strict_img_size": False}, {}):
        with suppress(TypeError):  # most models have neither option, and some versions of Swin only the second one
            try:
                return timm.create_model(name, pretrained=False, num_classes=0, **options)
            except RuntimeError as error:
                raise UserError(f"timm's model '{name}' cannot be built: {error}") from None
    raise UserError(f"timm's model '{name}' cannot be built without a classifier")


def _patch_side(network: Any) -> int:
    """Return the side in pixels of a patch, or of a window of patches where attention has windows; 1 without patches.

    Other sizes would be padded to whole windows, at the cost of whole ones. Patches that overlap fit any size.
    """
    patches = getattr(network, "patch_embed", None)
    projection = getattr(patches, "proj", None)
    if isinstance(projection, nn.Conv2d) and projection.kernel_size != projection.stride:
        return 1
    side = getattr(patches, "patch_size", 1)
    patch = int(side[0] if isinstance(side, tuple) else side)
    if patch == 1:
        return 1
    windows = [getattr(module, "window_size", None) for module in network.modules()]
    return patch * max((window[0] for window in windows if isinstance(window, tuple)), default=1)


FAMILIES.update(torchvision=torchvision_backbone, timm=Timm)


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise UserError("timm:NAME needs timm: pip install 'unshuffle[timm]'") from None
    return timm


# ---- names, and which architectures a file of weights may have


def is_published(name: str) -> bool:
    """Return whether pretrained weights of a network of this name are published by torchvision or timm."""
    family, _, member = name.partition(":")
    if member:
        return family in ("torchvision", "timm")
    return name == "alexnet" or name.startswith(_RESIDUAL)


def full_name(name: str) -> str:
    """Return the name to build an architecture by: `torchvision:resnet34` for `resnet34`, otherwise the name itself."""
    return f"torchvision:{name}" if is_published(name) and ":" not in name and name not in BACKBONES else name


def same_architecture(one: str, other: str) -> bool:
    """Return whether two names mean one architecture, whatever published weights of it timm's names end with."""
    left, right = (name.removeprefix("torchvision:").partition(".")[0] for name in (one, other))
    return left == right


_LIKE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        r"layer1\.0\.conv1\.weight",
        (
            *("torchvision:resnet34", "torchvision:resnet101", "torchvision:resnet152"),
            *("torchvision:wide_resnet50_2", "torchvision:wide_resnet101_2", "torchvision:resnext50_32x4d"),
            *("torchvision:resnext101_32x8d", "torchvision:resnext101_64x4d"),
            *("timm:resnet10t", "timm:resnet14t", "timm:resnet26", "timm:resnet18d", "timm:resnet26d"),
            *("timm:resnet34d", "timm:resnet50d", "timm:resnet101d", "timm:resnet152d", "timm:resnet200d"),
            *("timm:resnet26t", "timm:seresnet50", "timm:seresnext50_32x4d", "timm:seresnext101_32x4d"),
        ),
    ),
    (
        r"(?<!layers\.\d\.)blocks\.0\.attn\.qkv\.weight",
        (
            *(f"timm:vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
            *(f"timm:vit_{size}_patch16_384" for size in ("tiny", "small", "base", "large")),
            *("timm:vit_small_patch32_224", "timm:vit_base_patch32_224", "timm:vit_base_patch32_384"),
            *("timm:vit_small_patch8_224", "timm:vit_base_patch8_224", "timm:vit_base_patch16_clip_224"),
            *(f"timm:deit_{size}_patch16_224" for size in ("tiny", "small", "base")),
            *(f"timm:deit_{size}_distilled_patch16_224" for size in ("tiny", "small", "base")),
            *(f"timm:deit3_{size}_patch16_224" for size in ("small", "base", "large")),
            *(f"timm:vit_{size}_patch14_dinov2" for size in ("small", "base", "large")),
            *(f"timm:vit_{size}_patch14_reg4_dinov2" for size in ("small", "base", "large")),
        ),
    ),
    (
        r"layers\.0\.blocks\.0\.attn\.qkv\.weight",
        (
            *(f"timm:swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")),
            *("timm:swin_base_patch4_window12_384", "timm:swin_large_patch4_window12_384"),
            *(f"timm:swinv2_{size}_window{window}_256" for size in ("tiny", "small", "base") for window in (8, 16)),
        ),
    ),
    (
        r"stages\.0\.blocks\.0\.conv_dw\.weight",
        tuple(
            f"timm:{family}_{size}"
            for family in ("convnext", "convnextv2")
            for size in ("atto", "femto", "pico", "nano", "tiny", "small", "base", "large")
        ),
    ),
    (
        r"conv_stem\.weight",
        (
            *(f"timm:{padding}efficientnet_b{size}" for padding in ("", "tf_") for size in range(6)),
            *("timm:efficientnetv2_rw_s", "timm:tf_efficientnetv2_s", "timm:tf_efficientnetv2_m"),
            *("timm:mobilenetv2_100", "timm:mobilenetv3_small_100", "timm:mobilenetv3_large_100"),
            *("timm:tf_mobilenetv3_small_100", "timm:tf_mobilenetv3_large_100"),
        ),
    ),
    (
        r"s1\.b1\.conv1\.conv\.weight",
        tuple(
            f"timm:regnet{kind}_{size}" for kind in "xy" for size in ("002", "004", "006", "008", "016", "032", "064")
        ),
    ),
    (
        r"denseblock1\.denselayer1\.conv1\.weight",
        ("timm:densenet121", "timm:densenet161", "timm:densenet169", "timm:densenet201"),
    ),
)
"""The commoner architectures by a weight that all of their kind have: no others need be built to recognise a file."""


def candidates(keys: Collection[str], file: Path) -> tuple[list[str], list[str]]:
    """Return the architectures that a file with these keys may have.

    Of the first ones, the first that fits is meant: timm's of the name of the file, the registered ones, torchvision's.
    Of the others, timm's, several may have equal names and shapes, but other normalisation or padding.
    """
    like = [name for pattern, names in _LIKE if any(re.search(pattern, key) for key in keys) for name in names]
    own = [*sorted(BACKBONES), *(name for name in like if name.startswith("torchvision:"))]
    if not _has_timm():
        return own, []
    known = set(_timm().list_models())
    named = _named_after(file, known)
    is_timms = named is not None and not any(same_architecture(name, named.removeprefix("timm:")) for name in own)
    return [named, *own] if named and is_timms else own, [name for name in like if name.removeprefix("timm:") in known]


def _named_after(file: Path, known: Collection[str]) -> str | None:
    """Return the timm model that a file, or its repository in the cache of Hugging Face, is named after."""
    timm = _timm()
    for part in (file.name, *(folder.name.rpartition("--")[2] for folder in file.parents)):
        # vit_base_patch16_224.augreg_in21k, or resnet50_a1_0-14fe96d1.pth: the longest name that it begins with
        words = re.split(r"(?=[._-])", part)
        names = ["".join(words[:end]) for end in range(len(words), 0, -1)]
        if match := next((name for name in names if name in known), None):
            published = [name for name in names if name.startswith(f"{match}.") and timm.is_model_pretrained(name)]
            return f"timm:{published[0] if published else match}"
    return None


def config_beside(file: Path) -> dict[str, str]:
    """Return the metadata in the config.json that timm writes beside weights; nothing without one, or without timm."""
    config = file.with_name("config.json")
    if not config.is_file() or not _has_timm():
        return {}
    try:
        stated = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    name = stated.get("architecture") if isinstance(stated, dict) else None
    if not isinstance(name, str) or not _timm().is_model(name):
        return {}
    published = stated.get("pretrained_cfg")
    if not isinstance(published, dict) or not {"mean", "std"} <= published.keys():
        return {"architecture": f"timm:{name}"}
    normalisation = {key: published[key] for key in ("mean", "std")}
    return {"architecture": f"timm:{name}", "normalisation": json.dumps(normalisation)}


def _has_timm() -> bool:
    return importlib.util.find_spec("timm") is not None


# ---- weights that the libraries have cached


def cached_weights(name: str) -> Path:
    """Return the file in which torchvision or timm has cached the pretrained weights of a model."""
    family, _, member = name.rpartition(":")
    build_backbone(name if family else f"torchvision:{member}")  # raises the error of an unknown name
    file = _timm_file(member) if family == "timm" else _torchvision_file(member)
    if file is None:
        raise UserError(
            f"the pretrained weights of {name} are not on this machine and nothing is downloaded: fetch them with "
            f"{'timm' if family == 'timm' else 'torchvision'}, or use random:{name}"
        )
    return file


def _torchvision_file(name: str) -> Path | None:
    import torchvision

    weights = torchvision.models.get_model_weights(name)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    files = [folder / Path(entry.url).name for entry in (weights.DEFAULT, *weights)]
    return next((file for file in files if file.is_file()), None)


def _timm_file(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    published = _timm().get_pretrained_cfg(name)
    if not published or not published.hf_hub_id:
        return None
    for file_name in ("model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(published.hf_hub_id, file_name)
        if isinstance(cached, str):
            return Path(cached)
    return None
