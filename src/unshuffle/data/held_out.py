"""Some held-out samples, stored with a run so that its report can show them after the data has moved."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.batches import Samples
from unshuffle.data.media import decode_jpeg, encode_jpeg, explain
from unshuffle.errors import UserError
from unshuffle.files import atomic_write

QUALITY = 92


@dataclass(frozen=True)
class HeldOut:
    """Some validation samples of a task."""

    pixels: Tensor
    """(N, frames, side, side, 3) bytes"""
    names: Sequence[str]

    @classmethod
    def of(cls, samples: Samples, pixels: Tensor, count: int) -> "HeldOut":
        """Select at most `count` validation samples, evenly spaced."""
        positions = np.linspace(0, len(samples) - 1, min(count, len(samples))).round().astype(int).tolist()
        return cls(pixels[positions], [samples.source.names[samples.items[position]] for position in positions])

    def __len__(self) -> int:
        return len(self.names)


def save_held_out(path: Path, samples: Mapping[str, HeldOut]) -> None:
    """Write them as JPEGs into one file."""
    arrays: dict[str, np.ndarray] = {}
    for task, held_out in samples.items():
        encoded = [encode_jpeg(frame, QUALITY, optimize=True) for frame in held_out.pixels.flatten(0, 1).numpy()]
        arrays[f"{task}_jpeg"] = np.frombuffer(b"".join(encoded), np.uint8)
        arrays[f"{task}_ends"] = np.cumsum([len(jpeg) for jpeg in encoded])
        arrays[f"{task}_names"] = np.array(held_out.names, dtype=np.str_)
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_held_out(path: Path) -> dict[str, HeldOut]:
    """Read what `save_held_out` wrote; nothing if there is no such file."""
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            tasks = [name.removesuffix("_names") for name in stored if name.endswith("_names")]
            return {task: _decode(stored, task) for task in tasks}
    except Exception as error:  # a damaged archive makes numpy raise almost anything, such as tokenize.TokenError
        raise UserError(f"{path} is damaged ({explain(error)}); delete it to go without these pictures") from None


def _decode(stored: Mapping[str, np.ndarray], task: str) -> HeldOut:
    data, names = stored[f"{task}_jpeg"].tobytes(), stored[f"{task}_names"].tolist()
    ends = [0, *stored[f"{task}_ends"].tolist()]
    frames = np.stack([decode_jpeg(data[begin:end]) for begin, end in itertools.pairwise(ends)])
    return HeldOut(torch.from_numpy(frames).unflatten(0, (len(names), -1)), names)
