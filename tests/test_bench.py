"""The bench's arithmetic; how fast anything is depends on the machine and is not tested."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unshuffle import bench, cli
from unshuffle.bench import Stopwatch
from unshuffle.config import demo, paper
from unshuffle.errors import UserError
from unshuffle.options import merge

SMALL = {
    "data": {"val_size": 1, "image_short_side": 48, "frame_short_side": 24, "workers": 1},
    "optim": {"batch_size": 4},
    "spatial": {"permutations": 5, "crop_size": 24},
    "temporal": {"permutations": 5, "crop_size": 24, "frames": 4},
    "permutations": {"per_sample": 1},
    "policy": {"num_groups": 2, "interval": 100, "batches": 10},
}
WORLD = {"images": 8, "clips": 8, "clip_frames": 4}
CONV = 3 * 32 * 25 * 12**2 * 2 + 32 * 48 * 9 * 12**2 * 3 + 48 * 96 * 9 * 6**2 * 3 + 96 * 96 * 9 * 6**2 * 3
"""Multiplications of the tiny backbone for a crop of 24 px, forward and backward."""


@pytest.fixture
def small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WORLD", WORLD)


@pytest.mark.usefixtures("small_world")
def test_the_figures_fit_together(tmp_path: Path) -> None:
    figures = bench.bench(merge(demo(), SMALL), iterations=3)
    seconds = figures["ms_per_iteration"] / 1e3
    assert figures["iterations_per_second"] == pytest.approx(1 / seconds)
    assert figures["samples_per_second"] == pytest.approx(8 / seconds)
    assert figures["crops_per_second"] == pytest.approx(4 * (9 + 4) / seconds)
    assert figures["tflops"] == pytest.approx(figures["tflop_per_iteration"] / seconds)
    assert figures["matmul_fraction"] == pytest.approx(figures["tflops"] / figures["matmul_tflops"])
    assert list(figures["parts_ms"]) == ["data", "crops", "forward", "backward", "optimiser"]
    assert all(part >= 0 for part in figures["parts_ms"].values())
    twice = 2 * sum(figures["validation_ms"].values()) / 1e3
    assert figures["validation_fraction"] == pytest.approx(twice / (100 * seconds))
    assert figures["peak_memory_gb"] is None or torch.cuda.is_available()


@pytest.mark.usefixtures("small_world")
def test_the_arithmetic_of_a_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the layer table: each multiplication counts for two, and thrice for forward and the two gradients."""
    figures = bench.bench(merge(demo(), SMALL), iterations=1)
    crops = 4 * 9 + 4 * 4
    fc6 = crops * 96 * 9 * 128 * 3
    heads = 4 * (9 * 128 * 512 + 4 * 128 * 512 + 2 * 512 * 5) * 3
    assert figures["tflop_per_iteration"] * 1e12 == pytest.approx(2 * (crops * CONV + fc6 + heads), rel=0.02)


@pytest.mark.usefixtures("small_world")
def test_the_arithmetic_of_an_lstm_is_counted_for_each_permutation() -> None:
    """With the heads and the 8 permutations of `paper`, whose episodes fill the interval: one validation each."""
    own = {name: values for name, values in SMALL.items() if name not in ("permutations", "policy")}
    config = merge(paper(), {**own, "tasks": "T", "model": {"backbone": "tiny"}, "policy": {"num_groups": 2}})
    figures = bench.bench(config, iterations=1)
    crops, orders = 4 * 4, 4 * 8
    fc6 = crops * 96 * 9 * 512 * 3
    first_state = orders * 256 * 4 * 256  # constant, so it has no gradient
    lstm = orders * 4 * (512 + 256) * 4 * 256 * 3 - first_state
    fc8 = orders * 256 * 5 * 3
    assert figures["tflop_per_iteration"] * 1e12 == pytest.approx(2 * (crops * CONV + fc6 + lstm + fc8), rel=0.02)
    once = figures["validation_ms"]["temporal"] / (500 * figures["ms_per_iteration"])
    assert figures["validation_fraction"] == pytest.approx(once)


@pytest.mark.usefixtures("small_world")
def test_to_look_at_candidates_costs_products_that_they_share() -> None:
    candidates = {"grouping": "pairs", "prior_correction": False, "candidates": 3}
    pairs = merge(demo(), {**SMALL, "policy": {**SMALL["policy"], **candidates}})
    of_pairs, of_permutations = (bench.bench(config, iterations=1) for config in (pairs, merge(demo(), SMALL)))
    # fc7 of each part at each position, then fc8 of each candidate
    forward = 4 * (9 * 9 + 4 * 4) * 128 * 512 + 4 * 3 * 2 * 512 * 5
    more = of_pairs["tflop_per_iteration"] - of_permutations["tflop_per_iteration"]
    assert more * 1e12 == pytest.approx(2 * forward, rel=0.02)


@pytest.mark.usefixtures("small_world")
def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    options = [f"--{section}.{name}={value}" for section, values in SMALL.items() for name, value in values.items()]
    assert cli.run(["bench", "--iterations", "2", "--json", str(out), *options]) == 0
    document = json.loads(out.read_text())
    assert document["command"] == "bench" and document["metrics"]["ms_per_iteration"] > 0
    assert document["config"]["iterations"] == 2
    assert document["config"]["synthetic"]["images"] == WORLD["images"], (
        "the world that was generated, not the preset's"
    )
    assert "iterations/s" in capsys.readouterr().out


def test_at_least_one_iteration_is_needed() -> None:
    with pytest.raises(UserError, match="iterations is 0"):
        bench.bench(demo(), iterations=0)


def test_the_stopwatch_adds_up_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    watch = Stopwatch(torch.device("cpu"))
    watch.begin()
    watch.mark("a")
    watch.mark("b")
    watch.begin()
    watch.mark("a")
    assert watch.totals() == {"a": 5000.0, "b": 2000.0}, "what lies between two iterations does not count"


def test_no_test_set_is_read() -> None:
    config = replace(demo(), data=replace(demo().data, test_videos="clips", test_images="photos"))
    assert bench.without_test(config) == replace(demo(), data=replace(demo().data, test_size=0))


def test_with_data_nothing_is_generated() -> None:
    config = replace(demo(), images="photos")
    assert bench.with_world(config) == config


def test_without_data_the_world_has_the_presets_sizes() -> None:
    config = replace(demo(), data=replace(demo().data, image_short_side=77, val_size=1000))
    world = bench.with_world(config).synthetic
    assert (world.image_size, world.frame_size, world.images, world.clips) == (77, 32, 5000, 5000)


@pytest.mark.usefixtures("small_world")
def test_instance_discrimination_is_timed_and_counted() -> None:
    """Two views of each sample, and two layers of the projection head."""
    values = {**SMALL, "tasks": "I", "instance": {"crop_size": 24, "hidden": 32, "output": 16}}
    figures = bench.bench(merge(demo(), values), iterations=1)
    assert list(figures["validation_ms"]) == ["instance"]
    crops = 4 * 2
    head = crops * (96 * 9 * 32 + 32 * 16) * 3
    assert figures["tflop_per_iteration"] * 1e12 == pytest.approx(2 * (crops * CONV + head), rel=0.02)
