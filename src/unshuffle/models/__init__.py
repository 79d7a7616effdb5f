"""Backbones, heads, and weights as files. Importing the package registers the backbones."""

from unshuffle.models import caffenet, torchvision_timm
from unshuffle.models.registry import BACKBONES, Backbone, build_backbone, register_backbone

__all__ = ["BACKBONES", "Backbone", "build_backbone", "caffenet", "register_backbone", "torchvision_timm"]
