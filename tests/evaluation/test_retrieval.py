import math

import numpy as np
import pytest
import torch

from unshuffle.data.synthetic import synthetic_images
from unshuffle.evaluation.features import colour_histograms, extract
from unshuffle.evaluation.labelled import LabelledImages, from_synthetic
from unshuffle.evaluation.monitor import RetrievalMonitor
from unshuffle.evaluation.search import nearest, top_k_accuracy
from unshuffle.models import build_backbone

CPU = torch.device("cpu")


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def slow_nearest(queries: torch.Tensor, gallery: torch.Tensor, k: int) -> list[list[int]]:
    return [
        sorted(range(len(gallery)), key=lambda item: -cosine(query, gallery[item].tolist()))[:k]
        for query in queries.tolist()
    ]


@pytest.mark.parametrize("k", [1, 4, 15])
def test_nearest_against_loops(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    queries, gallery = torch.randn(9, 5, generator=generator), torch.randn(15, 5, generator=generator)
    gallery *= torch.rand(15, 1, generator=generator) * 10  # lengths must not matter
    assert nearest(queries, gallery, k).tolist() == slow_nearest(queries, gallery, k)


def test_more_queries_than_pass_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, gallery = torch.randn(2500, 3, generator=generator), torch.randn(7, 3, generator=generator)
    found = nearest(queries, gallery, 2)
    assert found.shape == (2500, 2)
    for row in (0, 1023, 1024, 2047, 2048, 2499):
        assert found[row].tolist() == slow_nearest(queries[row][None], gallery, 2)[0]


def test_every_vector_is_nearest_to_itself() -> None:
    vectors = torch.randn(20, 8)
    assert nearest(3 * vectors, vectors, 1).flatten().tolist() == list(range(20))


def test_top_k_against_loops() -> None:
    rng = np.random.default_rng(0)
    neighbours = np.stack([rng.permutation(30)[:12] for _ in range(40)])
    queries, gallery = rng.integers(0, 8, 40), rng.integers(0, 8, 30)
    scores = top_k_accuracy(*(torch.from_numpy(array) for array in (neighbours, queries, gallery)))
    expected = {}
    for k in (1, 5, 10):
        hits = sum(
            any(gallery[item] == query for item in row[:k]) for row, query in zip(neighbours, queries, strict=True)
        )
        expected[f"top{k}"] = pytest.approx(100 * hits / 40)
    assert scores == expected, "top20 needs twenty neighbours"
    assert 0 < scores["top1"] < scores["top5"] < scores["top10"] <= 100


@pytest.fixture(scope="module")
def monitor() -> RetrievalMonitor:
    gallery, queries = (from_synthetic(synthetic_images(count, 40, seed)) for count, seed in ((36, 0), (24, 1)))
    return RetrievalMonitor(gallery, queries, CPU)


def test_monitor_against_the_long_way(monitor: RetrievalMonitor) -> None:
    torch.manual_seed(0)
    trunk = build_backbone("tiny")
    queries, gallery = (extract(trunk, side.pixels, CPU) for side in (monitor.queries, monitor.gallery))
    rows = slow_nearest(queries.double(), gallery.double(), 20)
    assert monitor.neighbours(trunk)[:, 0].tolist() == [row[0] for row in rows]
    labels, wanted = monitor.gallery.labels.tolist(), monitor.queries.labels.tolist()
    scores = monitor(trunk)
    assert list(scores) == ["top1", "top5", "top10", "top20"]
    for k in (1, 5, 10, 20):
        hits = [label in [labels[item] for item in row[:k]] for row, label in zip(rows, wanted, strict=True)]
        assert scores[f"top{k}"] == pytest.approx(100 * np.mean(hits))


def test_baselines(monitor: RetrievalMonitor) -> None:
    baselines = monitor.baselines()
    assert set(baselines) == {"raw pixels", "colour histograms"}
    sides = (monitor.queries, monitor.gallery)
    rows = slow_nearest(*(colour_histograms(side.pixels).double() for side in sides), 1)
    labels = monitor.gallery.labels
    hits = [labels[row[0]] == label for row, label in zip(rows, monitor.queries.labels, strict=True)]
    assert baselines["colour histograms"]["top1"] == pytest.approx(100 * np.mean(hits))


def test_the_gallery_itself_is_retrieved_perfectly(monitor: RetrievalMonitor) -> None:
    mirror = RetrievalMonitor(monitor.gallery, monitor.gallery, CPU)
    assert mirror(build_backbone("tiny"))["top1"] == 100
    assert mirror.baselines()["raw pixels"]["top1"] == 100


def test_a_small_gallery(monitor: RetrievalMonitor) -> None:
    few = LabelledImages(monitor.gallery.pixels[:6], monitor.gallery.labels[:6], monitor.gallery.classes)
    scores = RetrievalMonitor(few, monitor.queries, CPU)(build_backbone("tiny"))
    assert list(scores) == ["top1", "top5"]
