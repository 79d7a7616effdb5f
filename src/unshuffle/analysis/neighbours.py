"""What several models find alike: queries and their nearest neighbours, side by side (Fig. 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from unshuffle.analysis.figures import INK
from unshuffle.analysis.names import chosen_names
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.data.dataset import LabelledImages
from unshuffle.errors import UserError
from unshuffle.evaluation.features import WORKERS
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.retrieval import Neighbours, Retrieval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unshuffle.analysis.sheet import Sheet

SIDE, GAP = 84, 14
BETWEEN = 30  # two models


@dataclass(frozen=True)
class NearestNeighbours(Question):
    """Queries and their five nearest, for several models side by side (Fig. 3)."""

    weights: tuple[str, ...]
    """Run folders, weights files, torchvision model names, or random (random:ARCHITECTURE): one for each model."""
    names: tuple[str, ...] = ()
    """What to call them; by default the names of the folders."""
    train: str | None = None
    """The gallery: labelled images or videos, as for `evaluate retrieval`."""
    test: str | None = None
    """The queries, with the same classes."""
    voc: Path | None = None
    """Instead of the two: a VOC devkit, whose objects are cut out and compared."""
    year: int = 2007
    """The year of the devkit."""
    train_set: str = "trainval"
    """Image set whose objects are the gallery."""
    test_set: str = "test"
    """Image set whose objects are the queries."""
    count: int = 8
    """Queries, each of another class."""
    limit: int = 0
    """At most so many images, videos or objects on each side, evenly over the classes; 0 is no limit."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of random weights."""
    workers: int = WORKERS
    """Threads that read files."""

    def answer(self, console: Console) -> Analysis:
        """`evaluate retrieval` with each model."""
        if not self.weights or self.count < 1:
            raise UserError("give one or more weights, and a count of 1 or more")
        names = chosen_names(self.names, self.weights)
        results = {name: self._retrieve(spec, console) for name, spec in zip(names, self.weights, strict=True)}
        found = {name: result.neighbours for name, result in results.items() if result.neighbours is not None}
        first = next(iter(results.values()))
        return Analysis(
            "neighbours",
            f"{len(next(iter(found.values())).queries)} of {first.statement}",
            {name: result.metrics for name, result in results.items()},
            rows(found),
            lambda: draw(found),
        )

    def _retrieve(self, weights: str, console: Console) -> Result:
        shared = ("train", "test", "voc", "year", "train_set", "test_set", "limit", "device", "seed", "workers")
        options = {name: getattr(self, name) for name in shared}
        return Retrieval(weights=weights, examples=self.count, **options).run(console)


def rows(found: Mapping[str, Neighbours]) -> list[Row]:
    """A line for each neighbour of each query in each model."""
    return [
        {
            "query": shown.queries.files[query],
            "class": class_of(shown.queries, query),
            "model": model,
            "rank": place - query * each(shown) + 1,
            "neighbour": shown.found.files[place],
            "neighbour_class": class_of(shown.found, place),
        }
        for model, shown in found.items()
        for query in range(len(shown.queries))
        for place in range(query * each(shown), (query + 1) * each(shown))
    ]


def each(shown: Neighbours) -> int:
    """Neighbours of a query."""
    return len(shown.found) // len(shown.queries)


def class_of(images: LabelledImages, place: int) -> str:
    """The name of an image's class."""
    return images.classes[int(images.labels[place])]


def draw(found: Mapping[str, Neighbours]) -> "Figure":
    """A row for each query: itself, then what each model finds, framed in green if it is of the same class."""
    from unshuffle.analysis.sheet import Sheet, room_for, shortened

    queries = next(iter(found.values())).queries
    step, height, margin, head = SIDE + GAP, SIDE + 30, 18, 84
    starts, left = {}, margin + SIDE + BETWEEN
    for model, shown in found.items():
        starts[model] = left
        left += each(shown) * step - GAP + BETWEEN
    title = "Queries and their nearest neighbours, the nearest first; green: of the same class"
    sheet = Sheet(max(room_for(title), left - BETWEEN + margin), head + len(queries) * height)
    sheet.text(title, margin, 24, INK, fontsize=12)
    for row in range(len(queries)):
        _place(sheet, queries, row, margin, head + row * height)
        for model, shown in found.items():
            for rank in range(each(shown)):
                _place(
                    sheet,
                    shown.found,
                    row * each(shown) + rank,
                    starts[model] + rank * step,
                    head + row * height,
                    class_of(queries, row),
                )
    sheet.text("query", margin, head - 34, fontsize=10)
    for model, start in starts.items():
        sheet.text(shortened(model, each(found[model]) * step // 9), start, head - 34, INK, fontsize=10.5)
    return sheet.figure


def _place(sheet: "Sheet", images: LabelledImages, place: int, left: int, top: int, wanted: str | None = None) -> None:
    """An image below the name of its class."""
    from unshuffle.analysis.sheet import RIGHT, WRONG, shortened

    name = class_of(images, place)
    frame = None if wanted is None else RIGHT if name == wanted else WRONG
    sheet.picture(images.pixels[place], left, top, frame, side=SIDE)
    sheet.text(shortened(name, 12), left, top - 12, frame or INK, fontsize=8)
