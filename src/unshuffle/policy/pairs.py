"""Groups of pairs: how hard a permutation is depends on the sample that it is applied to.

The paper's groups are of permutations, and in each all samples are mixed. Here the permutations are put in order for
each sample by its own softmax ratios, and each group is an equal part of that order. The backbone has seen the sample
anyway, so to look at some more permutations of it costs their heads alone.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unshuffle.policy.groups import Groups
from unshuffle.policy.state import softmax_ratios


@dataclass(frozen=True)
class Choice:
    """How to choose the permutations of each sample among its candidates."""

    log_shares: Tensor
    """(|C|,) how often a member of each group is drawn, up to a constant."""
    noise: Tensor
    """(B, K) standard Gumbel, one for each candidate: the draws are made before anyone knows of what."""
    count: int
    """M: permutations of each sample to choose."""


class Pick:
    """Chooses permutations once the logits of all candidates are known, and remembers which."""

    def __init__(self, candidates: Tensor, choice: Choice) -> None:
        self.candidates, self.choice = candidates, choice
        self.permutations = self.groups = torch.empty(0)

    def __call__(self, logits: Tensor) -> Tensor:
        """The columns (B, M) of the chosen ones."""
        ranks = softmax_ratios(logits.float(), self.candidates).argsort(dim=1).argsort(dim=1)
        groups = _part(ranks, ranks.shape[1], len(self.choice.log_shares))
        # the largest of log p + Gumbel noise are draws without replacement from p
        columns = (self.choice.log_shares[groups] + self.choice.noise).topk(self.choice.count, dim=1).indices
        self.permutations, self.groups = self.candidates.gather(1, columns), groups.gather(1, columns)
        return columns


def gumbel(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log()


def group_pairs(state: Tensor, count: int) -> Groups:
    """Divide the permutations of each sample, the columns of s, into `count` groups of equal size, hardest first."""
    ordered = state.double().sort(dim=0).values
    groups = _part(torch.arange(len(ordered)), len(ordered), count)
    parts = [ordered[groups == group] for group in range(count)]
    return Groups(
        members=torch.empty(0, dtype=torch.int64),
        sizes=torch.tensor([len(part) / len(ordered) for part in parts]),
        medians=torch.tensor([float(np.median(part)) for part in parts]),
    )


def _part(ranks: Tensor, total: int, count: int) -> Tensor:
    """The group of each rank when `total` in order are divided into `count` parts as equal as they can be."""
    return ranks * count // total
