"""Spatial task (S): put the shuffled tiles of an image back in order."""

from typing import ClassVar

import torch

from unshuffle.config import SpatialConfig
from unshuffle.data.batches import Samples
from unshuffle.data.crops import CropPlan, Jitter, uniform_table
from unshuffle.data.source import Items, Source
from unshuffle.errors import UserError
from unshuffle.tasks.base import TaskView
from unshuffle.tasks.ordering import OrderingTask

MIN_TILE = 4  # pixels


class SpatialTask(OrderingTask):
    """Recognise the permutation of an image's tiles."""

    name: ClassVar[str] = "spatial"
    settings: SpatialConfig
    view = TaskView("tiles", "images", "puzzles", in_grid=True, pictured_samples=6, picture_side=80)

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return squares of images, or of frames of videos; raise a UserError if their tiles would be too small."""
        short_side, grid = min(source.size(0)), self.settings.grid
        side = round(short_side * self.settings.image_fraction)
        if side // grid * self.settings.tile_fraction < MIN_TILE:
            raise UserError(f"images with a short side of {short_side} px are too small for spatial.grid {grid}")
        return Samples(source, items, frames=1, side=side)

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> CropPlan:
        """Plan a crop in each cell of the grid; the gaps between them keep edges from giving the order away."""
        cell = side // self.settings.grid
        tile = max(1, round(cell * self.settings.tile_fraction))
        augmentation = self.config.augmentation
        return CropPlan(
            count=batch * self.parts,
            parts=self.parts,
            side=tile,
            room=cell - tile,
            grid=self.settings.grid,
            cell=cell,
            uniforms=uniform_table(batch * self.parts, augmentation, self.device, generator),
            jitter=Jitter.of(augmentation, grayscale=True),
            hflip=augmentation.hflip,
        )
