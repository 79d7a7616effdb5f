"""VOC detection (the paper's Tab. 4): Fast R-CNN on the backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from rich.console import Console, Group
from torch import Tensor

from unshuffle.console import progress, say
from unshuffle.data.batches import Prefetcher
from unshuffle.data.images import read_image
from unshuffle.errors import UserError
from unshuffle.evaluation.average_precision import eleven_point, envelope_area, hit_curve
from unshuffle.evaluation.boxes import mirror
from unshuffle.evaluation.detection_precision import Truth, count_objects, mark_hits
from unshuffle.evaluation.fast_rcnn import Detections, FastRcnn, Targets, detect, detection_loss, sample_regions
from unshuffle.evaluation.finetuning import Recipe, TrainingSetup, batch_items, fine_tune
from unshuffle.evaluation.proposals import Boxes, cleaned, read_proposals, search_proposals
from unshuffle.evaluation.protocol import Result, published_table
from unshuffle.evaluation.voc import CLASSES, ImageSet, VocImage
from unshuffle.evaluation.voc_task import VocTask, as_tensor, class_figures, class_table, percent
from unshuffle.randomness import numpy_rng


@dataclass(frozen=True)
class Schedule:
    """One of the two ways in which Fast R-CNN figures were made."""

    recipe: Recipe
    scales: tuple[int, ...]
    """Short sides to train at."""
    max_side: int
    freeze_conv1: bool


SCHEDULES = {
    "40k": Schedule(Recipe(40_000, lr=0.001, milestones=(30_000,)), (600,), 1000, freeze_conv1=True),
    "150k": Schedule(
        Recipe(150_000, lr=0.001, milestones=(50_000, 100_000)), (480, 576, 688, 864, 1200), 2000, freeze_conv1=False
    ),
}
TEST_SCALE, TEST_MAX_SIDE = 600, 1000


@dataclass(frozen=True)
class VocDetection(VocTask):
    """Where are the objects of 20 classes? mAP of Fast R-CNN after fine-tuning (Tab. 4)."""

    schedule: Literal["40k", "150k"] = "40k"
    """40k: Fast R-CNN's own, conv1 frozen; 150k: of the literature on unsupervised learning, at several scales."""
    scale: int | None = None
    """Short side of all images, for training and test, instead of the schedule's; the longest side grows with it."""
    proposals: tuple[Path, ...] = ()
    """Files of proposals (.npz or .mat); without any, selective search."""
    proposals_cache: Path | None = None
    """Folder where selective search keeps its results; by default in --out."""
    max_proposals: int = 2000
    """Proposals of an image."""
    batch_size: int = 2
    """Images in a step."""
    regions: int = 64
    """Regions of each image in a step."""

    @classmethod
    def quick(cls) -> Self:
        """Minutes on a CPU: few, small images and a short schedule."""
        return cls(
            preset="quick",
            iterations=200,
            lr=0.005,
            hidden=256,
            deviation=0.03,
            scale=200,
            limit=60,
            max_proposals=500,
        )

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, measure on another."""
        devkit = self.devkit()
        backbone, weights, device = self.prepare_backbone()
        network = FastRcnn(backbone, self.hidden, self.deviation, freeze_conv1=self._schedule().freeze_conv1).to(device)
        train = devkit.with_objects(self.train_set, self.limit).keep(
            lambda image: len(image.objects) > 0, "they have no object to learn from"
        )
        test = devkit.with_objects(self.test_set, self.limit)
        self.check_sets(train, test, console)
        proposals = self._proposals([*train.images, *test.images], console)
        self._train(network, train, proposals, self.training_setup(console, weights, train), device)
        found = self._detect(network, test, proposals, console, device)
        return self._result(found, train, test)

    def _schedule(self) -> Schedule:
        schedule = SCHEDULES[self.schedule]
        recipe = schedule.recipe.changed(self.iterations, self.lr)
        if self.scale is None:
            return replace(schedule, recipe=recipe)
        return replace(schedule, recipe=recipe, scales=(self.scale,), max_side=self._test_max_side())

    def _test_max_side(self) -> int:
        return TEST_MAX_SIDE if self.scale is None else self.scale * TEST_MAX_SIDE // TEST_SCALE

    def _proposals(self, images: Sequence[VocImage], console: Console) -> dict[str, Tensor]:
        found = self._raw_proposals(images, console)
        missing = [image.name for image in images if image.name not in found]
        if missing:
            raise UserError(
                f"the proposals name {len(missing)} images of the image sets not at all, first {missing[0]}"
            )
        clean = {image.name: cleaned(found[image.name], image.size, self.max_proposals) for image in images}
        empty = [name for name, boxes in clean.items() if len(boxes) == 0]
        if empty:
            say(console, f"{len(empty)} images have no usable proposal: nothing can be found in them")
        return clean

    def _raw_proposals(self, images: Sequence[VocImage], console: Console) -> Mapping[str, Boxes]:
        if self.proposals:
            return read_proposals([file.expanduser() for file in self.proposals])
        folder = self.proposals_cache or (None if self.out is None else self.out / "proposals")
        return search_proposals(images, None if folder is None else folder.expanduser(), console)

    def _train(
        self,
        network: FastRcnn,
        train: ImageSet,
        proposals: dict[str, Tensor],
        setup: TrainingSetup,
        device: torch.device,
    ) -> None:
        schedule = self._schedule()

        def batch(step: int) -> "list[Scene]":
            rng = numpy_rng(self.seed, "regions", step)
            items = batch_items(self.seed, len(train), step, self.batch_size).tolist()
            scenes = [train.images[item] for item in items]
            return [draw_scene(scene, proposals[scene.name], schedule, self.regions, rng) for scene in scenes]

        def loss(scenes: "list[Scene]") -> Tensor:
            targets = Targets(*(torch.cat(part).to(device) for part in zip(*(s.targets for s in scenes), strict=True)))
            boxes = targets.boxes.split([len(scene.targets.boxes) for scene in scenes])
            logits, offsets = network([scene.pixels.to(device) for scene in scenes], boxes)
            return detection_loss(logits, offsets, targets)

        fine_tune(network, schedule.recipe, batch, loss, setup)

    @torch.no_grad()
    def _detect(
        self, network: FastRcnn, test: ImageSet, proposals: dict[str, Tensor], console: Console, device: torch.device
    ) -> list[Detections]:
        network.eval()
        found: list[Detections] = []
        short, longest = self.scale or TEST_SCALE, self._test_max_side()
        images = Prefetcher(lambda item: resized(test.images[item], short, longest), 0, len(test), self.workers)
        with progress(console, "testing", len(test)) as advance:
            for image, (pixels, scale) in zip(test.images, images, strict=True):
                boxes = proposals[image.name].to(device)
                logits, offsets = network([pixels.to(device)], [boxes * scale])
                found.append(Detections(*(part.cpu() for part in detect(logits, offsets, boxes, image.size))))
                advance(len(found))
        return found

    def _result(self, found: list[Detections], train: ImageSet, test: ImageSet) -> Result:
        area, eleven = detection_precisions(found, test.images)
        source = "proposals from files" if self.proposals else "selective search"
        statement = (
            f"{self.sides(train, test)}; Fast R-CNN, schedule {self.schedule}: "
            f"{self.length(SCHEDULES[self.schedule].recipe)} of {self.batch_size} images; {source}, one scale of "
            f"{self.scale or TEST_SCALE} at test; mAP at overlap 0.5, difficult objects ignored; "
            "11-point is the form of VOC 2007, area that of VOC 2010"
        )
        metrics: dict[str, Any] = {
            "mAP_11_point": percent(eleven),
            "mAP_area": percent(area),
            "AP_11_point": class_figures(CLASSES, eleven),
            "AP_area": class_figures(CLASSES, area),
            **self.counts(train, test),
        }
        ours = {"this network, 11-point": {"detection": metrics["mAP_11_point"]}}
        table = Group(
            class_table(CLASSES, {"AP (11-point)": eleven, "AP (area)": area}),
            "",
            published_table("4", ours, "VOC 2007", same=self.has_usual_images()),
        )
        return Result("voc-detection, mAP of Fast R-CNN", statement, metrics, table)


class Scene(NamedTuple):
    """A training image, scaled and perhaps mirrored, with regions to learn from."""

    pixels: Tensor
    targets: Targets


def draw_scene(image: VocImage, proposals: Tensor, schedule: Schedule, regions: int, rng: np.random.Generator) -> Scene:
    """An image at one of the schedule's scales, mirrored or not."""
    pixels, scale = resized(image, int(rng.choice(schedule.scales)), schedule.max_side)
    objects = torch.tensor([thing.box for thing in image.objects], dtype=torch.float32)
    labels = torch.tensor([thing.label for thing in image.objects])
    if rng.random() < 0.5:
        pixels = pixels.flip(1)
        objects, proposals = (mirror(boxes, image.size[1]) for boxes in (objects, proposals))
    return Scene(pixels, sample_regions(proposals * scale, objects * scale, labels, regions, rng))


