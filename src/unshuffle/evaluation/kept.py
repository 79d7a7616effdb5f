"""Features on disk, a part at a time, for an evaluation that may be broken off."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unshuffle.errors import UserError
from unshuffle.evaluation.identity import digest
from unshuffle.evaluation.skips import Skipped
from unshuffle.files import atomic_write


class Part(NamedTuple):
    """What became of some items that follow one another."""

    values: Tensor
    """(frames, ...)"""
    items: Tensor
    """(frames,) which item each frame is of"""
    skipped: list[Skipped]


@dataclass(frozen=True)
class Kept:
    """A folder of parts."""

    folder: Path
    job: str
    """What the parts are made of and by: others are refused."""

    def __post_init__(self) -> None:
        header = self.folder / "job.txt"
        if header.exists():
            if header.read_text() != self.job:
                raise UserError(
                    f"{self.folder} was begun with other files, weights or options: delete it, or choose another --out"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(header) as draft:
            draft.write_text(self.job)

    def __contains__(self, part: range) -> bool:
        return self._file(part).exists()

    def save(self, part: range, made: Part) -> None:
        """Keep a part."""
        with atomic_write(self._file(part)) as draft, draft.open("wb") as file:
            skipped = np.array(made.skipped, str).reshape(-1, 2)
            np.savez(file, values=made.values.numpy(), items=made.items.numpy(), skipped=skipped)

    def load(self, part: range) -> Part:
        """A part that was kept."""
        with np.load(self._file(part)) as stored:
            skipped = [(str(file), str(reason)) for file, reason in stored["skipped"]]
            return Part(torch.from_numpy(stored["values"]), torch.from_numpy(stored["items"]), skipped)

    def _file(self, part: range) -> Path:
        return self.folder / f"{part.start:09}.npz"


def kept_features(folder: Path | None, job: Iterable[object]) -> Kept | None:
    """The features of a job in a folder, if there is one."""
    return None if folder is None else Kept(folder, digest(job))
