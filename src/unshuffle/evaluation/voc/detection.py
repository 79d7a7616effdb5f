"""VOC detection (the paper's Tab. 4): Fast R-CNN on the backbone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from unshuffle.config import Count
from unshuffle.console import say
from unshuffle.data.media import read_image
from unshuffle.data.voc import CLASSES, Devkit, ImageSet, VocImage
from unshuffle.errors import UserError
from unshuffle.evaluation.features import prefetched
from unshuffle.evaluation.finetuning import Recipe, batch_items, fine_tune
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.voc.base import (
    Setting,
    VocEvaluation,
    byte_tensor,
    class_percentages,
    class_table,
    mean_percent,
)
from unshuffle.evaluation.voc.fast_rcnn import FastRCNN, RegionTargets, detect, detection_loss, sample_regions
from unshuffle.evaluation.voc.metrics import Detections, detection_average_precisions
from unshuffle.evaluation.voc.proposals import clip_proposals, read_proposals, search_proposals
from unshuffle.randomness import numpy_rng
from unshuffle.wording import counted

TrainingSample = tuple[Tensor, RegionTargets]
"""A resized and possibly flipped training image, and regions sampled from it."""


@dataclass(frozen=True)
class Schedule:
    """A published schedule of Fast R-CNN."""

    recipe: Recipe
    scales: tuple[int, ...]
    """Short sides of training images in pixels, one of which is sampled for each image."""
    max_side: int
    """Limit of the long side in pixels; where it applies, the short side is smaller."""
    freeze_conv1: bool


SCHEDULES = {
    "40k": Schedule(Recipe(40_000, lr=0.001, milestones=(30_000,)), (600,), 1000, freeze_conv1=True),
    "150k": Schedule(
        Recipe(150_000, lr=0.001, milestones=(50_000, 100_000)), (480, 576, 688, 864, 1200), 2000, freeze_conv1=False
    ),
}
TEST_SCALE, TEST_MAX_SIDE = 600, 1000


@dataclass(frozen=True)
class VocDetection(VocEvaluation):
    """Fine-tune Fast R-CNN to detect the objects of 20 classes; mAP (Tab. 4)."""

    schedule: Literal["40k", "150k"] = "40k"
    """40k: that of Fast R-CNN, with conv1 frozen; 150k: that of the literature on unsupervised learning, with all
    layers trained at several scales."""
    scale: Count | None = None
    """Short side of all images in pixels, in training and test, instead of the schedule's; the limit of the long side
    changes in proportion. Smaller is faster."""
    proposals: tuple[Path, ...] = ()
    """Files of proposals (.npz or .mat); selective search runs if none are given."""
    proposals_cache: Path | None = None
    """Folder that caches the proposals of selective search, shared between runs; proposals in --out if not given."""
    max_proposals: Count = 2000
    """Use at most this many proposals of each image; fewer are faster."""
    batch_size: Count = 2
    """Images per iteration."""
    regions: Count = 64
    """Regions sampled from each image of an iteration."""

    @classmethod
    def quick(cls) -> Self:
        """Return options for minutes on a CPU: few and small images, narrow layers and a short schedule."""
        return cls(
            preset="quick",
            iterations=200,
            lr=0.005,
            hidden=256,
            init_std=0.03,
            scale=200,
            limit=60,
            max_proposals=500,
        )

    @classmethod
    def published_recipe(cls, schedule: str | None) -> Recipe:
        """Return the schedule of this name."""
        return SCHEDULES[schedule or cls.schedule].recipe

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, test on another."""
        schedule = self._schedule()
        setting = self.prepare(
            lambda backbone: FastRCNN(backbone, self.hidden, self.init_std, freeze_conv1=schedule.freeze_conv1), console
        )
        proposals = self._proposals([*setting.train.images, *setting.test.images], console)
        self._train(setting, proposals, schedule)
        return self._result(setting, self._detect(setting, proposals))

    def image_sets(self, devkit: Devkit) -> tuple[ImageSet, ImageSet]:
        """Return the images to train on, without those that have no objects, and the images to test on."""
        train, test = super().image_sets(devkit)
        return train.filtered(lambda image: len(image.objects) > 0, "it has no objects to train on"), test

    def _schedule(self) -> Schedule:
        schedule = SCHEDULES[self.schedule]
        schedule = replace(schedule, recipe=schedule.recipe.changed(self.iterations, self.lr))
        if self.scale is None:
            return schedule
        return replace(schedule, scales=(self.scale,), max_side=self._test_max_side())

    def _test_max_side(self) -> int:
        return TEST_MAX_SIDE if self.scale is None else self.scale * TEST_MAX_SIDE // TEST_SCALE

    def _proposals(self, images: Sequence[VocImage], console: Console) -> dict[str, Tensor]:
        if self.proposals:
            unclipped = read_proposals([file.expanduser() for file in self.proposals])
        else:
            folder = self.proposals_cache or (None if self.out is None else self.out / "proposals")
            unclipped = search_proposals(images, None if folder is None else folder.expanduser(), console)
        missing = [image.name for image in images if image.name not in unclipped]
        if missing:
            raise UserError(
                f"the files given as --proposals have none for {counted(len(missing), 'images')} of the image sets, "
                f"the first being {missing[0]}; add a file that has them"
            )
        proposals = {
            image.name: clip_proposals(unclipped[image.name], image.size, self.max_proposals) for image in images
        }
        empty = sum(len(boxes) == 0 for boxes in proposals.values())
        if empty:
            say(console, f"{counted(empty, 'images')} without usable proposals: no object can be detected there")
        return proposals

    def _train(self, setting: Setting[FastRCNN], proposals: dict[str, Tensor], schedule: Schedule) -> None:
        train, device = setting.train, setting.device

        def batch(step: int) -> list[TrainingSample]:
            rng = numpy_rng(self.seed, "regions", step)
            items = batch_items(self.seed, len(train), step, self.batch_size).tolist()
            images = [train.images[item] for item in items]
            return [training_sample(image, proposals[image.name], schedule, self.regions, rng) for image in images]

        def loss(samples: list[TrainingSample]) -> Tensor:
            images, regions = zip(*samples, strict=True)
            targets = RegionTargets(*(torch.cat(field).to(device) for field in zip(*regions, strict=True)))
            boxes = targets.boxes.split([len(region_targets.boxes) for region_targets in regions])
            logits, offsets = setting.network([pixels.to(device) for pixels in images], boxes)
            return detection_loss(logits, offsets, targets)

        fine_tune(setting.network, schedule.recipe, batch, loss, setting.setup)

    @torch.no_grad()
    def _detect(self, setting: Setting[FastRCNN], proposals: dict[str, Tensor]) -> list[Detections]:
        network, images = setting.network.eval(), setting.test.images
        scale, max_side = self.scale or TEST_SCALE, self._test_max_side()

        def read(item: int) -> tuple[Tensor, float]:
            return read_resized(images[item], scale, max_side)

        detections: list[Detections] = []
        coming = prefetched(read, len(images), self.workers, setting.setup.console, "testing")
        for image, (pixels, factor) in zip(images, coming, strict=True):
            boxes = proposals[image.name].to(setting.device)
            logits, offsets = network([pixels.to(setting.device)], [boxes * factor])
            detections.append(Detections(*(field.cpu() for field in detect(logits, offsets, boxes, image.size))))
        return detections

    def _result(self, setting: Setting[FastRCNN], detections: list[Detections]) -> Result:
        area, eleven_point = detection_average_precisions(detections, setting.test.images)
        source = "proposals from files" if self.proposals else "selective search"
        statement = (
            f"Fast R-CNN, schedule {self.schedule}: "
            f"{self.iterations_statement(SCHEDULES[self.schedule].recipe)} of {self.batch_size} images; {source}, "
            f"one scale of {self.scale or TEST_SCALE} at test; mAP at IoU 0.5, difficult objects ignored; "
            "11-point is the form of VOC 2007, area that of VOC 2010"
        )
        metrics: dict[str, Any] = {
            "mAP_11_point": mean_percent(eleven_point),
            "mAP_area": mean_percent(area),
            "AP_11_point": class_percentages(CLASSES, eleven_point),
            "AP_area": class_percentages(CLASSES, area),
        }
        ours = {"this network, 11-point": {"detection": metrics["mAP_11_point"]}}
        table = class_table(CLASSES, {"AP (11-point)": eleven_point, "AP (area)": area})
        return self.with_data(Result("voc-detection, mAP of Fast R-CNN", statement, metrics, table), ours, setting)


