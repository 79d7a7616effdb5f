"""What all evaluations have in common: their options, their result, and the list of them."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from rich.console import Console, RenderableType

from unshuffle.errors import UserError
from unshuffle.lazy import LazyClass, find_class

if TYPE_CHECKING:
    from unshuffle.evaluation.labelled import Neighbours  # needs torch, which takes seconds to import


@dataclass(frozen=True)
class Result:
    """The outcome of an evaluation."""

    protocol: str
    """Its name, such as "retrieval, per image"."""
    statement: str
    """One sentence: split, crops and metric."""
    metrics: dict[str, Any]
    """Figures; in percent where the paper prints percent."""
    table: RenderableType | None = None
    """What to print below the statement, such as `published_table`."""
    neighbours: "Neighbours | None" = None
    """Queries and what was found for them, to be drawn into `out`."""
    idle: frozenset[str] = frozenset()
    """Options that changed nothing here, such as a limit above the number of images."""


UNFINISHED = "unfinished"
"""Folder in --out that is deleted in the end; a name of its own, as a run has checkpoints too."""
PLACES = frozenset({"weights", "train", "test", "images", "voc", "list", "videos"})
"""Options that lead to weights and data; what they lead to decides."""


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

    incidental: ClassVar[frozenset[str]] = frozenset({"preset", "out", "device", "json", "workers", "save_every"})
    """Options that change no figure."""
    stated: ClassVar[frozenset[str]] = frozenset({"seed"})
    """Options that no protocol decides, or that a statement names in its own words."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"seed"})
    """Numbers that must not be negative; all others must be above 0."""

    @classmethod
    def quick(cls) -> Self:
        """The preset `quick`."""
        return cls(preset="quick")

    def run(self, console: Console) -> Result:
        """Evaluate. The command line prints the result; what else a person wants to see is printed meanwhile."""
        self.check_numbers()
        result = self.measure(console)
        if self.out is not None:
            shutil.rmtree(self.out.expanduser() / UNFINISHED, ignore_errors=True)  # large, and of no use any more
        changed = ", ".join(self.departures(result.idle))
        return (
            replace(result, statement=f"{result.statement}; not as in the preset paper: {changed}")
            if changed
            else result
        )

    def measure(self, console: Console) -> Result:
        """What an evaluation is about."""
        raise NotImplementedError

    def check_numbers(self) -> None:
        """Refuse numbers that nothing can be done with."""
        for name, value in vars(self).items():
            least = "not be negative" if name in self.may_be_zero else "be above 0"
            numbers = value if isinstance(value, tuple) else (value,)
            for number in numbers:
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                if is_number and not (number > 0 or (number == 0 and name in self.may_be_zero)):
                    raise UserError(f"--{name} is {_words(value)}, but must {least}")
        if self.seed >= 2**32:
            raise UserError(f"--seed is {self.seed}, but must be below 2 to the power of 32")

    def folder(self, name: str) -> Path | None:
        """A folder in --out, for what a broken-off evaluation goes on from."""
        return None if self.out is None else self.out.expanduser() / UNFINISHED / name

    def options(self) -> dict[str, Any]:
        """The options that decide the figures, besides weights and data."""
        return {name: value for name, value in asdict(self).items() if name not in self.incidental | PLACES}

    def unchanged(self, *names: str) -> bool:
        """Whether these options are as the preset paper has them."""
        usual = type(self)()
        return all(getattr(self, name) == getattr(usual, name) for name in names)

    def departures(self, idle: frozenset[str] = frozenset()) -> list[str]:
        """The options that are not as the preset paper has them, in words; not those that changed nothing."""
        return [
            _option(name, value)
            for name, value in self.options().items()
            if name not in self.stated | idle and not self.unchanged(name)
        ]


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    return f"{name} {_words(value)}"


def _words(value: object) -> str:
    return " ".join(map(_words, value)) if isinstance(value, tuple) else str(value)


def rounded(value: Any, digits: int = 4) -> Any:
    """Figures for a file, without digits that mean nothing."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(one, digits) for key, one in value.items()}
    return [rounded(one, digits) for one in value] if isinstance(value, list | tuple) else value


EVALUATIONS: dict[str, LazyClass] = {
    "retrieval": LazyClass(
        "unshuffle.evaluation.retrieval",
        "Retrieval",
        "Nearest neighbours by cosine of pool5: is the class of a query among its k nearest? (Tab. 1)",
    ),
    "linear": LazyClass(
        "unshuffle.evaluation.probes",
        "Linear",
        "A linear classifier on each layer of the frozen backbone (Tab. 2); --fast is logistic regression.",
    ),
    "nonlinear": LazyClass(
        "unshuffle.evaluation.probes", "NonLinear", "Two hidden layers of 4096 on the frozen pool5 (Tab. 2)."
    ),
    "finetune": LazyClass(
        "unshuffle.evaluation.transfer",
        "FineTuning",
        "All of the backbone and a new classifier, trained on your labelled images.",
    ),
    "action": LazyClass(
        "unshuffle.evaluation.action",
        "ActionRecognition",
        "Actions in videos, fine-tuned on single frames with the sampling of temporal segment networks.",
    ),
    "rankme": LazyClass(
        "unshuffle.evaluation.rankme",
        "RankMe",
        "How many dimensions the features of unlabelled images use (RankMe): low is a sign of collapse.",
    ),
    "voc-classification": LazyClass(
        "unshuffle.evaluation.voc.classification",
        "VocClassification",
        "Fine-tune all layers to tell which of 20 classes an image shows; mAP (Tab. 4).",
    ),
    "voc-detection": LazyClass(
        "unshuffle.evaluation.voc.detection",
        "VocDetection",
        "Fine-tune Fast R-CNN to detect the objects of 20 classes; mAP (Tab. 4).",
    ),
    "voc-segmentation": LazyClass(
        "unshuffle.evaluation.voc.segmentation",
        "VocSegmentation",
        "Fine-tune FCN-32s to label each pixel with its class; mean IoU (Tab. 4).",
    ),
}


def find_evaluation(name: str) -> type[Evaluation]:
    """The class of an evaluation."""
    evaluation: type[Evaluation] = find_class(name, EVALUATIONS, "evaluation")
    return evaluation
