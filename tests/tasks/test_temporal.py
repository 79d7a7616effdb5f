from dataclasses import replace

import pytest

from unshuffle.config import Config, SyntheticConfig
from unshuffle.data.sources import Media
from unshuffle.errors import UserError
from unshuffle.tasks.temporal import TemporalTask


def test_a_crop_is_a_fraction_of_the_frame() -> None:
    plan = TemporalTask(Config()).plan_crops(2, 128)
    assert (plan.side, plan.room, plan.parts, plan.count) == (112, 16, 8, 16)


def test_samples_are_clips_with_the_configured_frames(config: Config) -> None:
    config = replace(
        config,
        synthetic=SyntheticConfig(clips=3, frame_size=16, clip_frames=5),
        temporal=replace(config.temporal, frame_span=4, reverse=True),
    )
    task = TemporalTask(config)
    samples = task.samples(Media(config, min_frames=task.min_frames))
    assert (samples.frames, samples.side, samples.span, samples.reverse) == (3, 16, 4, True)
    assert task.min_frames == 3


def test_without_videos_there_is_nothing_to_order(config: Config) -> None:
    config = replace(config, images="somewhere")
    with pytest.raises(UserError, match="needs videos: give --videos"):
        TemporalTask(config).samples(Media(config))
