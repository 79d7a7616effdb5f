"""Instance discrimination (I): tell which two views show the same image (SimCLR; Chen et al., ICML 2020)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Config, InstanceConfig
from unshuffle.data.batches import Samples
from unshuffle.data.crops import Plan
from unshuffle.data.source import Items, Source
from unshuffle.data.squares import Squares
from unshuffle.data.views import VIEWS, ViewPlan, view_uniforms
from unshuffle.models.all_gather import all_gather, rank
from unshuffle.models.batch_norm import synchronise
from unshuffle.models.heads import projection_head
from unshuffle.tasks.base import Example, Network, Outcome, Task, TaskView

CHUNK = 512  # samples of a validation that are compared with all others at a time


class InstanceTask(Task):
    """Each sample is seen in two augmented views; each view must find the other among the views of all samples."""

    name: ClassVar[str] = "instance"
    settings: InstanceConfig
    view = TaskView(
        "views",
        "images",
        "views",
        hint="Among the views of all of them, the nearest to a view should be the other view of the same image.",
    )
    parts = VIEWS
    compares_samples = True

    def __init__(self, config: Config, device: torch.device | None = None) -> None:
        super().__init__(config, device)
        if self.settings.positives == "frames":
            self.medium = "videos"

    @property
    def chance(self) -> float:
        """Error at chance level in training; a validation has another number of samples, and so its own level."""
        return chance_error(self.batch_size)

    @classmethod
    def easier(cls, choices: int) -> dict[str, Any]:
        """Return larger crops, which keep some colour; without jitter an untrained network would find most pairs."""
        return {"views": {"scale": [0.5, 1.0], "grayscale": 0.0, "blur": 0.0}}

    @property
    def _frames(self) -> int:
        """Squares of a sample: a frame for each view, or one image for both."""
        return VIEWS if self.settings.positives == "frames" else 1

    @property
    def min_frames(self) -> int:
        """Frames that a video must have to be used."""
        return self._frames

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return the whole short side of images, or of one or two frames of videos."""
        span = self.settings.frame_span if self._frames > 1 else 0
        return Samples(source, items, self._frames, min(source.size(0)), span)

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> ViewPlan:
        """Plan two views of each sample; without a generator, random ones that depend on the sample alone."""
        views = batch * VIEWS
        return ViewPlan(views, self.settings.views, view_uniforms(views, self.device, generator))

    def render_by_kernel(self, squares: Squares, plan: Plan, dtype: torch.dtype) -> Tensor:
        """Return the normalised views of a batch, (B, 2, 3, S, S); each is channels-last."""
        from unshuffle.kernels.views import render as fused_render  # needs Triton

        assert isinstance(plan, ViewPlan)
        return fused_render(squares, plan, self.settings.crop_size, dtype)

    def build_head(self, features: int) -> nn.Module:
        """Return the projection head."""
        head = projection_head(features, self.settings.hidden, self.settings.output)
        if self.config.model.sync_bn:
            synchronise(head)
        return head

    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """NT-Xent over the views of all processes; the accuracy is how often the other view is the nearest."""
        projections = project(head, features)
        similarities, partners = compare(projections, all_gather(projections).flatten(0, 1), rank() * len(projections))
        loss = F.cross_entropy(similarities / self.settings.temperature, partners)
        return Outcome(loss, (similarities.detach().argmax(dim=1) == partners).float().mean())

    def validate(self, network: Network, crops: Iterable[Tensor]) -> "InstanceValidation":
        """Project both views of every sample."""
        head = network.heads[self.name]
        with network.evaluation_mode():
            chunks = [project(head, network.features({self.name: chunk})[self.name]).cpu() for chunk in crops]
        return InstanceValidation(torch.cat(chunks))

    def examples(self, network: Network, pixels: Tensor, side: int, generator: torch.Generator) -> list[Example]:
        """Return the first view of each sample, its other view, and the view of all samples that is nearest to it."""
        crops = self.crops(Squares.of(pixels).to(self.device))
        projections = self.validate(network, [crops]).projections
        similarities, partners = compare(projections, projections, 0)
        pictures, found = self.pictures(pixels, side).flatten(0, 1), similarities.argmax(dim=1)
        examples = []
        for view in range(0, len(pictures), VIEWS):
            right = bool(found[view] == partners[view])
            shown = {"view": view, "other view": view + 1, "nearest": int(found[view])}
            answer = "finds its other view" if right else "finds another image"
            examples.append(Example({name: pictures[index] for name, index in shown.items()}, right, answer))
        return examples

    def merge(self, parts: Sequence["InstanceValidation"]) -> "InstanceValidation":
        """Return one validation from those of slices of X_val: all samples are compared with each other."""
        return InstanceValidation(torch.cat([part.projections for part in parts]))


def project(head: nn.Module, features: Tensor) -> Tensor:
    """Return the (B, 2, D) projections of (B, 2, F) features, of length 1."""
    projections: Tensor = head(features.flatten(0, 1)).unflatten(0, features.shape[:2])
    return F.normalize(projections.to(torch.promote_types(projections.dtype, torch.float32)), dim=2)


def compare(own: Tensor, everything: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return how alike views are, and for each the index of the other view of its sample.

    `own` are projections (b, 2, D) of consecutive samples, beginning with sample `first` of `everything`, (B, 2, D).
    The similarities are (2b, 2B) cosines; that of a view to itself is -inf, so that it is never chosen.
    """
    anchors, candidates = own.flatten(0, 1), everything.flatten(0, 1)
    index = torch.arange(len(anchors), device=own.device) + VIEWS * first
    with torch.autocast(own.device.type, enabled=False):  # bf16 would round away differences that the softmax sees
        similarities = anchors @ candidates.T
    itself = torch.arange(len(candidates), device=own.device) == index[:, None]
    return similarities.masked_fill(itself, -torch.inf), index ^ 1  # the views of a sample are 2i and 2i + 1


def chance_error(samples: int) -> float:
    """Return the error of picking a view at random among those of so many samples, except itself."""
    return 1 - 1 / (VIEWS * samples - 1)


@dataclass(frozen=True)
class InstanceValidation:
    """How often a view of X_val does not find the other view of its sample, among the views of all samples."""

    projections: Tensor
    """(|X_val|, 2, D), of length 1."""

    @property
    def chance(self) -> float:
        """E at chance level."""
        return chance_error(len(self.projections))

    @property
    def is_finite(self) -> bool:
        """Whether the network's outputs were finite numbers."""
        return bool(self.projections.isfinite().all())

    @cached_property
    def error(self) -> float:
        """E: fraction of views for which another one is nearer."""
        wrong = 0
        for first in range(0, len(self.projections), CHUNK):
            similarities, partners = compare(self.projections[first : first + CHUNK], self.projections, first)
            wrong += int((similarities.argmax(dim=1) != partners).sum())
        return wrong / (VIEWS * len(self.projections))
