"""Options, results and notes to the user that all evaluations share, published figures, and the registry."""

import csv
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from annotated_types import Interval
from rich.console import Console, RenderableType
from rich.table import Table

from unshuffle.config import STATES, DataConfig
from unshuffle.console import say
from unshuffle.errors import UserError
from unshuffle.lazy import LazyClass, find_entry
from unshuffle.options import check_bounds
from unshuffle.wording import ignored_words, skipped_lines

if TYPE_CHECKING:  # both need torch, which takes seconds to import
    from unshuffle.data.source import Skipped
    from unshuffle.evaluation.retrieval import Neighbours


@dataclass(frozen=True)
class Result:
    """The outcome of an evaluation."""

    protocol: str
    """Name of the protocol, such as "retrieval, per image"."""
    statement: str
    """One sentence: split, crops and metric."""
    metrics: dict[str, Any]
    """Figures; in percent where the paper prints percent."""
    table: RenderableType | None = None
    """What to print below the statement, such as `published_table`."""
    neighbours: "Neighbours | None" = None
    """Queries and their nearest neighbours, to be drawn into `out`."""
    idle: frozenset[str] = frozenset()
    """Options that changed nothing here, such as a limit above the number of images."""


UNFINISHED = "unfinished"
"""Folder in --out that is deleted at the end; a name of its own, as a run has checkpoints too."""
DATA_OPTIONS = frozenset({"weights", "train", "test", "images", "voc", "list", "videos"})
"""Options that lead to weights and data: the identity of an evaluation is that of the data, not of the address."""


@dataclass(frozen=True)
class Evaluation:
    """Options that every evaluation has; the defaults of a subclass are the preset `paper`."""

    weights: str = ""
    """A run folder, a weights file, pretrained (the weights that come with the package), hf:OWNER/NAME (of the Hugging
    Face hub), alexnet, torchvision:NAME, timm:NAME, or random (random:NAME)."""
    architecture: str | None = None
    """Architecture of a weights file that does not name it and is not recognised: resnet34, timm:NAME ..."""
    download: bool = False
    """Download hf:OWNER/NAME if it is not in the Hugging Face cache of this machine, or not in its latest version."""
    preset: Literal["auto", "quick", "paper"] = "paper"
    """auto: a schedule that fits the number of training images; paper: the full schedules; quick: a short version that
    takes minutes."""
    out: Path | None = None
    """Folder for pictures and for the state from which an interrupted evaluation resumes; without it the state is kept
    in ~/.cache/unshuffle until the end."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: Annotated[int, Interval(ge=0, lt=2**32)] = 0
    """Seed of everything random, from 0 to 2^32 - 1."""
    json: Path | None = None
    """Write the figures to this file."""

    incidental: ClassVar[frozenset[str]] = frozenset(
        {"architecture", "download", "preset", "out", "device", "json", "workers", "save_every"}
    )
    """Options that change no figure; the weights themselves say what network they are of."""
    stated: ClassVar[frozenset[str]] = frozenset({"seed"})
    """Options that the protocol leaves open, or that the statement names in its own words."""

    @classmethod
    def quick(cls) -> Self:
        """Return the options of the preset `quick`."""
        return cls(preset="quick")

    @classmethod
    def fitted(cls, given: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return the options of the preset `auto` for the data that the given options name, and the choice in words."""
        return cls(preset="auto"), None

    def run(self, console: Console) -> Result:
        """Evaluate; progress and notes are printed meanwhile, the result is left to the caller."""
        check_bounds(self)
        result = self.measure(console)
        if self.out is not None:
            shutil.rmtree(self.out.expanduser() / UNFINISHED, ignore_errors=True)  # large, and of no further use
        changed = ", ".join(self.departures(result.idle))
        if changed:
            return replace(result, statement=f"{result.statement}; differs from --preset paper: {changed}")
        return result

    def measure(self, console: Console) -> Result:
        """Measure; every evaluation implements this."""
        raise NotImplementedError

    def folder(self, name: str) -> Path | None:
        """Return a folder in --out for the state from which an interrupted evaluation resumes."""
        return None if self.out is None else self.out.expanduser() / UNFINISHED / name

    def options(self) -> dict[str, Any]:
        """Return the options that decide the figures, besides weights and data."""
        return {name: value for name, value in asdict(self).items() if name not in self.incidental | DATA_OPTIONS}

    def unchanged(self, *names: str) -> bool:
        """Return whether these options are as in the preset paper."""
        paper = type(self)()
        return all(getattr(self, name) == getattr(paper, name) for name in names)

    def is_papers(self, but: frozenset[str] = frozenset()) -> bool:
        """Return whether all options that decide the figures, `but` for the given ones, are those of the paper."""
        return self.unchanged(*(name for name in self.options() if name not in but | {"seed"}))

    def departures(self, idle: frozenset[str] = frozenset()) -> list[str]:
        """Return the options that differ from the preset paper, in words; not those that changed nothing."""
        return [
            _option(name, value)
            for name, value in self.options().items()
            if name not in self.stated | idle and not self.unchanged(name)
        ]


