"""What a run measures of its features: against slow references, and without any effect on the training."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.config import Config, demo
from unshuffle.data.dataset import LabelledImages, load_images, synthetic_dataset
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation.features import colour_histograms, extract, raw_pixels
from unshuffle.evaluation.monitor import (
    OWN_SAMPLES,
    ROUNDS,
    OwnData,
    RetrievalMonitor,
    build_monitor,
    build_own_data,
    partners_found,
)
from unshuffle.evaluation.rankme import effective_rank
from unshuffle.models import build_backbone
from unshuffle.options import merge
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.display import Display
from unshuffle.training.log import RunLog
from unshuffle.training.trainer import build_trainer

CPU = torch.device("cpu")
Nearest = Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]

# ---- labelled images


@pytest.fixture(scope="module")
def monitor() -> RetrievalMonitor:
    gallery, queries = (
        load_images(synthetic_dataset(synthetic_images(count, 40, seed))) for count, seed in ((36, 0), (24, 1))
    )
    return RetrievalMonitor(gallery, queries, CPU)


def test_monitor_against_a_slow_reference(monitor: RetrievalMonitor, slow_nearest: Nearest) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("tiny")
    queries, gallery = (extract(backbone, side.pixels, CPU) for side in (monitor.queries, monitor.gallery))
    rows = slow_nearest(queries.double(), gallery.double(), 20)
    assert monitor.neighbours(backbone)[:, 0].tolist() == [row[0] for row in rows]
    labels, wanted = monitor.gallery.labels.tolist(), monitor.queries.labels.tolist()
    scores = monitor(backbone)
    assert list(scores) == ["top1", "top5", "top10", "top20", "chance", "queries", "rankme"]
    singular = np.linalg.svd(gallery.double().numpy(), compute_uv=False)
    fractions = singular / singular.sum()
    assert scores["rankme"] == pytest.approx(np.exp(-(fractions * np.log(fractions)).sum()), rel=1e-3)
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
    itself = RetrievalMonitor(monitor.gallery, monitor.gallery, CPU)
    assert itself(build_backbone("tiny"))["top1"] == 100
    assert itself.baselines()["raw pixels"]["top1"] == 100


def test_a_small_gallery(monitor: RetrievalMonitor) -> None:
    few = LabelledImages(monitor.gallery.pixels[:6], monitor.gallery.labels[:6], monitor.gallery.classes)
    scores = RetrievalMonitor(few, monitor.queries, CPU)(build_backbone("tiny"))
    assert list(scores) == ["top1", "top5", "chance", "queries", "rankme"]


def test_chance_is_that_of_a_random_image_of_the_gallery(monitor: RetrievalMonitor) -> None:
    labels = monitor.gallery.labels.tolist()
    by_hand = [np.mean([label == other for other in labels]) for label in monitor.queries.labels.tolist()]
    scores = monitor(build_backbone("tiny"))
    assert scores["chance"] == pytest.approx(100 * np.mean(by_hand)) and scores["queries"] == len(monitor.queries)


# ---- the run's own data


def small_world(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "device": "cpu",
        "data": {"val_size": 12, "workers": 1},
        "synthetic": {"images": 60, "clips": 60, "clip_frames": 8, "image_size": 48, "frame_size": 24},
        "spatial": {"permutations": 5},
        "temporal": {"permutations": 5},
        "policy": {"num_groups": 3},
    }
    return merge(merge(demo(), values), changes)


def own_data(**changes: Any) -> OwnData:
    config = small_world(**changes)
    own = build_own_data(prepare(config, progress=False), config.seed, CPU)
    assert own is not None
    return own


def test_partners_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(15, 6, generator=generator)
    noise = torch.randn(30, 6, generator=generator)
    vectors = (base.repeat_interleave(2, dim=0) + 0.8 * noise) * torch.rand(30, 1, generator=generator)
    found = 0
    for own in range(30):
        cosines = {
            other: float(torch.cosine_similarity(vectors[own], vectors[other], dim=0))
            for other in range(30)
            if other != own
        }
        found += max(cosines, key=lambda other: cosines[other]) == (own + 1 if own % 2 == 0 else own - 1)
    assert 0 < found < 30
    assert partners_found(vectors) == pytest.approx(100 * found / 30)


def test_features_without_information_are_at_chance_and_copies_find_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [partners_found(torch.randn(20, 50, generator=generator)) for _ in range(300)]
    assert np.mean(scores) == pytest.approx(100 / 19, abs=1)
    assert partners_found(torch.randn(20, 5, generator=generator).repeat_interleave(2, dim=0)) == 100


def test_what_is_measured_on_own_data() -> None:
    own, backbone = own_data(), build_backbone("tiny")
    assert {name: [rounds.shape for rounds in views] for name, views in own.views.items()} == {
        "crops": [(24, 48, 48, 3)] * ROUNDS,
        "frames": [(24, 24, 24, 3)] * ROUNDS,
    }
    figures = own(backbone)
    for name, views in own.views.items():
        by_hand = [partners_found(extract(backbone, pixels, CPU)) for pixels in views]
        assert figures[f"{name}_top1"] == pytest.approx(np.mean(by_hand))
        assert figures[f"{name}_chance"] == pytest.approx(100 / 23) and figures[f"{name}_queries"] == 24 * ROUNDS
    assert figures["own_rankme"] == pytest.approx(effective_rank(extract(backbone, own.images, CPU)))


def test_the_views_are_fixed_by_the_seed_and_held_out() -> None:
    config = small_world()
    data = prepare(config, progress=False)
    first, again = (build_own_data(data, config.seed, CPU) for _ in range(2))
    other = build_own_data(data, config.seed + 1, CPU)
    assert first is not None and again is not None and other is not None
    assert all(
        np.array_equal(*pair) for name in first.views for pair in zip(first.views[name], again.views[name], strict=True)
    )
    assert not np.array_equal(first.views["crops"][0], other.views["crops"][0])
    assert not np.array_equal(*first.views["crops"]), "each round has its own"
    held_out = data.validation["spatial"].centres()[:, 0].numpy()
    assert np.array_equal(first.images, held_out)


def test_the_check_is_informative() -> None:
    """Colours do not give the partner away, and neither features without training nor pixels find all partners."""
    own = own_data(data={"val_size": 100}, synthetic={"images": 600, "image_size": 96})
    views = own.views["crops"][0]
    assert (views[..., 0] == views[..., 1]).all(), "grayscale"
    assert partners_found(colour_histograms(views)) < 15
    for features in (raw_pixels(views), extract(build_backbone("tiny"), views, CPU)):
        assert 5 < partners_found(features) < 60, "far from chance, 0.5, and from 100"


@pytest.mark.parametrize(("tasks", "names"), [("S", {"crops"}), ("R+I", {"crops"}), ("T", {"crops", "frames"})])
def test_every_run_has_a_check(tasks: str, names: set[str]) -> None:
    assert set(own_data(tasks=tasks).views) == names


def test_large_validation_sets_are_sampled_and_single_samples_have_no_check() -> None:
    own = own_data(
        data={"val_size": 150}, synthetic={"images": 800, "image_size": 24}, spatial={"crop_size": 8}, tasks="S"
    )
    assert len(own.images) == OWN_SAMPLES
    data = prepare(small_world(data={"val_size": 1}, tasks="S"), progress=False)
    assert build_own_data(data, 0, CPU) is None and build_own_data(Data(), 0, CPU) is None


# ---- in a run


def test_labels_are_not_needed(tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(20):
        Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    data = {"cache": str(tmp_path / "cache")}
    run = tiny_run(tmp_path / "run", images=str(tmp_path / "photos"), data=data)
    entries = list(run.metrics("monitor"))
    assert [entry["iteration"] for entry in entries] == [0, 6, 12]
    for entry in entries:
        assert {"crops_top1", "crops_chance", "crops_queries", "own_rankme"} <= entry.keys() and "top1" not in entry


def test_nothing_in_the_training_depends_on_the_monitor(
    tiny_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = tiny_run(tmp_path / "watched", log={"monitor_every": 2})
    monkeypatch.setattr("unshuffle.pretraining.build_monitor", lambda *_: None)
    alone = tiny_run(tmp_path / "alone")
    assert watched.weights.read_bytes() == alone.weights.read_bytes()
    assert any(watched.metrics("monitor")) and not any(alone.metrics("monitor"))


def test_a_backbone_that_overflowed_is_one_sentence(tmp_path: Path) -> None:
    config = small_world(data={"test_size": 0})
    data = prepare(config, progress=False)
    trainer = build_trainer(config, data, monitor=build_monitor(config, data))
    with torch.no_grad():
        next(trainer.network.backbone.parameters()).fill_(math.nan)
    with RunLog(Run(tmp_path)) as log, pytest.raises(UserError, match="overflowed before iteration 0"):
        trainer._monitor(log, Display({}, 1))
    assert not any(Run(tmp_path).metrics("monitor"))
