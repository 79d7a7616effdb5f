"""A fine-tuned classifier on disk: the backbone and the layers on top of it, for those who want to look into it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models import Backbone
from unshuffle.models.weights import load_backbone, read_weights, write_weights

CLASSIFIER_NAME = "classifier.safetensors"


@dataclass(frozen=True)
class TrainedClassifier:
    """A backbone, fully connected layers with ReLU between them, and the names of the scores."""

    backbone: Backbone
    head: nn.Module
    classes: Sequence[str]

    def scores(self, images: Tensor) -> Tensor:
        """(N, classes) logits of images that are normalised as the backbone wants them."""
        scores: Tensor = self.head(self.backbone(images))
        return scores

    def save(self, folder: Path) -> Path:
        """Write it into a folder; the file also serves as the weights of its backbone."""
        folder.mkdir(parents=True, exist_ok=True)
        metadata = {
            "architecture": self.backbone.architecture,
            "input_size": str(self.backbone.eval_size),
            "normalisation": str(self.backbone.normalisation),
            "classes": json.dumps(list(self.classes)),
        }
        both = nn.ModuleDict({"backbone": self.backbone, "head": self.head})
        write_weights(both, metadata, folder / CLASSIFIER_NAME)
        return folder / CLASSIFIER_NAME

    @classmethod
    def load(cls, path: Path) -> "TrainedClassifier":
        """Read the file, or the one in the --out folder of an evaluation."""
        file = path.expanduser()
        file = file / CLASSIFIER_NAME if file.is_dir() else file
        if not file.is_file():
            raise UserError(
                f"there is no classifier at {file}: evaluate finetune and voc-classification keep one in --out"
            )
        weights, metadata = read_weights(file)
        if "classes" not in metadata:
            raise UserError(f"{file} holds no classifier")
        return cls(load_backbone(file), _head(weights).eval(), tuple(json.loads(metadata["classes"])))


def _head(weights: dict[str, Tensor]) -> nn.Module:
    """Its layers by the shapes of their weights, in the order of their numbers."""
    numbers = sorted(int(found[1]) for key in weights if (found := re.fullmatch(r"head\.(\d+)\.weight", key)))
    layers: list[nn.Module] = [nn.Flatten()]
    for number in numbers:
        weight, bias = weights[f"head.{number}.weight"], weights[f"head.{number}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer] if number == numbers[0] else [nn.ReLU(), layer]
    return nn.Sequential(*layers)
