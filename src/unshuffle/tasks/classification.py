"""What tasks have in common that ask questions about the crops of an image and classify the answers.

A new task of this kind names its `classes` and says what it asks; `tasks/rotation.py` is an example.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import ClassificationConfig, Config
from unshuffle.data.batches import Samples
from unshuffle.data.crops import CropPlan, Jitter, uniform_table
from unshuffle.data.source import Items, Source
from unshuffle.data.squares import WHOLE, RankSlice, Squares
from unshuffle.tasks.base import Network, Outcome, SampleErrors, Task, TaskView


class ClassificationTask(Task):
    """Crops an image, or each cell of a grid over it, and classifies questions about the features of the crops.

    A subclass has a `name`, the number of `classes`, and the `answers` to its `questions`; `variants` changes what the
    backbone sees, for example to all rotations of a crop. Crops, head, loss, validation and chance level follow from
    these.
    """

    settings: ClassificationConfig
    view = TaskView("crops", "images", "crops")
    grid: ClassVar[int] = 1
    """Crops lie in the cells of a grid x grid over the image, row by row."""
    classes: ClassVar[int]
    """Number of answers to choose from."""
    answers: ClassVar[Sequence[int]]
    """The class that answers each question, the same for every sample."""

    def __init__(self, config: Config, device: torch.device | None = None) -> None:
        super().__init__(config, device)
        self._labels: dict[torch.device, Tensor] = {}

    @cached_property
    def parts(self) -> int:  # type: ignore[override]  # not in __init__: `variants` may need what a subclass sets later
        """Crops of a sample that the backbone sees."""
        side = self.settings.crop_size
        return self.variants(torch.zeros(1, self.grid**2, 3, side, side)).shape[1]

    @property
    def chance(self) -> float:
        """Error at chance level."""
        return 1 - 1 / self.classes

    def variants(self, crops: Tensor) -> Tensor:
        """Return the (B, P, 3, S, S) crops that the backbone sees, made from those of the grid's cells."""
        return crops

    def questions(self, features: Tensor) -> Tensor:
        """Return the inputs (B, Q, F') of the head, made from the (B, P, F) features; by default one of each crop.

        On a GPU this is part of a CUDA graph, so it must not copy from the CPU: select with slices, not with lists.
        """
        return features

    def classify(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (B, Q, classes) of all questions, and their labels (B, Q)."""
        device = features.device
        if device not in self._labels:  # once, before a step is captured
            self._labels[device] = torch.tensor(self.answers, device=device)
        logits = head(self.questions(features))
        return logits, self._labels[device].expand(logits.shape[:2])

    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return the whole short side of images, or of frames of videos."""
        return Samples(source, items, frames=1, side=min(source.size(0)))

    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> CropPlan:
        """Plan a crop in each cell of the grid."""
        cell, cells = side // self.grid, self.grid**2
        crop = max(1, round(cell * self.settings.crop_fraction))
        augmentation = self.config.augmentation
        return CropPlan(
            count=batch * cells,
            parts=cells,
            side=crop,
            room=cell - crop,
            grid=self.grid,
            cell=cell,
            uniforms=uniform_table(batch * cells, augmentation, self.device, generator),
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
        """Return the variants of the crops, (B, P, 3, S, S); each is channels-last."""
        crops = self.variants(super().crops(squares, generator, part, dtype))
        shaped = crops.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return shaped.view(crops.shape)

    def build_head(self, features: int) -> nn.Module:
        """Return a classifier with one hidden layer."""
        width = self.questions(torch.zeros(1, self.parts, features)).shape[-1]
        hidden = self.settings.hidden
        return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, self.classes))

    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """Cross-entropy of the answers."""
        logits, labels = self.classify(head, features)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return Outcome(loss, (logits.detach().argmax(dim=-1) == labels).float().mean())

    def validate(self, network: Network, crops: Iterable[Tensor]) -> SampleErrors:
        """Ask every question about every sample."""
        errors = []
        with network.evaluation_mode():
            for chunk in crops:
                features = network.features({self.name: chunk})[self.name]
                logits, labels = self.classify(network.heads[self.name], features)
                wrong = (logits.argmax(dim=-1) != labels).double().mean(dim=1)
                errors.append(wrong.where(logits.isfinite().all(dim=-1).all(dim=-1), torch.nan).cpu())
        return SampleErrors(torch.cat(errors), self.chance)

    def merge(self, parts: Sequence[SampleErrors]) -> SampleErrors:
        """Return one validation from those of slices of X_val."""
        return SampleErrors(torch.cat([part.errors for part in parts]), self.chance)
