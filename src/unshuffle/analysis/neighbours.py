"""Fig. 3: queries and their nearest neighbours, for several models side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import Analysis, AnalysisResult, Row, chosen_names, metrics_table
from unshuffle.analysis.figures import INK, RIGHT, WRONG, Sheet, shortened, title_width
from unshuffle.data.dataset import LabelledImages
from unshuffle.errors import UserError
from unshuffle.evaluation.features import WORKERS
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.retrieval import Neighbours, Retrieval

SIDE, GAP = 84, 14
BETWEEN = 30  # two models


@dataclass(frozen=True)
class NearestNeighbours(Analysis):
    """Queries and their five nearest neighbours, for several models side by side (Fig. 3)."""

    weights: tuple[str, ...]
    """Run folders, weights files, pretrained, torchvision:NAME, timm:NAME, or random (random:NAME): one per model."""
    architecture: tuple[str, ...] = ()
    """Which network each weights file holds, one word per model; auto where the file states it or is recognised."""
    names: tuple[str, ...] = ()
    """Names of the models; by default those of the folders."""
    train: str | None = None
    """The gallery: labelled images or videos, as for `evaluate retrieval`."""
    test: str | None = None
    """The queries, with the same classes."""
    voc: Path | None = None
    """Instead of the two: a VOC devkit, whose cropped objects are compared."""
    year: int = 2007
    """The year of the devkit."""
    train_set: str = "trainval"
    """Image set whose objects are the gallery."""
    test_set: str = "test"
    """Image set whose objects are the queries."""
    count: int = 8
    """Number of queries, each of another class."""
    limit: int = 0
    """Maximum number of images, videos or objects in the gallery and in the queries, balanced over classes; 0: all."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of random weights."""
    workers: int = WORKERS
    """Threads that read files."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Run `evaluate retrieval` with each model."""
        if not self.weights or self.count < 1:
            raise UserError("give one or more weights, and a count of 1 or more")
        names, architectures = (
            chosen_names(self.names, self.weights),
            self.architecture or ("auto",) * len(self.weights),
        )
        if len(architectures) != len(self.weights):
            raise UserError(f"give one architecture for each of the {len(self.weights)} weights, or none")
        results = {
            name: self._retrieve(spec, None if architecture == "auto" else architecture, console)
            for name, spec, architecture in zip(names, self.weights, architectures, strict=True)
        }
        neighbours = {name: result.neighbours for name, result in results.items() if result.neighbours is not None}
        first = next(iter(results.values()))
        metrics = {name: result.metrics for name, result in results.items()}
        top = {key: key.replace("top", "top ") for key in first.metrics if key.startswith("top")}
        return AnalysisResult(
            "neighbours",
            f"{len(next(iter(neighbours.values())).queries)} of {first.statement}",
            metrics,
            rows(neighbours),
            lambda: draw(neighbours),
            metrics_table("retrieval [%]", {**metrics, "chance": first.metrics["chance"]}, top),
        )

    def _retrieve(self, weights: str, architecture: str | None, console: Console) -> Result:
        shared = ("train", "test", "voc", "year", "train_set", "test_set", "limit", "device", "seed", "workers")
        options = {name: getattr(self, name) for name in shared}
        return Retrieval(weights=weights, architecture=architecture, examples=self.count, **options).run(console)


def rows(neighbours: Mapping[str, Neighbours]) -> list[Row]:
    """Return a row per model, query and neighbour."""
    return [
        {
            "query": shown.queries.files[query],
            "class": class_of(shown.queries, query),
            "model": model,
            "rank": position - query * per_query(shown) + 1,
            "neighbour": shown.neighbours.files[position],
            "neighbour_class": class_of(shown.neighbours, position),
        }
        for model, shown in neighbours.items()
        for query in range(len(shown.queries))
        for position in range(query * per_query(shown), (query + 1) * per_query(shown))
    ]


def per_query(shown: Neighbours) -> int:
    """Return the number of neighbours per query."""
    return len(shown.neighbours) // len(shown.queries)


def class_of(images: LabelledImages, index: int) -> str:
    """Return the name of an image's class."""
    return images.classes[int(images.labels[index])]


def draw(neighbours: Mapping[str, Neighbours]) -> Figure:
    """Draw a row per query: the query, then its neighbours in each model, framed in green if the class is the same."""
    queries = next(iter(neighbours.values())).queries
    step, height, margin, head = SIDE + GAP, SIDE + 30, 18, 84
    starts, left = {}, margin + SIDE + BETWEEN
    for model, shown in neighbours.items():
        starts[model] = left
        left += per_query(shown) * step - GAP + BETWEEN
    title = "Queries and their nearest neighbours, the nearest first; green: same class"
    sheet = Sheet(max(title_width(title), left - BETWEEN + margin), head + len(queries) * height)
    sheet.text(title, margin, 24, INK, fontsize=12)
    for row in range(len(queries)):
        _draw_image(sheet, queries, row, margin, head + row * height)
        for model, shown in neighbours.items():
            for rank in range(per_query(shown)):
                _draw_image(
                    sheet,
                    shown.neighbours,
                    row * per_query(shown) + rank,
                    starts[model] + rank * step,
                    head + row * height,
                    class_of(queries, row),
                )
    sheet.text("query", margin, head - 34, fontsize=10)
    for model, start in starts.items():
        sheet.text(shortened(model, per_query(neighbours[model]) * step // 9), start, head - 34, INK, fontsize=10.5)
    return sheet.figure


def _draw_image(
    sheet: Sheet, images: LabelledImages, index: int, left: int, top: int, query_class: str | None = None
) -> None:
    """Draw an image below the name of its class."""
    name = class_of(images, index)
    frame = None if query_class is None else RIGHT if name == query_class else WRONG
    sheet.picture(images.pixels[index], left, top, frame, side=SIDE)
    sheet.text(shortened(name, 12), left, top - 12, frame or INK, fontsize=8)