class OtherEvaluation(UserError):
    """A folder holds the state of an evaluation with other options, weights or files."""


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    return f"{name} {_words(value)}"


def _words(value: object) -> str:
    return " ".join(map(_words, value)) if isinstance(value, tuple) else str(value)


def rounded(value: Any, digits: int = 4) -> Any:
    """Return figures for a file, without digits that mean nothing."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    return [rounded(inner, digits) for inner in value] if isinstance(value, list | tuple) else value


# ---- notes to the user


FEW_PER_CLASS = 10
"""Fewer training files of a class than this teach little."""
LISTED = 100
"""Skipped files that JSON lists."""


def note(console: Console, text: str) -> None:
    """Print a remark on one line."""
    say(console, f"note: {text}")


def check_covered(labels: Iterable[int], wanted: Iterable[int], classes: Sequence[str], what: str) -> None:
    """Raise a UserError if a wanted class has no label: a mean over the classes, or a search, would be wrong."""
    if empty := sorted(set(wanted) - set(labels)):
        raise UserError(f"the class {classes[empty[0]]} has no readable {what}")


def note_few(console: Console, labels: Sequence[int], classes: Sequence[str], what: str) -> None:
    """Print a note if there is little to train on."""
    if len(labels) < FEW_PER_CLASS * len(classes):
        counts = [Counter(labels)[label] for label in range(len(classes))]
        least, most = min(counts), max(counts)
        each = f"{least} to {most}" if least < most else f"{most}"
        note(console, f"only {len(labels):,} {what} for {len(classes)} classes, {each} of each: little to train on")


def note_shared(console: Console, shared: int) -> None:
    """Print a note if test files are training files too."""
    if shared:
        note(console, f"{shared_sentence(shared)}: the figures do not tell the accuracy on new ones")


def shared_sentence(shared: int) -> str:
    """Return how many test files are training files too, for a statement."""
    return f"{shared:,} of the test files are training files too"


class OpenedData(Protocol):
    """What was found at an address."""

    @property
    def address(self) -> str:
        """What was opened."""

    @property
    def skipped(self) -> "Sequence[Skipped]":
        """Files that cannot be used, with the reasons."""

    @property
    def ignored(self) -> Mapping[str, int]:
        """Number of other files, by extension."""


def note_skipped(
    console: Console, data: OpenedData, where: str, out: Path | None = None, cache: Path = DataConfig.cache
) -> None:
    """Print how many files were ignored and skipped, name the first of these, and write a list of them all.

    The list is in `out`, or else beside the cache; a folder of `STATES` is deleted after the evaluation.
    """
    from unshuffle.data.inventory import skipped_file, write_skipped

    if data.ignored:
        say(console, f"{where}: {ignored_words(data.ignored)}")
    if not data.skipped:
        return
    say(console, f"{where}: {len(data.skipped)} skipped")
    for line in skipped_lines(data.skipped):
        say(console, line)
    name = re.sub(r"\W+", "-", f"skipped {where}.csv").replace("-csv", ".csv")
    lasts = out is not None and out.parent.name != STATES
    listed = out.expanduser() / name if out is not None and lasts else skipped_file(data.address, cache)
    say(console, f"  all are listed in {write_skipped(listed, data.skipped)}")


def skipped_figures(skipped: "Sequence[Skipped]") -> dict[str, Any]:
    """Return for JSON how many files were skipped, with name and reason of the first hundred."""
    return {"count": len(skipped), "files": [{"file": file, "reason": reason} for file, reason in skipped[:LISTED]]}


# ---- published figures


@cache
def published(table: str) -> dict[str, dict[str, float]]:
    """Return one of the paper's tables, "1" to "5": the figures of each method by column, without the dashes."""
    methods: dict[str, dict[str, float]] = {}
    with files("unshuffle.evaluation").joinpath("published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"] == table:
                methods.setdefault(row["method"], {})[row["column"]] = float(row["value"])
    return methods


