"""Learn visual features without labels by putting shuffled image tiles and video frames back in order."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Backbone",
    "ClassificationConfig",
    "ClassificationTask",
    "Index",
    "ItemSampler",
    "Run",
    "SimilarityPage",
    "SpatialTask",
    "TemporalTask",
    "UserError",
    "build_backbone",
    "embed",
    "load_backbone",
    "neighbours_page",
    "permutation_set",
    "preprocess",
    "preset_config",
    "pretrain",
    "register_task",
]

if TYPE_CHECKING:
    from unshuffle.config import ClassificationConfig, preset_config
    from unshuffle.errors import UserError
    from unshuffle.evaluation.features import preprocess
    from unshuffle.evaluation.index import Index, embed
    from unshuffle.models.registry import Backbone, build_backbone
    from unshuffle.models.weights import load_backbone
    from unshuffle.permutations import permutation_set
    from unshuffle.policy.items import ItemSampler
    from unshuffle.pretraining import pretrain
    from unshuffle.report.similarity_page import SimilarityPage, neighbours_page
    from unshuffle.runs.run import Run
    from unshuffle.tasks import register_task
    from unshuffle.tasks.classification import ClassificationTask
    from unshuffle.tasks.spatial import SpatialTask
    from unshuffle.tasks.temporal import TemporalTask

_HOMES = {
    "Backbone": "unshuffle.models",  # the package: it registers all backbones
    "ClassificationConfig": "unshuffle.config",
    "ClassificationTask": "unshuffle.tasks.classification",
    "Index": "unshuffle.evaluation.index",
    "ItemSampler": "unshuffle.policy.items",
    "Run": "unshuffle.runs.run",
    "SimilarityPage": "unshuffle.report.similarity_page",
    "SpatialTask": "unshuffle.tasks.spatial",
    "TemporalTask": "unshuffle.tasks.temporal",
    "UserError": "unshuffle.errors",
    "build_backbone": "unshuffle.models",
    "embed": "unshuffle.evaluation.index",
    "load_backbone": "unshuffle.models.weights",
    "neighbours_page": "unshuffle.report.similarity_page",
    "permutation_set": "unshuffle.permutations",
    "preprocess": "unshuffle.evaluation.features",
    "preset_config": "unshuffle.config",
    "pretrain": "unshuffle.pretraining",
    "register_task": "unshuffle.tasks",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and `unshuffle --help` should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unshuffle' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names too, before they are imported."""
    return sorted({*globals(), *__all__})
