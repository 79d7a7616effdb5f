"""Rotation prediction (R): tell which of four rotations an image has (Gidaris, Singh, Komodakis, ICLR 2018)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import RotationConfig
from unshuffle.data.batches import Samples
from unshuffle.data.crops import CropPlan, Jitter, uniform_table
from unshuffle.data.source import Items, Source
from unshuffle.data.squares import WHOLE, RankSlice, Squares
from unshuffle.tasks.base import Example, Network, Outcome, SampleErrors, Task, TaskView

ROTATIONS = 4  # by 0°, 90°, 180° and 270°


class RotationTask(Task):
    """Every image passes the backbone in all four rotations, and each is classified."""

    name: ClassVar[str] = "rotation"
    settings: RotationConfig
    view = TaskView("rotations", "images", "rotations")
    parts = ROTATIONS
    chance = 1 - 1 / ROTATIONS

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return the whole short side of images, or of frames of videos."""
        return Samples(source, items, frames=1, side=min(source.size(0)))

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> CropPlan:
        """Plan one crop of each image."""
        crop = max(1, round(side * self.settings.crop_fraction))
        augmentation = self.config.augmentation
        return CropPlan(
            count=batch,
            parts=1,
            side=crop,
            room=side - crop,
            uniforms=uniform_table(batch, augmentation, self.device, generator),
            jitter=Jitter.of(augmentation, grayscale=True),
            hflip=augmentation.hflip,
        )

    def crops(
        self,
        squares: Squares,
        generator: torch.Generator | None = None,
        part: RankSlice = WHOLE,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the crops in all rotations, (B, 4, 3, S, S)."""
        upright = super().crops(squares, generator, part, dtype)[:, 0]
        rotated = torch.stack([upright.rot90(turns, (2, 3)) for turns in range(ROTATIONS)], dim=1)
        crops: Tensor = (
            rotated.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (-1, ROTATIONS))
        )
        return crops

    def build_head(self, features: int) -> nn.Module:
        """Return a classifier with one hidden layer."""
        return nn.Sequential(
            nn.Linear(features, self.settings.hidden), nn.ReLU(), nn.Linear(self.settings.hidden, ROTATIONS)
        )

    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """Cross-entropy of the rotations."""
        logits, labels = self._classify(head, features)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return Outcome(loss, (logits.detach().argmax(dim=-1) == labels).float().mean())

    def _classify(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, 4, 4) logits and (B, 4) labels."""
        labels = torch.arange(ROTATIONS, device=features.device).expand(len(features), -1)
        return head(features), labels

    def validate(self, network: Network, crops: Iterable[Tensor]) -> SampleErrors:
        """Classify every sample in all rotations."""
        errors = []
        with network.evaluation_mode():
            for chunk in crops:
                features = network.features({self.name: chunk})[self.name]
                logits, labels = self._classify(network.heads[self.name], features)
                wrong = (logits.argmax(dim=-1) != labels).double().mean(dim=1)
                errors.append(wrong.where(logits.isfinite().all(dim=-1).all(dim=-1), torch.nan).cpu())
        return SampleErrors(torch.cat(errors), self.chance)

    def examples(self, network: Network, pixels: Tensor, side: int, generator: torch.Generator) -> list[Example]:
        """Return each image in one random rotation, and turned back by the one that the network recognises."""
        turns = torch.randint(ROTATIONS, (len(pixels),), generator=generator).tolist()
        crops = self.crops(Squares.of(pixels).to(self.device))
        with network.evaluation_mode():
            features = network.features({self.name: crops})[self.name]
            answers = self._classify(network.heads[self.name], features)[0].argmax(dim=-1).cpu()
        examples = []
        for image, turn, recognised in zip(self.pictures(pixels, side)[:, 0], turns, answers.tolist(), strict=True):
            rotated = image.rot90(turn, (1, 2))
            pictures = {"rotated": rotated, "turned back": rotated.rot90(-recognised[turn], (1, 2))}
            error = "" if recognised[turn] == turn else f", not {90 * recognised[turn]}°"
            examples.append(Example(pictures, not error, f"rotated by {90 * turn}°{error}"))
        return examples

    def merge(self, parts: Sequence[SampleErrors]) -> SampleErrors:
        """Return one validation from those of slices of X_val."""
        return SampleErrors(torch.cat([part.errors for part in parts]), self.chance)
