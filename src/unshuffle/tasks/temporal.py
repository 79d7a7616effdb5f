"""Temporal task (T): put the shuffled frames of a clip back in order."""

from typing import ClassVar

import torch

from unshuffle.config import TemporalConfig
from unshuffle.data.batches import Samples
from unshuffle.data.crops import NO_JITTER, CropPlan, Jitter, uniform_table
from unshuffle.data.source import Items, Source
from unshuffle.tasks.base import TaskView
from unshuffle.tasks.ordering import OrderingTask


class TemporalTask(OrderingTask):
    """The parts of a sample are frames of a clip."""

    name: ClassVar[str] = "temporal"
    settings: TemporalConfig
    medium = "videos"
    view = TaskView("frames", "clips", "clips")
    held_out_samples = 12  # a clip takes as much space as many images

    @property
    def min_frames(self) -> int:
        """Frames that a video must have to be used."""
        return self.settings.frames

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return clips."""
        settings = self.settings
        side = min(source.size(0))
        return Samples(source, items, settings.frames, side, span=settings.frame_span, reverse=settings.reverse)

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> CropPlan:
        """Plan a crop of each frame, so that a common background does not give the order away."""
        crop = max(1, round(side * self.settings.crop_fraction))
        augmentation = self.config.augmentation
        rows = batch if self.settings.shared_crop else batch * self.parts
        return CropPlan(
            count=batch * self.parts,
            parts=self.parts,
            side=crop,
            room=side - crop,
            uniforms=uniform_table(rows, augmentation, self.device, generator),
            jitter=Jitter.of(augmentation, grayscale=False) if self.settings.colour_jitter else NO_JITTER,
            hflip=augmentation.hflip,
        )
