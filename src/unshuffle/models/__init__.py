"""C: backbones, heads and the ordering network. Importing the package registers the backbones."""

from unshuffle.models import caffenet, resnet
from unshuffle.models.registry import BACKBONES, Backbone, build_backbone, register_backbone

__all__ = ["BACKBONES", "Backbone", "build_backbone", "caffenet", "register_backbone", "resnet"]
