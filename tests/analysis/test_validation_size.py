import io
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.validation_size import (
    Spread,
    ValidationSize,
    draw,
    sample_errors,
    sample_sets,
    samples_needed,
    set_spreads,
)
from unshuffle.data.squares import Squares
from unshuffle.models import build_backbone
from unshuffle.models.heads import Head
from unshuffle.options import merge, write_config
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Network
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import prepare

Analyse = Callable[..., AnalysisResult]


def test_spreads_by_hand() -> None:
    errors = np.array([0.0, 0.2, 0.4, 0.6])
    (pairs,) = set_spreads(errors, {2: [[0, 1], [2, 3], [0, 3]]})
    assert pairs.size == 2 and pairs.mean == pytest.approx(mean([0.1, 0.5, 0.3]))
    assert pairs.std == pytest.approx(stdev([0.1, 0.5, 0.3]))
    assert pairs.expected_std == pytest.approx(stdev([0, 0.2, 0.4, 0.6]) / 2**0.5)


def test_sampled_sets() -> None:
    sets = sample_sets(10, (3, 10), 4, np.random.default_rng(0))
    assert {size: len(same_size) for size, same_size in sets.items()} == {3: 4, 10: 4}
    for size, same_size in sets.items():
        assert all(len(set(samples)) == size and set(samples) <= set(range(10)) for samples in same_size)
    assert len({tuple(sorted(samples)) for samples in sets[3]}) > 1


def test_the_std_of_many_sets_is_as_expected() -> None:
    rng = np.random.default_rng(0)
    errors = rng.random(20_000)
    (spread,) = set_spreads(errors, sample_sets(len(errors), (25,), 2000, rng))
    assert spread.std == pytest.approx(spread.expected_std, rel=0.1)


def test_samples_needed() -> None:
    assert samples_needed(Spread(100, 0.5, 0.0, expected_std=0.02), 0.01) == 400
    assert samples_needed(Spread(4, 0.5, 0.0, expected_std=0.011), 0.01) == 5


@pytest.mark.parametrize("task", ["spatial", "temporal"])
def test_errors_of_samples_against_one_permutation_at_a_time(run: Run, task: str) -> None:
    config, permutations = run.config, stored_permutations(run)
    tasks = build_tasks(config, config.task_names, permutations=permutations)
    network, ordering = Network(build_backbone(config.model.backbone), tasks).eval(), tasks[task]
    head = network.heads[task]
    assert isinstance(ordering, OrderingTask) and isinstance(head, Head)
    network.load_state_dict(load_checkpoint(run.checkpoints / "00000012.pt")["network"])
    pixels = prepare(config).validation[task].centres()
    errors = sample_errors(ordering, network, pixels)
    for sample, error in zip(pixels, errors, strict=True):
        crops = ordering.crops(Squares.of(sample[None]))[0]
        with torch.no_grad():
            embeddings = head.embed(network.backbone(crops).flatten(1)[None])[0]
            predicted = [head.classify(embeddings[row][None]).argmax() for row in permutations[task]]
        assert error == pytest.approx(np.mean([int(prediction) != label for label, prediction in enumerate(predicted)]))
    logged = [entry["error"] for entry in run.metrics("validation") if entry["task"] == task]
    assert errors.mean() == pytest.approx(logged[-1])


def test_of_a_run_on_the_synthetic_world(run: Run, analyse: Analyse) -> None:
    analysis = analyse("valset", run=run.folder, sizes=(2, 5), pool=8, device="cpu")
    assert "a synthetic world that the run has not seen (8 spatial, 8 temporal)" in analysis.statement
    lines = [(row["task"], row["iteration"], row["size"]) for row in analysis.rows]
    assert lines == [(task, at, size) for task in ("spatial", "temporal") for at in (4, 8, 12) for size in (2, 5)]
    assert all(0 <= row["mean"] <= 1 and row["std"] >= 0 for row in analysis.rows)
    assert set(analysis.metrics["spatial"]["samples_for_0.01"]) == {4, 8, 12}
    again = analyse("valset", run=run.folder, sizes=(2, 5), pool=8, device="cpu")
    assert again.rows == analysis.rows
    assert len(analysis.figure().axes) == 4


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(9):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 60, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def with_config(run: Run, folder: Path, **changes: object) -> Path:
    """The run as if it had been trained on other data."""
    folder.mkdir()
    write_config(merge(run.config, {"data": {"cache": str(folder / "cache")}, **changes}), folder / "config.yaml")
    for name in ("checkpoints", "permutations", "metrics.jsonl"):
        (folder / name).symlink_to(run.folder / name)
    return folder


def test_of_given_images(run: Run, analyse: Analyse, tmp_path: Path, pictures: Path) -> None:
    folder = with_config(run, tmp_path / "run")
    analysis = analyse("valset", run=folder, images=str(pictures), sizes=(2, 4), device="cpu")
    assert {row["task"] for row in analysis.rows} == {"spatial"}
    assert "of the given data (9 spatial)" in analysis.statement
    with pytest.raises(ValueError, match="only 9 samples for the spatial task"):
        analyse("valset", run=folder, images=str(pictures), sizes=(10,), device="cpu")


def test_of_the_runs_own_images(run: Run, analyse: Analyse, tmp_path: Path, pictures: Path) -> None:
    folder = with_config(run, tmp_path / "run", images=str(pictures))
    analysis = analyse("valset", run=folder, sizes=(2, 4), pool=8, device="cpu")
    assert "of which only 1 were held out from training (8 spatial)" in analysis.statement


def test_user_errors(copied: Run, analyse: Analyse) -> None:
    for options in ({"sizes": (0, 5)}, {"sizes": ()}, {"sets": 1}):
        with pytest.raises(ValueError, match="sets 2 or more"):
            analyse("valset", run=copied.folder, **options)
    for path in copied.checkpoints.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="has no checkpoint"):
        analyse("valset", run=copied.folder)


def test_a_single_checkpoint_can_be_drawn() -> None:
    above, below = draw({"spatial": {100: [Spread(10, 0.5, 0.1, 0.1)]}}).axes
    left, right = above.get_xlim()
    assert left < 100 < right and above.lines[0].get_xydata().tolist() == [[100, 0.5]]  # type: ignore[union-attr]
    assert below.lines[0].get_xydata().tolist() == [[10, 0.1]]  # type: ignore[union-attr]


def test_damaged_checkpoints_are_left_out(copied: Run) -> None:
    oldest, *rest = list_checkpoints(copied.checkpoints)
    oldest.write_bytes(oldest.read_bytes()[:-1])
    text = io.StringIO()
    analysis = ValidationSize(run=copied.folder, sizes=(2, 4), sets=3, pool=6, device="cpu")
    result = analysis.analyse(Console(file=text, width=1000))
    assert f"checkpoint {oldest} is damaged" in text.getvalue() and "and left out" in text.getvalue()
    assert {row["iteration"] for row in result.rows} == {int(path.stem) for path in rest}
