"""The pictures of a run, and the numbers behind them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.assembly import build_trainer
from unshuffle.config import Config, demo
from unshuffle.data import shuffle
from unshuffle.data.prepare import prepare
from unshuffle.data.squares import Squares
from unshuffle.pretraining import run_pretraining
from unshuffle.report.pictures import attempt, draw_pictures, in_place, mosaic, restored_order
from unshuffle.run import Run
from unshuffle.training.trainer import Trainer

torch.set_num_threads(1)


def tiny_config(**changes: object) -> Config:
    config = demo()
    world = {
        "images": 24,
        "clips": 16,
        "image_size": 48,
        "frame_size": 24,
        "clip_frames": 8,
        "gallery": 48,
        "queries": 24,
    }
    return replace(
        config,
        device="cpu",
        data=replace(config.data, val_size=6, workers=1),
        synthetic=replace(config.synthetic, **world),
        permutations=replace(config.permutations, spatial=5, temporal=5, per_sample=2),
        optim=replace(config.optim, iterations=2, batch_size=4, warmup=0, milestones=()),
        policy=replace(config.policy, groups=2),
        log=replace(config.log, train_every=1),
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    config = tiny_config()
    return build_trainer(config, prepare(config))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_pretraining(tiny_config(out=tmp_path_factory.mktemp("run")))


def put_together(shown: list[int], predicted: list[int]) -> list[int]:
    """What stands at position t was, says the network, taken from source position ψ̂[t]: so put it there."""
    restored = [-1] * len(shown)
    for position, source in enumerate(predicted):
        restored[source] = shown[position]
    return restored


def test_restored_order_against_moving_the_parts_one_by_one() -> None:
    rng = np.random.default_rng(0)
    shown, predicted = (np.stack([rng.permutation(9) for _ in range(20)]) for _ in range(2))
    restored = restored_order(torch.from_numpy(shown), torch.from_numpy(predicted))
    assert restored.tolist() == [put_together(a, b) for a, b in zip(shown.tolist(), predicted.tolist(), strict=True)]


def test_a_perfect_prediction_gives_the_sample_back() -> None:
    shown = torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0]])
    parts = torch.rand(2, 4, 3, 5, 5)
    shuffled = shuffle.permute(parts, shown[:, None])[:, 0]
    back = restored_order(torch.arange(4).expand(2, 4), shown)
    assert torch.equal(shuffle.permute(shuffled, back[:, None])[:, 0], parts)
    assert restored_order(shown, shown).tolist() == [[0, 1, 2, 3]] * 2
    assert in_place(restored_order(shown, shown)).tolist() == [4, 4]


def test_in_place_counts_positions() -> None:
    assert in_place(torch.tensor([[0, 1, 2], [0, 2, 1], [1, 2, 0]])).tolist() == [3, 1, 0]


def test_mosaic_puts_parts_row_by_row_with_gaps() -> None:
    parts = torch.linspace(0, 0.8, 6)[:, None, None, None].expand(6, 3, 4, 4)
    picture = mosaic(parts, columns=3, width=35, gap=1)
    assert picture.shape == (23, 35, 3)
    assert np.allclose(picture[::12, ::12, 0], parts[:, 0, 0, 0].numpy().reshape(2, 3), atol=1 / 64)
    assert (picture[11] == 1).all() and (picture[:, 23] == 1).all()


@pytest.mark.parametrize(("task", "parts"), [("spatial", 9), ("temporal", 6)])
def test_attempt_is_what_the_network_says(trainer: Trainer, task: str, parts: int) -> None:
    trainer.network.train()
    attempts = attempt(trainer, task, 4)
    assert trainer.network.training
    assert attempts.parts.shape == (4, parts, 3, 24, 24)
    assert 0 <= attempts.parts.min() < attempts.parts.max() <= 1
    trainer.network.eval()
    chosen = attempts.pixels
    for sample in range(4):
        shown = attempts.shown[sample]
        logits = trainer.network({task: trainer.crops(task, Squares.of(chosen[[sample]]))}, {task: shown[None, None]})[
            task
        ]
        assert torch.equal(trainer.permutations[task][logits[0, 0].argmax()], attempts.predicted[sample])
        words, _ = attempts.verdict(sample)
        assert (words == "recognised") == torch.equal(shown, attempts.predicted[sample])
    assert torch.equal(attempt(trainer, task, 4).shown, attempts.shown)


def test_attempt_takes_what_there_is(trainer: Trainer) -> None:
    assert len(attempt(trainer, "spatial", 50)) == 6


def test_a_run_leaves_all_four_pictures(run: Run) -> None:
    drawn = sorted(run.pictures.iterdir())
    assert [path.name for path in drawn] == ["clips.png", "curves.png", "neighbours.png", "puzzles.png"]
    for path in drawn:
        with Image.open(path) as image:
            assert 1200 <= image.width <= 1600 and 300 <= image.height <= 1600
            assert np.asarray(image.convert("L")).std() > 5
        assert path.stat().st_size < 1_000_000


def test_only_what_can_be_drawn(tmp_path: Path) -> None:
    config = tiny_config(tasks="S")
    config = replace(config, data=replace(config.data, val_size=1), shuffle=replace(config.shuffle, grid=2))
    trainer = build_trainer(config, prepare(config))
    trainer.monitor = None
    assert [path.name for path in draw_pictures(trainer, Run(tmp_path))] == ["puzzles.png"]
