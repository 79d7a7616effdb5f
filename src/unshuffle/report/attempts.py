"""What the network makes of shuffled samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unshuffle.permutations import inverse
from unshuffle.randomness import torch_generator
from unshuffle.report.snapshot import Snapshot


def restored_order(shown: Tensor, predicted: Tensor) -> Tensor:
    """Which part stands at each position when parts shuffled by ψ are put back as if by ψ̂; rows of (..., P).

    0, 1, 2 ... where ψ̂ is ψ.
    """
    back = torch.from_numpy(inverse(predicted.cpu().numpy())).to(shown.device)
    return shown.gather(-1, back)


def in_place(order: Tensor) -> Tensor:
    """Number of parts that stand where they belong, for each row of (..., P)."""
    return (order == torch.arange(order.shape[-1], device=order.device)).sum(dim=-1)


@dataclass(frozen=True)
class Attempts:
    """Validation samples, the permutations they were shown in, and those that the network recognised in them."""

    names: Sequence[str]
    pixels: Tensor
    """(N, frames, H, W, 3) bytes"""
    parts: Tensor
    """(N, P, 3, S, S) in [0, 1]: the crops that the network sees, in their true order and colours."""
    shown: Tensor
    """(N, P) ψ"""
    predicted: Tensor
    """(N, P) ψ̂"""

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def restored(self) -> Tensor:
        """(N, P) order of the parts as the network puts them together."""
        return restored_order(self.shown, self.predicted)

    def recognised(self, sample: int) -> bool:
        """Whether the whole order of a sample was recognised."""
        return torch.equal(self.shown[sample], self.predicted[sample])

    def verdict(self, sample: int, parts: str = "") -> str:
        """How the network did on a sample, in words."""
        if self.recognised(sample):
            return "recognised"
        return f"{int(in_place(self.restored[sample]))} of {self.shown.shape[1]} {parts}in place"


@torch.no_grad()
def attempt(snapshot: Snapshot, task: str, count: int) -> Attempts:
    """Let the network put up to `count` of the samples together, each in a random order of Ψ."""
    samples, permutations = snapshot.held_out[task], snapshot.permutations[task]
    # Drawn on the CPU, so that every device is shown the same puzzles.
    draw = torch_generator(torch.device("cpu"), snapshot.config.seed, "pictures", task)
    chosen = torch.randperm(len(samples), generator=draw)[:count]
    pixels = samples.pixels[chosen]
    labels = torch.randint(len(permutations), (len(pixels),), generator=draw).to(permutations.device)
    was_training = snapshot.network.training
    snapshot.network.eval()
    logits = snapshot.network({task: snapshot.crops(task, pixels)}, {task: permutations[labels][:, None]})[task]
    snapshot.network.train(was_training)
    predicted = permutations[logits[:, 0].argmax(dim=1)]
    parts = snapshot.parts(task, pixels, snapshot.config.shuffle.crop_size)
    names = [samples.names[position] for position in chosen.tolist()]
    return Attempts(names, pixels, parts, permutations[labels].cpu(), predicted.cpu())
