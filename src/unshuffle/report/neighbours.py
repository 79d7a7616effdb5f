"""Nearest neighbours in a report: of labelled images, with right and wrong, and of the run's own held-out images."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unshuffle.data.dataset import LabelledImages, one_per_class
from unshuffle.data.media import explain
from unshuffle.errors import UserError
from unshuffle.evaluation.features import extract, raw_pixels
from unshuffle.evaluation.index import nearest
from unshuffle.evaluation.monitor import RetrievalMonitor
from unshuffle.evaluation.retrieval import Neighbours
from unshuffle.files import atomic_write
from unshuffle.models import Backbone
from unshuffle.report.puzzles import JPEG_URI, thumbnails
from unshuffle.report.snapshot import Snapshot

THUMBNAIL_SIDE = 96
QUERIES, NEIGHBOURS = 8, 5  # labelled ones that are shown
OWN_NEIGHBOURS = 6


# ---- labelled images


def labelled_neighbours(monitor: RetrievalMonitor, backbone: Backbone) -> Neighbours:
    """Return a query of each of some classes and its nearest images of the monitor's gallery."""
    indices = monitor.neighbours(backbone).cpu()[:, :NEIGHBOURS]
    chosen = one_per_class(monitor.queries.labels, QUERIES)
    return Neighbours(monitor.queries.subset(chosen), monitor.gallery.subset(indices[chosen].flatten().tolist()))


def save_neighbours(path: Path, shown: Neighbours, monitor: RetrievalMonitor, iteration: int) -> None:
    """Write labelled neighbours for the report, which may be made where the labelled images are not."""
    per_query = len(shown.neighbours) // len(shown.queries)

    def described(images: LabelledImages) -> list[dict[str, str]]:
        pictures = thumbnails(torch.from_numpy(images.pixels), THUMBNAIL_SIDE)
        names = [images.classes[label] for label in images.labels.tolist()]
        return [{"class": name, "picture": picture} for name, picture in zip(names, pictures, strict=True)]

    queries, others = described(shown.queries), described(shown.neighbours)
    rows = [[query, *others[index * per_query : (index + 1) * per_query]] for index, query in enumerate(queries)]
    counts = {"queries": len(monitor.queries), "gallery": len(monitor.gallery)}
    with atomic_write(path) as draft:
        draft.write_text(json.dumps({"iteration": iteration, **counts, "rows": rows}))


def load_neighbours(path: Path) -> dict[str, Any] | None:
    """Return labelled neighbours that were stored with a run; None if there are none.

    `rows` holds a list per query: the query itself, then its neighbours, the nearest first; each is `right` if it has
    the class of the query. `queries` and `gallery` count all images that the retrieval of the run is measured on.
    """
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_bytes())
        rows = [
            [{**image, "right": image["class"] == row[0]["class"]} for image in row if _is_picture(image["picture"])]
            for row in stored["rows"]
        ]
        counts = {name: int(stored[name]) for name in ("iteration", "queries", "gallery")}
        return {**counts, "rows": rows, "first_right": sum(row[1]["right"] for row in rows)}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({explain(error)}); delete it to go without these pictures") from None


def _is_picture(uri: str) -> bool:
    if not uri.startswith(JPEG_URI):
        raise ValueError("a picture is not a JPEG")
    return True


# ---- the run's own held-out images


def find_neighbours(snapshot: Snapshot, count: int = OWN_NEIGHBOURS) -> dict[str, Any] | None:
    """Return held-out images, or middle frames of clips, and the nearest of the others to each, the nearest first.

    There are neighbours by the features of the network and by raw pixels; None if there are fewer than two images.
    """
    task = next((task for task, samples in snapshot.held_out.items() if len(samples) > 1), None)
    if task is None:
        return None
    samples = snapshot.held_out[task]
    frames = samples.pixels[:, samples.pixels.shape[1] // 2]
    features = {
        "this network": extract(snapshot.network.backbone, frames.numpy(), snapshot.device),
        "raw pixels": raw_pixels(frames.numpy()),
    }
    by_feature = {name: nearest_others(vectors, min(count, len(frames) - 1)) for name, vectors in features.items()}
    pictures = thumbnails(frames, THUMBNAIL_SIDE)
    return {"names": list(samples.names), "pictures": pictures, "nearest": by_feature}


def nearest_others(vectors: Tensor, count: int) -> list[list[int]]:
    """Return the nearest neighbours of each vector except itself, which need not come first if it has a copy."""
    indices = nearest(vectors, vectors, count + 1).tolist()
    return [[index for index in row if index != own][:count] for own, row in enumerate(indices)]
