"""C: backbones, heads and the ordering network. Importing the package registers the backbones."""

from unshuffle.models import alexnet, caffenet, caffenet_lrn, published, resnet
from unshuffle.models.registry import BACKBONES, Backbone, build_backbone, register_backbone

__all__ = [
    "BACKBONES",
    "Backbone",
    "alexnet",
    "build_backbone",
    "caffenet",
    "caffenet_lrn",
    "published",
    "register_backbone",
    "resnet",
]
