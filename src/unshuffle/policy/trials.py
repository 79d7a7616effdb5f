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
    times how much of the differences is to be believed. Groups that were not tried come last and are worth 0, the
    average.
    """
    found, errors = torch.zeros(count), errors.double()
    better = errors.mean() - errors.mean(dim=1)
    variance = float(better.square().sum()) / max(len(better) - 1, 1)
    if variance > ROUNDING and (believed := belief(errors)) > 0:
        found[: len(better)] = believed * better / variance**0.5
    return found


def belief(errors: Tensor) -> float:
    """Share of the variance between trials that the choice of the samples does not explain: 1 - 1/F.

    F is of the analysis of variance by trials and samples: on other samples the trials would differ otherwise, by as
    much as their differences scatter from one of these samples to the next. One sample tells nothing.
    """
    trials, samples = errors.shape
    if trials < 2 or samples < 2:
        return 0.0
    by_trial = errors.mean(dim=1, keepdim=True) - errors.mean()
    rest = errors - errors.mean(dim=0) - by_trial
    between = samples * float(by_trial.square().sum()) / (trials - 1)
    within = float(rest.square().sum()) / ((trials - 1) * (samples - 1))
    return max(round(1 - within / between, 9), 0.0) if between > ROUNDING else 0.0
