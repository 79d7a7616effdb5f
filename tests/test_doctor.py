import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from unshuffle.config import Config, demo
from unshuffle.doctor import ADVICE, LISTED_FILES, _describe_data, examine
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.tasks.prepare import Data, SplitFacts

SMALL: dict[str, Any] = {
    "device": "cpu",
    "tasks": "S+T+R+I",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 24, "clips": 24, "image_size": 48, "frame_size": 24, "clip_frames": 6},
    "spatial": {"crop_size": 16, "head": {"fc6": 64, "hidden": 128}},
    "temporal": {"crop_size": 16, "frames": 4, "permutations": 20, "head": {"fc6": 64, "hidden": 128}},
    "rotation": {"crop_size": 24, "hidden": 64},
    "instance": {"crop_size": 24, "hidden": 64, "output": 16},
}


@pytest.fixture
def config() -> Config:
    return merge(demo(), SMALL)


def printed_by(config: Config, **options: Any) -> tuple[str, dict[str, dict[str, Any]]]:
    text = io.StringIO()
    results = examine(config, console=Console(file=text, width=1000), **options)
    return text.getvalue(), results


def test_every_task_passes_on_the_synthetic_world(config: Config) -> None:
    text, results = printed_by(config, samples=8, choices=5, steps=150)
    assert list(results) == ["spatial", "temporal", "rotation", "instance"]
    for task, result in results.items():
        assert result["passed"] and result["accuracy"] >= 0.95, task
        assert f"{task}: passed: accuracy {result['accuracy']:.2f} on 8 samples after {result['steps']} steps" in text
        assert f"{task}: 18 samples to train on, 4 for validation, 2 as the pretext test set" in text
    assert [result["chance"] for result in results.values()] == pytest.approx([0.2, 0.2, 0.25, 1 / 15])
    assert text.endswith("All tasks passed: this set-up can learn.\n")


def test_a_tiny_learning_rate_fails(config: Config) -> None:
    tiny = {"optimiser": {"lr": 1e-9}}
    values = {
        "spatial": tiny,
        "temporal": tiny,
        "rotation": tiny,
        "instance": tiny,
        "optim": {"backbone": {"lr": 1e-9}},
    }
    text, results = printed_by(merge(config, values), samples=4, steps=10)
    for task, result in results.items():
        assert not result["passed"] and result["steps"] == 10
        assert (
            f"{task}: FAILED: accuracy {result['accuracy']:.2f} on 4 samples after 10 steps (expected ≥ 0.95; " in text
        )
    assert text.endswith(f"{ADVICE}\n")


def test_the_users_schedule_and_batch_size_do_not_matter(config: Config) -> None:
    """All samples are in every step, at the full learning rate, whatever the config says of batches and warm-up."""
    values = {"tasks": "R", "rotation": {"batch_size": 2}, "optim": {"warmup": 400, "milestones": [1], "batch_size": 2}}
    _, with_schedule = printed_by(merge(config, values), samples=6, steps=20)
    values = {"tasks": "R", "optim": {"warmup": 0, "milestones": []}}
    _, without = printed_by(merge(config, values), samples=6, steps=20)
    assert with_schedule == without


def test_too_few_samples(config: Config, tmp_path: Path) -> None:
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    data = replace(config.data, cache=tmp_path / "cache")
    with pytest.raises(UserError, match="the spatial task has only 1 sample to train on, but doctor needs 2 or more"):
        printed_by(replace(config, images=str(tmp_path), tasks="S", data=data))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 1}, "samples is 1, but must be 2 or more"),
        ({"choices": 1}, "choices is 1, but must be 2 or more"),
        ({"steps": 0}, "steps is 0, but must be 1 or more"),
    ],
)
def test_numbers_that_make_no_sense(config: Config, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        examine(config, **options)


def test_a_config_that_is_impossible(config: Config) -> None:
    with pytest.raises(UserError, match="but must be at least policy"):
        examine(merge(config, {"policy": {"batches": 30}}))


def test_files_that_were_skipped_are_listed() -> None:
    text = io.StringIO()
    skipped = [(f"{number}.png", "empty") for number in range(LISTED_FILES + 2)]
    splits = {"spatial": SplitFacts(training=1, validation=1, test=0, requested=1, source="images", medium="images")}
    _describe_data(Data(splits=splits, skipped=skipped), Console(file=text, width=1000))
    lines = text.getvalue().splitlines()
    assert lines.pop(0) == "spatial task: there is no pretext test set, so errors are those on X_val"
    assert lines[:LISTED_FILES] == [f"  skipped {number}.png: empty" for number in range(LISTED_FILES)]
    described = "spatial: 1 sample to train on, 1 for validation, 0 as the pretext test set"
    assert lines[LISTED_FILES:] == ["  and 2 more", described]
