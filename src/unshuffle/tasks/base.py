"""A task owns everything that is particular to it: data, crops, targets, head and loss, chance level, figures.

The training loop iterates over tasks and names none. `tasks/rotation.py` is a complete, short example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from unshuffle.accelerator import has_kernels
from unshuffle.config import Config, TaskConfig
from unshuffle.data.batches import Samples
from unshuffle.data.crops import CropPlan, Plan, render
from unshuffle.data.source import Items, Source
from unshuffle.data.sources import Media
from unshuffle.data.squares import WHOLE, RankSlice, Squares
from unshuffle.errors import UserError
from unshuffle.models.registry import Backbone, backbone_features


@dataclass(frozen=True)
class Inputs:
    """One batch of a task on the device."""

    crops: Tensor
    """(B, P, 3, S, S), or a view of it for tasks with one crop a sample."""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """What the loss needs besides the crops."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return {"crops": self.crops, **self.targets}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Inputs":
        """Build inputs from all tensors by name."""
        return cls(tensors["crops"], {name: tensor for name, tensor in tensors.items() if name != "crops"})


@dataclass(frozen=True)
class Outcome:
    """The result of one step for a task, on the device: reading it waits for the step."""

    loss: Tensor
    accuracy: Tensor
    sampled: dict[str, Tensor] = field(default_factory=dict)
    """What was trained on, for tasks that count it."""


class Validation(Protocol):
    """The result of validating a task on X_val."""

    @property
    def error(self) -> float:
        """E: fraction of wrong answers."""

    @property
    def chance(self) -> float:
        """E at chance level."""

    @property
    def is_finite(self) -> bool:
        """Whether the network's outputs were finite numbers."""


@dataclass(frozen=True)
class SampleErrors:
    """A validation that needs no more than the error on each sample."""

    errors: Tensor
    """(|X_val|,) fraction of wrong answers on each sample; NaN where the outputs were not finite."""
    chance: float

    @property
    def error(self) -> float:
        """E: fraction of wrong answers."""
        return float(self.errors.mean())

    @property
    def is_finite(self) -> bool:
        """Whether the network's outputs were finite numbers."""
        return bool(self.errors.isfinite().all())


@dataclass(frozen=True)
class Example:
    """What a task asked about one sample and what the network answered, for a person to look at."""

    pictures: Mapping[str, Tensor]
    """(3, side, side) in [0, 1] by name, on the CPU: the question first, the answer last."""
    right: bool
    answer: str
    """In words."""