def figure_table(ours: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of figures in percent by row and column; a row may lack some."""
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column("[%]", no_wrap=True)
    columns = list(dict.fromkeys(column for row in ours.values() for column in row))
    for column in columns:
        grid.add_column(column, justify="right")
    for name, row in ours.items():
        _add(grid, name, row, columns)
    return grid


def published_table(
    table: str,
    ours: Mapping[str, Mapping[str, float]],
    data: str,
    paper_columns: Mapping[str, str] | None = None,
) -> Table:
    """Return a table of our figures by row and column, and below them the paper's in the same columns.

    Only for figures of the paper's protocol on the paper's data, which `data` names. `paper_columns` maps our columns
    to the paper's names where these differ. Methods without a figure in any column are left out.
    """
    grid = figure_table(ours)
    columns = {str(column.header): str(column.header) for column in grid.columns[1:]}
    columns |= paper_columns or {}
    rows = {method: row for method, row in published(table).items() if row.keys() & set(columns.values())}
    if rows:
        grid.add_row()
        grid.add_row(f"published, {data}")
    for method, row in rows.items():
        _add(grid, f"  {method}", row, list(columns.values()))
    return grid


def _add(grid: Table, name: str, row: Mapping[str, float], columns: list[str]) -> None:
    grid.add_row(name, *(f"{row[key]:.1f}" if key in row else "-" for key in columns))


# ---- the registry


_evaluation = partial(LazyClass, "unshuffle.evaluation")
EVALUATIONS: dict[str, LazyClass] = {
    "retrieval": _evaluation(
        "retrieval",
        "Retrieval",
        "Nearest neighbours by cosine of pool5: is the class of a query among its k nearest? (Tab. 1)",
    ),
    "linear": _evaluation(
        "probes",
        "Linear",
        "A linear probe on each layer of the frozen backbone (Tab. 2); --fast is logistic regression.",
    ),
    "nonlinear": _evaluation("probes", "NonLinear", "A probe with two hidden layers on the frozen pool5 (Tab. 2)."),
    "finetune": _evaluation(
        "classification", "FineTuning", "Fine-tune the whole backbone with a new classifier on labelled images."
    ),
    "action": _evaluation(
        "action",
        "ActionRecognition",
        "Action recognition, fine-tuned on single frames with the sampling of temporal segment networks (Tab. 3).",
    ),
    "rankme": _evaluation(
        "rankme",
        "RankMe",
        "Effective rank of the features of unlabelled images (RankMe): a low rank is a sign of collapse.",
    ),
    "voc-classification": _evaluation(
        "voc.classification",
        "VocClassification",
        "Fine-tune all layers to tell which of 20 classes an image shows; mAP (Tab. 4).",
    ),
    "voc-detection": _evaluation(
        "voc.detection", "VocDetection", "Fine-tune Fast R-CNN to detect the objects of 20 classes; mAP (Tab. 4)."
    ),
    "voc-segmentation": _evaluation(
        "voc.segmentation",
        "VocSegmentation",
        "Fine-tune FCN-32s to label each pixel with its class; mean IoU (Tab. 4).",
    ),
}


def with_preset(kind: type[Evaluation], given: Mapping[str, Any]) -> tuple[Evaluation, str | None]:
    """Return an evaluation with the defaults of the given preset, auto if none is given, and what auto has chosen."""
    preset = given.get("preset", "auto")
    if preset == "auto":
        return kind.fitted(given)
    return kind.quick() if preset == "quick" else kind(), None


def find_evaluation(name: str) -> type[Evaluation]:
    """Return the class of an evaluation by its name."""
    evaluation: type[Evaluation] = find_entry(name, EVALUATIONS, "evaluation").load()
    return evaluation
