import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from unshuffle.config import Config, demo
from unshuffle.doctor import ADVICE, TOO_FEW, _describe_data, examine
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.tasks.prepare import Data, SplitFacts

SMALL: dict[str, Any] = {
    "device": "cpu",
    "tasks": "S+T+R+I",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 117, "clips": 117, "image_size": 48, "frame_size": 24, "clip_frames": 6},
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
        assert f"{task}: 102 samples to train on, 4 for validation, 11 as the pretext test set" in text
        assert (result["training"], result["validation"], result["test"], result["samples"]) == (102, 4, 11, 8)
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


def write_photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((48 + 2 * number, 64), Image.Resampling.BICUBIC)
        photo.save(folder / f"{number:02}.png")
    return folder


def test_one_sample_cannot_be_examined(config: Config, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 2)
    data = replace(config.data, cache=tmp_path / "cache")
    with pytest.raises(UserError, match="the spatial task has only 1 sample to train on, but doctor needs 2 or more"):
        printed_by(replace(config, images=str(photos), tasks="S", data=data))


def test_too_few_samples_do_not_pass_though_they_can_be_overfitted(config: Config, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 3)
    data = replace(config.data, cache=tmp_path / "cache")
    text, results = printed_by(replace(config, images=str(photos), tasks="S", data=data), steps=150)
    assert results["spatial"]["accuracy"] >= 0.95 and not results["spatial"]["passed"]
    assert "spatial: TOO FEW: 2 samples to train on (expected ≥ 100); accuracy" in text
    assert " on 2 samples after " in text, "not 16"
    assert text.endswith(f"{TOO_FEW}\n") and "can learn" not in text


def test_files_are_measured_and_compared(config: Config, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 9)
    Image.open(photos / "00.png").resize((30, 40)).save(photos / "copy of 00.jpg", quality=60)
    data = replace(config.data, cache=tmp_path / "cache")
    text, _ = printed_by(replace(config, images=str(photos), tasks="S", data=data), steps=1)
    assert "images: median size 56 x 64 px, from 30 x 40 to 64 x 64 (10 files measured)\n" in text
    assert "images: 2 of 10 look nearly like another one" in text
    assert "  such as 00.png and copy of 00.jpg\n" in text


def test_videos_have_durations(config: Config, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    for number, frames in enumerate((5, 10, 20)):
        write_video(tmp_path / "clips" / f"{number}.mp4", frames=frames)
    data = replace(config.data, cache=tmp_path / "cache")
    text, _ = printed_by(replace(config, videos=str(tmp_path / "clips"), tasks="T", data=data), steps=1)
    sentence = "videos: median size 64 x 48 px, from 64 x 48 to 64 x 48; median duration 0.4 s, from 0.2 s to 0.8 s (3 "
    assert sentence in text


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


def test_files_that_were_skipped_are_listed(tmp_path: Path) -> None:
    text = io.StringIO()
    skipped = [(f"{number}.png", "empty") for number in range(12)]
    splits = {"spatial": SplitFacts(training=100, validation=1, test=1, requested=1, source="images", medium="images")}
    data = Data(splits=splits, skipped=skipped, skipped_file=tmp_path / "skipped.csv")
    _describe_data(data, Console(file=text, width=1000))
    assert text.getvalue().splitlines() == [
        "  skipped 0.png, 1.png, 2.png and 9 more: empty",
        f"  all skipped files are listed in {tmp_path}/skipped.csv",
        "spatial: 100 samples to train on, 1 for validation, 1 as the pretext test set",
    ]
    assert len((tmp_path / "skipped.csv").read_text().splitlines()) == 13
