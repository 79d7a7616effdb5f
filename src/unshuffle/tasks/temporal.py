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
    """Recognise the permutation of a clip's frames."""

    name: ClassVar[str] = "temporal"
    settings: TemporalConfig
    medium = "videos"
    view = TaskView("frames", "clips", "clips")
    held_out_samples = 12  # a clip takes as much space as many images

    @property
    def min_frames(self) -> int:
        """Frames that a video must have to be used."""
        return self.settings.frames

    @property
    def frame_span(self) -> int:
        """Frames of a video that the parts are taken from; 0 means all of them."""
        return self.settings.frame_span

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return clips, as a square of each frame that is its crop."""
        settings = self.settings
        return Samples(
            source,
            items,
            settings.frames,
            side=max(1, round(min(source.size(0)) * settings.crop_fraction)),
            span=self.frame_span,
            reverse=settings.reverse,
            # so that a common background does not give the order away
            window_per_frame=not settings.shared_crop,
        )

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> CropPlan:
        """Plan flips and colours of squares that are the crops already: each was read from its own place in a frame."""
        augmentation = self.config.augmentation
        rows = batch if self.settings.shared_crop else batch * self.parts
        return CropPlan(
            count=batch * self.parts,
            parts=self.parts,
            side=side,
            room=0,
            uniforms=uniform_table(rows, augmentation, self.device, generator),
            jitter=Jitter.of(augmentation, grayscale=False) if self.settings.colour_jitter else NO_JITTER,
            hflip=augmentation.hflip,
        )
