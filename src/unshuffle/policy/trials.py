"""What a draw is worth, by trial: for each group the next iterations are trained with it preferred, and undone.

All trials begin with the same weights and see the same batches, which takes most of the noise away. The trainer runs
them; here is what they say, and how much of it to believe.
"""

import torch
from torch import Tensor

PREFERENCE = 0.5
"""Share of the draws that a trial takes from the group that it prefers, beyond what all groups get."""

ROUNDING = 1e-20
"""A variance that equal errors may have: the least real one is that of a single pair, 1e-14 with 10⁷ pairs."""


def one_group_preferred(sizes: Tensor, group: int) -> Tensor:
    """(|C|,) probabilities of the groups in a trial."""
    alone = torch.zeros_like(sizes)
    alone[group] = 1.0
    return PREFERENCE * alone + (1 - PREFERENCE) * sizes


def worths(errors: Tensor, count: int) -> Tensor:
    """(count,) what a draw of each group is worth, by the (trials, samples) errors on each sample of X_val.

    That is how far the mean error after its trial lies below the mean of all, in units of the deviation between trials,
    less the share that chance has in it: other samples would have shown other differences. With F, the variance between
    trials over that which the scatter of their differences from sample to sample makes, it is 1 / F of the variance.
    Groups that were not tried come last and are worth 0, the average.
    """
    found, errors = torch.zeros(count), errors.double()
    trials, samples = errors.shape
    better = errors.mean() - errors.mean(dim=1)
    variance = float(better.square().sum()) / max(trials - 1, 1)
    if variance < ROUNDING:
        return found
    scatter = errors - errors.mean(dim=0) + better[:, None]
    by_chance = float(scatter.square().sum()) / max((trials - 1) * (samples - 1), 1) / samples
    found[:trials] = max(1 - by_chance / variance, 0.0) * better / variance**0.5
    return found
