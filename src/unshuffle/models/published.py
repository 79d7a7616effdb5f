"""Backbones of other libraries, `torchvision:NAME` and `timm:NAME`, and the weights they have left on this machine.

Nothing is ever downloaded.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models.normalisation import Normalisation
from unshuffle.models.registry import Backbone, build_backbone, register_family
from unshuffle.models.resnet import ResNet
from unshuffle.wording import did_you_mean

_RESIDUAL = ("resnet", "resnext", "wide_resnet")


@register_family("torchvision")
def torchvision_backbone(name: str) -> Backbone:
    """torchvision's AlexNet or any of its residual networks."""
    import torchvision

    if name == "alexnet":
        return build_backbone(name)
    if name.startswith(_RESIDUAL) and name in torchvision.models.list_models(module=torchvision.models):
        return ResNet(name)
    raise UserError(f"torchvision has no backbone '{name}' that can be used here: take alexnet or a ResNet")


class Timm(Backbone):
    """A timm model without its classifier; what it would classify stands for pool5: (N, channels, 1, 1)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        timm = _timm()
        try:
            self.network: Any = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError:
            raise UserError(f"timm has no model '{name}'{did_you_mean(name, timm.list_models())}") from None
        self.channels = self.network.head_hidden_size
        known = self.network.pretrained_cfg
        self.eval_size = known["input_size"][-1]
        self.published_normalisation = Normalisation(tuple(known["mean"]), tuple(known["std"]))

    def forward(self, images: Tensor) -> Tensor:
        """The pooled features."""
        pooled: Tensor = self.network(images)
        return pooled[:, :, None, None]

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """timm's own stages under timm's names, where the model has them."""
        if not hasattr(self.network, "forward_intermediates"):
            return super().stages(images)
        maps = self.network.forward_intermediates(images, intermediates_only=True)
        return {entry["module"]: one for entry, one in zip(self.network.feature_info, maps, strict=True)}

    def forms(self) -> dict[str, nn.Module]:
        """Also under timm's own names."""
        return {"unshuffle": self, "torchvision": self.network}


@register_family("timm")
def timm_backbone(name: str) -> Backbone:
    """Any timm model."""
    return Timm(name)


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise UserError("timm's models need timm: pip install 'unshuffle[timm]'") from None
    return timm


def is_published(name: str) -> bool:
    """Whether a name is that of a network whose weights others publish."""
    family, _, member = name.partition(":")
    if member:
        return family in ("torchvision", "timm")
    return name == "alexnet" or name.startswith(_RESIDUAL)


def cached_weights(name: str) -> Path:
    """The file in which torchvision or timm keeps the pretrained weights of a model, if it ever fetched them."""
    family, _, member = name.rpartition(":")
    build_backbone(name if family else f"torchvision:{member}")  # or the name is wrong
    found = _timm_file(member) if family == "timm" else _torchvision_file(member)
    if found is None:
        raise UserError(
            f"the pretrained weights of {name} are not on this machine and nothing is downloaded here: fetch them with "
            f"{'timm' if family == 'timm' else 'torchvision'}, or take random:{name}"
        )
    return found


def _torchvision_file(name: str) -> Path | None:
    import torchvision

    weights = torchvision.models.get_model_weights(name)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    files = [folder / Path(entry.url).name for entry in (weights.DEFAULT, *weights)]
    return next((file for file in files if file.is_file()), None)


def _timm_file(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    known = _timm().get_pretrained_cfg(name)
    if not known or not known.hf_hub_id:
        return None
    for file in ("model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(known.hf_hub_id, file)
        if isinstance(found, str):
            return Path(found)
    return None