class Network(nn.Module):
    """A backbone under the heads of all tasks."""

    def __init__(self, backbone: Backbone, tasks: "Mapping[str, Task]") -> None:
        super().__init__()
        self.backbone, self.tasks = backbone, dict(tasks)
        self._training_pass: Callable[[Tensor], Tensor] = backbone.training_pass
        self.heads = nn.ModuleDict({name: task.build_head(task.features(backbone)) for name, task in tasks.items()})

    def compile_backbone(self) -> None:
        """Compile the backbone's pass in training, unless it has a faster one of its own.

        Each size of crops is compiled when it is first seen.
        """
        if type(self.backbone).training_pass is Backbone.training_pass:
            self._training_pass = torch.compile(self.backbone.training_pass, dynamic=False)

    def features(self, crops: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the backbone's features (B, P, F) of (B, P, 3, S, S) crops; crops of one size share a pass."""
        by_size: dict[int, list[str]] = {}
        for name, parts in crops.items():
            by_size.setdefault(parts.shape[-1], []).append(name)
        features: dict[str, Tensor] = {}
        for names in by_size.values():
            shapes = [crops[name].shape[:2] for name in names]
            images = torch.cat([crops[name].flatten(0, 1) for name in names])
            maps = self._training_pass(images) if self.training else self.backbone(images)
            rows = maps.flatten(1).split([batch * parts for batch, parts in shapes])
            features |= {name: row.unflatten(0, shape) for name, row, shape in zip(names, rows, shapes, strict=True)}
        return {name: features[name] for name in crops}

    def forward(self, inputs: Mapping[str, Inputs]) -> dict[str, Outcome]:
        """Return loss and accuracy of each task."""
        features = self.features({name: batch.crops for name, batch in inputs.items()})
        return {
            name: self.tasks[name].outcome(self.heads[name], features[name], batch.targets)
            for name, batch in inputs.items()
        }

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluate without gradients, and return to the mode before."""
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(was_training)


@dataclass(frozen=True)
class TaskView:
    """How a task is named and shown in reports and figures."""

    noun: str
    """The parts of a sample, in the plural."""
    media_noun: str
    """The samples, in the plural."""
    picture_name: str
    """Name of the PNG of its samples in a run's folder of pictures."""
    in_grid: bool = False
    """Whether the parts form a square grid; otherwise a strip."""
    pictured_samples: int = 4
    """Samples shown in a report."""
    picture_side: int = 64
    """Side of a part in a report in pixels; a multiple of 16, so that no JPEG block spans two parts."""
    hint: str = ""
    """What to see in its examples in a report, in a sentence."""

    def columns(self, parts: int) -> int:
        """Return how many of so many parts are shown side by side."""
        return round(parts**0.5) if self.in_grid else parts


class Task(ABC):
    """A pretext task."""

    name: ClassVar[str]
    """The task's name in configs, metrics and files."""
    parts: int
    """P: crops of a sample that pass the backbone."""
    medium: Literal["images", "videos"] = "images"
    """What the task is made for; tasks on images also take frames of videos."""
    view: ClassVar[TaskView]
    compares_samples: ClassVar[bool] = False
    """Whether the loss compares the samples of a batch, which is then no larger than the number of samples."""
    held_out_samples: ClassVar[int] = 100
    """Validation samples that a run folder keeps for the report."""

    def __init__(self, config: Config, device: torch.device | None = None) -> None:
        self.config, self.device = config, device or torch.device("cpu")
        self.settings: TaskConfig = config.section(self.name)

    @property
    def batch_size(self) -> int:
        """Samples in a step, over all processes."""
        return self.config.batch_size(self.name)

    @property
    @abstractmethod
    def chance(self) -> float:
        """Error at chance level."""

    @classmethod
    def easier(cls, choices: int) -> dict[str, Any]:
        """Return changes of the task's section with which it can memorise a few samples, for `unshuffle doctor`.

        `choices` are the answers to choose from, where the task can have fewer.
        """
        return {}

    # data

    @property
    def min_frames(self) -> int:
        """Frames that a video must have to be used."""
        return 1

    @abstractmethod
    def samples_of(self, source: Source, items: Items) -> Samples:
        """Return the samples that the given items of a source make."""

    def samples(self, media: Media) -> Samples:
        """Return the samples to train on and to hold X_val and the pretext test set out of."""
        samples = self._samples(media.images if self.uses_images(media) else media.videos)
        if samples is None:
            raise UserError(f"the {self.name} task needs videos: give --videos, or choose other --tasks")
        return samples

    def validation_samples(self, media: Media) -> Samples | None:
        """Return the samples that are given for validation alone, if any are."""
        return self._samples(media.val_images if self.uses_images(media) else media.val_videos)

    def test_samples(self, media: Media) -> Samples | None:
        """Return the samples that are given as the pretext test set, if any are."""
        return self._samples(media.test_images if self.uses_images(media) else media.test_videos)

    def uses_images(self, media: Media) -> bool:
        """Return whether the task takes images, and not frames of videos."""
        return self.medium == "images" and media.images is not None

    def _samples(self, given: Source | tuple[Source, Items] | None) -> Samples | None:
        """Return the samples of images, or of the videos that are long enough."""
        if given is None:
            return None
        return self.samples_of(*given) if isinstance(given, tuple) else self.samples_of(given, np.arange(len(given)))

    # crops

    @abstractmethod
    def plan_crops(self, batch: int, side: int, generator: torch.Generator | None = None) -> Plan:
        """Plan the crops of a batch of squares: random ones with a generator, fixed ones such as the centre without."""

    def crops(
        self,
        squares: Squares,
        generator: torch.Generator | None = None,
        part: RankSlice = WHOLE,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return (B, P, 3, S, S) crops of one process's slice of a batch."""
        plan = self.plan_crops(len(squares) * part.world_size, squares.side, generator).slice(part)
        if not has_kernels(self.device):
            return render(squares.pixels(), plan, self.settings.crop_size)
        return self.render_by_kernel(squares, plan, dtype)

    def render_by_kernel(self, squares: Squares, plan: Plan, dtype: torch.dtype) -> Tensor:
        """Return the normalised crops of a batch, (B, P, 3, S, S); each is channels-last."""
        from unshuffle.kernels.crops import render as fused_render  # needs Triton

        assert isinstance(plan, CropPlan)
        return fused_render(squares, plan, self.settings.crop_size, dtype)

    def pictures(self, pixels: Tensor, side: int) -> Tensor:
        """Return the centre crops of (N, frames, H, H, 3) bytes for a person to look at, (N, P, 3, side, side)."""
        squares = pixels.flatten(0, 1)
        plan = self.plan_crops(len(pixels), squares.shape[1])
        crops: Tensor = plan.crop(squares, side).unflatten(0, (-1, plan.parts))
        return crops

    def examples(self, network: "Network", pixels: Tensor, side: int, generator: torch.Generator) -> list[Example]:
        """Return what the network answers about each of (N, frames, H, H, 3) bytes; none for ordering tasks.

        Those show puzzles instead. The generator is the CPU's, so that every device shows the same examples.
        """
        return []

    # targets, head and loss

    def targets(self, batch: int, generator: torch.Generator, part: RankSlice) -> dict[str, Tensor]:
        """Return what the loss needs for one process's slice of a batch; by default the crops are enough."""
        return {}

    def features(self, backbone: Backbone) -> int:
        """Return the number of features of one crop."""
        return backbone_features(backbone, self.settings.crop_size, f"{self.name}.crop_size")

    @abstractmethod
    def build_head(self, features: int) -> nn.Module:
        """Return a new head on top of so many features of each crop."""

    @abstractmethod
    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """Return loss and accuracy for the (B, P, F) features of a batch."""

    # validation

    @abstractmethod
    def validate(self, network: Network, crops: Iterable[Tensor]) -> Validation:
        """Validate on chunks of centre crops, each (B, P, 3, S, S)."""

    @abstractmethod
    def merge(self, parts: Sequence[Any]) -> Validation:
        """Return one validation from those of slices of X_val."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides the head's weights that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        assert not state, f"the {self.name} task has no state"
