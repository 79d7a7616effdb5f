"""What a draw is worth: how much less a permutation is mistaken for each time that it was trained on.

One validation gives the error of every permutation, and inside a group all are equally likely to be drawn: that some
happen to come more often than others makes every episode a randomised experiment. Whatever moves all errors together,
such as the running statistics of batch normalisation, is the same on both sides of it.
"""

import torch
from torch import Tensor


def draw_values(before: Tensor, after: Tensor, draws: Tensor, members: Tensor, count: int) -> Tensor:
    """(count,) worth of one more draw of a permutation of each group; 1 is that of the average draw.

    `before` and `after` are the (|Ψ|,) errors of the permutations around an episode in which each was drawn `draws`
    times; `members` is the group of each. A group's slope of the error over the draws is taken towards that of all
    groups as far as its standard error says (empirical Bayes); without any sign of a difference all are worth 1.
    """
    often = _within(draws.double() / draws.double().mean(), members, count)
    better = _within(-after.double(), members, count)
    level = _within(before.double(), members, count)
    if level.square().sum() > 0:  # a high error is partly bad luck, and falls without any draw
        better = better - (level @ better) / level.square().sum() * level
    spread = _sums(often.square(), members, count)
    known = spread > 0
    if not known.any():
        return torch.ones(count)
    slopes = torch.where(known, _sums(often * better, members, count) / spread.clamp(min=1e-300), 0.0)
    rest = (better - slopes[members] * often).square().sum() / max(1, len(draws) - 2 * int(known.sum()))
    noise = rest / spread[known]
    common = (spread * slopes).sum() / spread.sum()
    between = _variance_between(slopes[known], noise)
    values = common.expand(count).clone()
    if between > 0:
        values[known] += between / (between + noise) * (slopes[known] - common)
    least = 2 * (rest / spread.sum()).sqrt()  # an effect that cannot be told from none is no unit
    return (1 + (values - common) / torch.maximum(common, least).clamp(min=1e-12)).float()


def _variance_between(slopes: Tensor, noise: Tensor) -> Tensor:
    """Variance of the true slopes by the method of moments (DerSimonian and Laird)."""
    weight = 1 / noise.clamp(min=1e-300)
    excess = (weight * (slopes - (weight * slopes).sum() / weight.sum()).square()).sum() - (len(slopes) - 1)
    scale = weight.sum() - weight.square().sum() / weight.sum()
    return (excess / scale).clamp(min=0) if len(slopes) > 1 else torch.zeros((), dtype=slopes.dtype)


def _within(values: Tensor, members: Tensor, count: int) -> Tensor:
    """Values less the mean of their group."""
    sizes = _sums(torch.ones_like(values), members, count)
    return values - (_sums(values, members, count) / sizes.clamp(min=1))[members]


def _sums(values: Tensor, members: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=values.dtype).index_add(0, members, values)
