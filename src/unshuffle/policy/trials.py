"""What a draw is worth, by trial: for each group the next iterations are trained with it preferred, and undone.

All trials begin with the same weights and see the same batches, which takes most of the noise away. The trainer runs
them; here is what they say.
"""

import torch
from torch import Tensor

PREFERENCE = 0.5
"""Share of the draws that a trial takes from the group that it prefers, beyond what all groups get."""


def one_group_preferred(sizes: Tensor, group: int) -> Tensor:
    """(|C|,) probabilities of the groups in a trial."""
    alone = torch.zeros_like(sizes)
    alone[group] = 1.0
    return PREFERENCE * alone + (1 - PREFERENCE) * sizes


def worths(errors: Tensor, count: int, least: float) -> Tensor:
    """(count,) what a draw of each group is worth: how far the error after its trial lies below the mean of all.

    In units of the deviation between trials, or of `least` where that is larger: smaller differences count as noise.
    Groups that were not tried come last and are worth 0, the average.
    """
    found = torch.zeros(count)
    spread = errors.std().item() if len(errors) > 1 else 0.0
    found[: len(errors)] = (errors.mean() - errors) / max(spread, least)
    return found
