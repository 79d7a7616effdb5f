from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unshuffle.config import Config, SyntheticConfig, TemporalConfig
from unshuffle.data.batches import BatchStream
from unshuffle.data.sources import Media
from unshuffle.data.squares import Squares
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.errors import UserError
from unshuffle.tasks.temporal import TemporalTask


def flat_clips(count: int, height: int, width: int) -> SyntheticSource:
    """Clips of 12 frames whose colours tell row and column."""
    rows, columns = np.mgrid[:height, :width].astype(np.uint8)
    frame = np.stack([rows, columns, np.zeros_like(rows)], axis=-1)
    pixels = np.broadcast_to(frame, (count, 12, *frame.shape))
    return SyntheticSource([str(item) for item in range(count)], np.zeros(count, np.int64), ("flat",), pixels)


def corners(task: TemporalTask, height: int, width: int) -> np.ndarray:
    """(N, frames, 2) top and left of the crops of 400 training batches of 4, told by their pixels."""
    stream = BatchStream(task.samples_of(flat_clips(4, height, width), np.arange(4)), 4, 0, "temporal")
    generator, found = torch.Generator().manual_seed(0), []
    for step in range(400):
        squares = stream.batch(step)
        assert isinstance(squares, Squares)
        plan = task.plan_crops(4, squares.side, generator)
        assert plan.side == 119
        found.append(plan.crop(squares.pixels(), plan.side)[:, :2, 0, 0].view(4, task.parts, 2))
    return (torch.cat(found) * 255).round().long().numpy()


def task_of(**temporal: Any) -> TemporalTask:
    """The paper's temporal task in true colours."""
    return TemporalTask(Config(temporal=TemporalConfig(colour_jitter=False, crop_fraction=224 / 240, **temporal)))


def test_the_square_that_is_read_is_the_crop() -> None:
    plan = TemporalTask(Config()).plan_crops(2, 119)
    assert (plan.side, plan.room, plan.parts, plan.count) == (119, 0, 8, 16)


@pytest.mark.parametrize(("height", "width"), [(128, 170), (170, 128), (128, 128)])
def test_each_frame_is_cropped_anywhere_in_the_whole_frame(height: int, width: int) -> None:
    """The paper crops 224 x 224 of 320 x 240 pixels: 96 px of room across, 43 % of the crop, and 16 down."""
    tops, lefts = np.moveaxis(corners(task_of(), height, width), -1, 0)
    assert set(tops.flat) == set(range(height - 119 + 1)) and set(lefts.flat) == set(range(width - 119 + 1))
    for places, length in ((tops, height), (lefts, width)):
        spread = np.ptp(places, axis=1)
        assert spread.max() == length - 119, "within one clip"
        # mean of largest minus smallest of n uniform places
        assert spread.mean() == pytest.approx((length - 119) * 7 / 9, rel=0.1)
    assert pytest.approx((320 - 224) / 224, rel=0.01) == (170 - 119) / 119


def test_a_shared_crop_is_cropped_anywhere_but_at_one_place_in_all_frames() -> None:
    places = corners(task_of(shared_crop=True), 128, 170)
    assert (places == places[:, :1]).all()
    assert set(places[..., 0].flat) == set(range(10)) and set(places[..., 1].flat) == set(range(52))


@pytest.mark.parametrize("shared", [False, True])
def test_validation_takes_the_centre_of_every_frame(shared: bool) -> None:
    task = task_of(shared_crop=shared)
    centres = task.samples_of(flat_clips(2, 128, 170), np.arange(2)).centres()
    assert centres.shape == (2, 8, 119, 119, 3)
    assert (centres[:, :, 0, 0, :2] == torch.tensor([4, 25])).all()
    crops = task.pictures(centres, 119)
    torch.testing.assert_close(crops, centres.permute(0, 1, 4, 2, 3) / 255)


def test_even_the_smallest_crop_has_a_pixel() -> None:
    task = TemporalTask(Config(temporal=TemporalConfig(crop_fraction=0.01)))
    assert task.samples_of(flat_clips(1, 16, 16), np.arange(1)).side == 1


def test_samples_are_clips_with_the_configured_frames(config: Config) -> None:
    config = replace(
        config,
        synthetic=SyntheticConfig(clips=3, frame_size=16, clip_frames=5),
        temporal=replace(config.temporal, frame_span=4, reverse=True),
    )
    task = TemporalTask(config)
    samples = task.samples(Media(config, min_frames=task.min_frames))
    assert (samples.frames, samples.side, samples.span, samples.reverse) == (3, 15, 4, True)
    assert samples.window_per_frame
    assert task.min_frames == 3


def test_without_videos_there_is_nothing_to_order(config: Config) -> None:
    config = replace(config, images="somewhere")
    with pytest.raises(UserError, match="needs videos: give --videos"):
        TemporalTask(config).samples(Media(config))
