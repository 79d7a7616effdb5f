"""Rotation prediction (R): tell which of four rotations an image has (Gidaris, Singh, Komodakis, ICLR 2018)."""

from typing import ClassVar

import torch
from torch import Tensor

from unshuffle.config import RotationConfig
from unshuffle.data.squares import Squares
from unshuffle.tasks.base import Example, Network, TaskView
from unshuffle.tasks.classification import ClassificationTask

ROTATIONS = 4  # by 0°, 90°, 180° and 270°


class RotationTask(ClassificationTask):
    """Every image passes the backbone in all four rotations, and each is classified."""

    name: ClassVar[str] = "rotation"
    settings: RotationConfig
    view = TaskView(
        "rotations",
        "images",
        "rotations",
        hint="Each was rotated by a multiple of 90° and is turned back by the one that the network recognises.",
    )
    classes, answers = ROTATIONS, range(ROTATIONS)

    def variants(self, crops: Tensor) -> Tensor:
        """Return the crops in all rotations."""
        return torch.cat([crops.rot90(turns, (3, 4)) for turns in range(ROTATIONS)], dim=1)

    def examples(self, network: Network, pixels: Tensor, side: int, generator: torch.Generator) -> list[Example]:
        """Return each image in one random rotation, and turned back by the one that the network recognises."""
        turns = torch.randint(ROTATIONS, (len(pixels),), generator=generator).tolist()
        crops = self.crops(Squares.of(pixels).to(self.device))
        with network.evaluation_mode():
            features = network.features({self.name: crops})[self.name]
            answers = self.classify(network.heads[self.name], features)[0].argmax(dim=-1).cpu()
        examples = []
        for image, turn, recognised in zip(self.pictures(pixels, side)[:, 0], turns, answers.tolist(), strict=True):
            rotated = image.rot90(turn, (1, 2))
            pictures = {"rotated": rotated, "turned back": rotated.rot90(-recognised[turn], (1, 2))}
            error = "" if recognised[turn] == turn else f", not {90 * recognised[turn]}°"
            examples.append(Example(pictures, not error, f"rotated by {90 * turn}°{error}"))
        return examples
