"""Learn visual features without labels by putting shuffled image tiles and video frames back in order."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["UserError", "embed", "load_backbone", "neighbours_page", "preprocess", "pretrain"]

if TYPE_CHECKING:
    from unshuffle.errors import UserError
    from unshuffle.evaluation.features import preprocess
    from unshuffle.evaluation.index import embed
    from unshuffle.models.weights import load_backbone
    from unshuffle.pretraining import pretrain
    from unshuffle.report.similarity_page import neighbours_page

_HOMES = {
    "UserError": "unshuffle.errors",
    "embed": "unshuffle.evaluation.index",
    "load_backbone": "unshuffle.models.weights",
    "neighbours_page": "unshuffle.report.similarity_page",
    "preprocess": "unshuffle.evaluation.features",
    "pretrain": "unshuffle.pretraining",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and `unshuffle --help` should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unshuffle' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
