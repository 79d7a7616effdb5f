"""Nearest neighbours in a report, against slow searches and against the monitor."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.evaluation.features import extract
from unshuffle.evaluation.monitor import build_retrieval_monitor
from unshuffle.models.weights import load_backbone
from unshuffle.report.neighbours import find_neighbours, load_neighbours, nearest_others
from unshuffle.report.snapshot import Snapshot
from unshuffle.runs.run import Run


def slow_others(vectors: torch.Tensor, count: int) -> list[list[int]]:
    neighbours = []
    for own in range(len(vectors)):
        cosine = {
            other: float(torch.cosine_similarity(vectors[own], vectors[other], dim=0))
            for other in range(len(vectors))
            if other != own
        }
        neighbours.append(sorted(cosine, key=lambda other: -cosine[other])[:count])
    return neighbours


def test_nearest_others_against_a_slow_search() -> None:
    vectors = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    assert nearest_others(vectors, 4) == slow_others(vectors, 4)


def test_a_copy_is_a_neighbour_but_not_the_image_itself() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert [row[0] for row in nearest_others(vectors, 1)[:2]] == [1, 0]


def test_neighbours_are_by_the_features_of_the_network(snapshot: Snapshot) -> None:
    neighbours = find_neighbours(snapshot, 3)
    images = snapshot.held_out["spatial"]
    assert neighbours is not None and neighbours["names"] == list(images.names)
    features = extract(snapshot.network.backbone, images.pixels[:, 0].numpy(), torch.device("cpu"))
    assert neighbours["nearest"]["this network"] == slow_others(features, 3)


def test_one_image_has_no_neighbour(snapshot: Snapshot) -> None:
    one = {"spatial": type(snapshot.held_out["spatial"])(snapshot.held_out["spatial"].pixels[:1], ["a"])}
    alone = replace(snapshot, held_out=one)
    assert find_neighbours(alone) is None


# ---- labelled images


def test_labelled_neighbours_are_those_of_the_headline(run: Run) -> None:
    """The gallery, the network and the classes of the retrieval that the run logs."""
    stored, monitor = load_neighbours(run.neighbours), build_retrieval_monitor(run.config)
    assert stored is not None and monitor is not None
    assert (stored["queries"], stored["gallery"], stored["iteration"]) == (24, 48, 6)
    nearest, labels = monitor.neighbours(load_backbone(run.folder)), monitor.queries.labels.tolist()
    for row in stored["rows"]:
        query = labels.index(monitor.queries.classes.index(row[0]["class"]))  # the first of its class
        wanted = [monitor.gallery.classes[int(monitor.gallery.labels[index])] for index in nearest[query][:5]]
        assert [image["class"] for image in row[1:]] == wanted
        assert [image["right"] for image in row[1:]] == [name == row[0]["class"] for name in wanted]
    assert stored["first_right"] == sum(row[1]["class"] == row[0]["class"] for row in stored["rows"])
    assert len({row[0]["class"] for row in stored["rows"]}) == len(stored["rows"]), "not chosen by the result"


def test_a_run_without_labels_has_none(hostile_run: Run) -> None:
    assert load_neighbours(hostile_run.neighbours) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "no JSON",
        lambda stored: json.dumps({**stored, "rows": [[{"class": "a", "picture": "https://example.org"}] * 2]}),
        lambda stored: json.dumps({**stored, "rows": [[{"class": "a"}]]}),
        lambda stored: json.dumps({**stored, "queries": None}),
        lambda stored: json.dumps([]),
    ],
)
def test_a_damaged_file_is_one_sentence(run: Run, tmp_path: Path, damage: Any) -> None:
    path = Path(shutil.copy(run.neighbours, tmp_path / "neighbours.json"))
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UserError, match=r"neighbours.json is damaged .*; delete it to go without these pictures"):
        load_neighbours(path)
