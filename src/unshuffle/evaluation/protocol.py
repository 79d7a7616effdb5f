"""What all evaluations have in common: their options, their result, and the list of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console
from rich.table import Table

from unshuffle.errors import UserError
from unshuffle.places import class_at, first_line_at
from unshuffle.wording import did_you_mean

if TYPE_CHECKING:
    from unshuffle.evaluation.labelled import Neighbours  # needs torch, which takes seconds to import


@dataclass(frozen=True)
class Result:
    """The outcome of an evaluation."""

    protocol: str
    """Its name, such as "retrieval, per image"."""
    statement: str
    """One line: split, crops and metric."""
    metrics: dict[str, Any]
    """Figures; in percent where the paper prints percent."""
    table: Table | None = None
    """What to print below the statement, such as `published_table`."""
    neighbours: "Neighbours | None" = None
    """Queries and what was found for them, to be drawn into `out`."""


@dataclass(frozen=True)
class Evaluation:
    """Options that every evaluation has; the defaults of a subclass are the preset `paper`."""

    weights: str = ""
    """A run folder, a weights file, alexnet, torchvision:NAME, timm:NAME, or random (random:NAME)."""
    preset: Literal["paper", "quick"] = "paper"
    """paper: the full schedules; quick: minutes."""
    out: Path | None = None
    """Folder for what a broken-off evaluation goes on from, and for pictures."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of everything random."""
    json: Path | None = None
    """Write the figures there."""

    @classmethod
    def quick(cls) -> Self:
        """The preset `quick`."""
        return cls(preset="quick")

    def run(self, console: Console) -> Result:
        """Evaluate. The command line prints the result; what else a person wants to see is printed here."""
        raise NotImplementedError


EVALUATIONS: dict[str, str] = {
    "retrieval": "unshuffle.evaluation.retrieval:Retrieval",
    "linear": "unshuffle.evaluation.probes:Linear",
    "nonlinear": "unshuffle.evaluation.probes:NonLinear",
    "finetune": "unshuffle.evaluation.transfer:FineTuning",
    "action": "unshuffle.evaluation.action:ActionRecognition",
    "rankme": "unshuffle.evaluation.rankme:RankMe",
    "voc-classification": "unshuffle.evaluation.voc_classification:VocClassification",
    "voc-detection": "unshuffle.evaluation.voc_detection:VocDetection",
    "voc-segmentation": "unshuffle.evaluation.voc_segmentation:VocSegmentation",
}
"""Module and class of each evaluation; imported when it is asked for."""


def find_evaluation(name: str) -> type[Evaluation]:
    """The class of an evaluation."""
    if name not in EVALUATIONS:
        hint = did_you_mean(name, EVALUATIONS) or f"; there are {', '.join(EVALUATIONS)}"
        raise UserError(f"there is no evaluation '{name}'{hint}")
    evaluation: type[Evaluation] = class_at(EVALUATIONS[name])
    return evaluation


def describe_evaluations() -> dict[str, str]:
    """The first line about each evaluation."""
    return {name: first_line_at(place) for name, place in EVALUATIONS.items()}
