import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from unshuffle.data.dataset import open_dataset
from unshuffle.errors import UserError
from unshuffle.evaluation.classification import (
    accuracies,
    accuracy,
    chance_accuracies,
    mean_class_accuracy,
    random_crop,
    random_hflip,
    random_resized_crop,
)
from unshuffle.evaluation.features import readable_items
from unshuffle.evaluation.probes import Linear


@pytest.mark.parametrize("classes", [2, 5, 8])
def test_chance_against_random_scores(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(20_000, classes, generator=generator)
    labels = torch.randint(classes, (20_000,), generator=generator)
    measured = accuracies(scores, labels)
    assert {key: chance_accuracies(classes)[key] for key in measured} == pytest.approx(measured, abs=1.5)
    assert chance_accuracies(classes)["top5"] <= 100


def test_accuracies_against_loops() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(60, 7)), rng.integers(0, 6, 60)  # nothing is of the last class
    ours = accuracies(torch.from_numpy(scores), torch.from_numpy(labels))
    for k in (1, 5):
        hits = sum(label in np.argsort(-row)[:k] for row, label in zip(scores, labels, strict=True))
        assert ours[f"top{k}"] == pytest.approx(100 * hits / 60)
    each = [np.mean([scores[i].argmax() == label for i in range(60) if labels[i] == label]) for label in range(6)]
    assert mean_class_accuracy(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(100 * np.mean(each))


def test_equal_scores_are_not_counted_as_correct() -> None:
    assert accuracy(torch.zeros(5, 3), torch.tensor([0, 0, 1, 2, 0])) == 0
    assert accuracy(torch.full((5, 3), torch.nan), torch.tensor([0, 0, 1, 2, 0])) == 0
    assert list(accuracies(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))) == ["top1"]


def test_training_crops() -> None:
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:30, :40]
    pixels = np.stack([row, column, row], axis=2).astype(np.uint8)
    corners = {tuple(random_crop(pixels, 27, rng)[0, 0]) for _ in range(200)}
    assert {corner[0] for corner in corners} == set(range(4)) and {corner[1] for corner in corners} == set(range(14))
    heights = [np.ptp(random_resized_crop(pixels, 20, rng)[:, :, 0].astype(int)) for _ in range(200)]
    assert min(heights) >= 12 and max(heights) >= 26 and random_resized_crop(pixels, 20, rng).shape == (20, 20, 3)
    flips = [bool((random_hflip(pixels, rng) == pixels).all()) for _ in range(200)]
    assert 70 < sum(flips) < 130


def test_batches_are_functions_of_the_iteration(classes: tuple[Path, Path]) -> None:
    dataset = readable_items(open_dataset(classes[0]), Console(quiet=True), workers=2, cache=None)
    assert len(dataset) == 24 and [Path(file).name for file, _ in dataset.skipped] == ["broken.jpg"]
    batch = Linear(batch_size=10, train=classes[0]).batches(dataset, random_crop)
    first, again, later = batch(0), batch(0), batch(1)
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.labels, again.labels)
    assert not torch.equal(first.pixels[:5], later.pixels[:5])
    seen = torch.cat([batch(iteration).labels for iteration in range(12)])  # five epochs of 24
    assert seen.bincount().tolist() == [40, 40, 40]


def test_a_file_that_vanishes_is_one_sentence(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text("no image")
    batch = Linear(batch_size=2, train=tmp_path).batches(open_dataset(tmp_path), random_crop)
    with pytest.raises(UserError, match=r"1.png could be read before and no longer can"):
        batch(0)


def test_the_identity_of_a_training_follows_options_and_files(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train = shutil.copytree(classes[0], tmp_path / "train")
    evaluation = Linear(weights="random:tiny", device="cpu", train=train, test=classes[1])

    def identity(evaluation: Linear) -> str:
        return evaluation.training_setup(evaluation.prepare(Console(quiet=True))).identity

    first = identity(evaluation)
    assert identity(replace(evaluation, out=tmp_path, workers=7, preset="quick", test=train)) == first
    assert identity(replace(evaluation, seed=1)) != first and identity(replace(evaluation, lr=1.0)) != first
    (train / "down" / "0.png").unlink()
    assert identity(evaluation) != first
