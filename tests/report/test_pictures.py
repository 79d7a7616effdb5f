"""The pictures of a run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from unshuffle.config import Config
from unshuffle.options import write_config
from unshuffle.report.pictures import draw_pictures, mosaic
from unshuffle.report.snapshot import Snapshot, hold_out
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import prepare
from unshuffle.training.trainer import build_trainer


def test_mosaic_puts_parts_row_by_row_with_gaps() -> None:
    parts = torch.linspace(0, 0.8, 6)[:, None, None, None].expand(6, 3, 4, 4)
    picture = mosaic(parts, columns=3, width=35, gap=1)
    assert picture.shape == (23, 35, 3)
    assert np.allclose(picture[::12, ::12, 0], parts[:, 0, 0, 0].numpy().reshape(2, 3), atol=1 / 64)
    assert (picture[11] == 1).all() and (picture[:, 23] == 1).all()


def test_a_run_has_all_four_pictures(run: Run) -> None:
    drawn = sorted(run.pictures.iterdir())
    assert [path.name for path in drawn] == ["clips.png", "neighbours.png", "puzzles.png"]
    for path in drawn:
        with Image.open(path) as image:
            assert 600 <= image.width <= 1600 and 300 <= image.height <= 1600
            assert np.asarray(image.convert("L")).std() > 5
        assert path.stat().st_size < 1_000_000


def test_a_task_that_orders_nothing_has_no_puzzles(all_tasks_run: Run, rotation_run: Run) -> None:
    names = [sorted(path.name for path in each.pictures.iterdir()) for each in (all_tasks_run, rotation_run)]
    assert names[0] == ["clips.png", "neighbours.png", "puzzles.png"]
    assert names[1] == ["neighbours.png"]


def test_a_run_with_few_metrics_has_fewer_pictures(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(tasks="S")
    config = replace(config, data=replace(config.data, val_size=1), spatial=replace(config.spatial, grid=2))
    trainer = build_trainer(config, prepare(config))
    snapshot = Snapshot.of(trainer, hold_out(trainer))
    write_config(config, tmp_path / "config.yaml")
    assert [path.name for path in draw_pictures(snapshot, None, Run(tmp_path))] == ["puzzles.png"]
