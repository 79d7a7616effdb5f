from dataclasses import replace

import numpy as np
import pytest

from unshuffle.config import Config, DataConfig, SyntheticConfig
from unshuffle.data.sources import Media
from unshuffle.errors import UserError
from unshuffle.tasks.spatial import SpatialTask


def test_the_papers_tiles_are_64_of_85_pixels() -> None:
    plan = SpatialTask(Config()).plan_crops(2, 255)
    assert (plan.side, plan.cell, plan.room, plan.count) == (64, 85, 21, 18)


def test_tiles_lie_in_rows(config: Config) -> None:
    task = SpatialTask(replace(config, spatial=replace(config.spatial, grid=3)))
    assert task.parts == 9
    square, rows, columns = task.plan_crops(1, 60).positions(task.device)
    assert (square == 0).all()
    assert [int(row[0]) // 20 for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [int(column[0]) // 20 for column in columns] == [0, 1, 2] * 3


def test_images_that_are_too_small(config: Config) -> None:
    small = replace(config, images=None, synthetic=SyntheticConfig(images=4, image_size=8), data=DataConfig())
    with pytest.raises(UserError, match=r"short side of 8 px are too small for spatial\.grid 2"):
        SpatialTask(small).samples(Media(small))


def test_samples_are_squares_of_a_fraction_of_the_image(config: Config) -> None:
    config = replace(
        config, synthetic=SyntheticConfig(images=4, image_size=40), spatial=replace(config.spatial, image_fraction=0.8)
    )
    samples = SpatialTask(config).samples(Media(config))
    assert (samples.side, samples.frames) == (32, 1)
    np.testing.assert_array_equal(samples.items, np.arange(4))