def resized(image: VocImage, short: int, longest: int) -> tuple[Tensor, float]:
    """An image with that short side, or less where the long one would be too long, and what it was scaled by."""
    height, width = image.size
    scale = min(short / min(height, width), longest / max(height, width))
    picture = Image.fromarray(read_image(image.path))
    picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    return as_tensor(np.asarray(picture).copy()), scale


def detection_precisions(found: Sequence[Detections], images: Sequence[VocImage]) -> tuple[list[float], list[float]]:
    """AP of each class: by area, and by 11 points."""
    everything = Detections(*(torch.cat(part) for part in zip(*found, strict=True)))
    owners = torch.repeat_interleave(torch.tensor([len(some.scores) for some in found]))
    area, eleven = [], []
    for label in range(len(CLASSES)):
        truths = class_truths(images, label)
        rows = torch.nonzero(everything.labels == label)[:, 0]
        hits = mark_hits(owners[rows].tolist(), everything.boxes[rows], everything.scores[rows].numpy(), truths)
        positives = count_objects(truths)
        curve = hit_curve(hits, positives)
        area.append(envelope_area(curve, positives))
        eleven.append(eleven_point(curve, positives))
    return area, eleven


def class_truths(images: Sequence[VocImage], label: int) -> dict[int, Truth]:
    """The objects of a class in each image that has some."""
    truths = {}
    for number, image in enumerate(images):
        objects = [thing for thing in image.objects if thing.label == label]
        if objects:
            boxes = torch.tensor([thing.box for thing in objects], dtype=torch.float32)
            truths[number] = Truth(boxes, [thing.difficult for thing in objects])
    return truths
