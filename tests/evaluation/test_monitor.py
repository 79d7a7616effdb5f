from collections.abc import Callable

import numpy as np
import pytest
import torch

from unshuffle.data.synthetic import synthetic_images
from unshuffle.evaluation.features import colour_histograms, extract
from unshuffle.evaluation.labelled import LabelledImages, from_synthetic
from unshuffle.evaluation.monitor import RetrievalMonitor
from unshuffle.models import build_backbone

CPU = torch.device("cpu")
Nearest = Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]


@pytest.fixture(scope="module")
def monitor() -> RetrievalMonitor:
    gallery, queries = (from_synthetic(synthetic_images(count, 40, seed)) for count, seed in ((36, 0), (24, 1)))
    return RetrievalMonitor(gallery, queries, CPU)


def test_monitor_against_the_long_way(monitor: RetrievalMonitor, slow_nearest: Nearest) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("tiny")
    queries, gallery = (extract(backbone, side.pixels, CPU) for side in (monitor.queries, monitor.gallery))
    rows = slow_nearest(queries.double(), gallery.double(), 20)
    assert monitor.neighbours(backbone)[:, 0].tolist() == [row[0] for row in rows]
    labels, wanted = monitor.gallery.labels.tolist(), monitor.queries.labels.tolist()
    scores = monitor(backbone)
    assert list(scores) == ["top1", "top5", "top10", "top20", "rankme"]
    singular = np.linalg.svd(gallery.double().numpy(), compute_uv=False)
    shares = singular / singular.sum()
    assert scores["rankme"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-3)
    for k in (1, 5, 10, 20):
        hits = [label in [labels[item] for item in row[:k]] for row, label in zip(rows, wanted, strict=True)]
        assert scores[f"top{k}"] == pytest.approx(100 * np.mean(hits))


def test_baselines(monitor: RetrievalMonitor, slow_nearest: Nearest) -> None:
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
    assert list(scores) == ["top1", "top5", "rankme"]