def training_sample(
    image: VocImage, proposals: Tensor, schedule: Schedule, regions: int, rng: np.random.Generator
) -> TrainingSample:
    """Read an image at one of the schedule's scales, flip it half of the time, and sample regions of it."""
    pixels, factor = read_resized(image, int(rng.choice(schedule.scales)), schedule.max_side)
    objects = torch.tensor([annotated.box for annotated in image.objects], dtype=torch.float32)
    labels = torch.tensor([annotated.label for annotated in image.objects])
    if rng.random() < 0.5:
        pixels = pixels.flip(1)
        objects, proposals = (hflip_boxes(boxes, image.size[1]) for boxes in (objects, proposals))
    return pixels, sample_regions(proposals * factor, objects * factor, labels, regions, rng)


def hflip_boxes(boxes: Tensor, width: int) -> Tensor:
    """Return the boxes in the horizontally flipped image."""
    left, top, right, bottom = boxes.unbind(dim=1)
    return torch.stack([width - right, top, width - left, bottom], dim=1)


def read_resized(image: VocImage, short_side: int, max_side: int) -> tuple[Tensor, float]:
    """Return an image resized to a short side, or smaller if the long side would exceed its limit, and the factor."""
    height, width = image.size
    factor = min(short_side / min(height, width), max_side / max(height, width))
    resized = Image.fromarray(read_image(image.path)).resize(
        (round(width * factor), round(height * factor)), Image.Resampling.BILINEAR
    )
    return byte_tensor(np.array(resized)), factor
