"""Rendering of any plan of crops by the kernels."""

import torch
from torch import Tensor

from unshuffle.data.crops import CropPlan, Plan
from unshuffle.data.squares import Squares
from unshuffle.data.views import ViewPlan
from unshuffle.kernels import crops, views


def render(squares: Squares, plan: Plan, crop_size: int, dtype: torch.dtype) -> Tensor:
    """Return the normalised crops of a batch, (B, P, 3, S, S); each is channels-last."""
    if isinstance(plan, ViewPlan):
        return views.render(squares, plan, crop_size, dtype)
    assert isinstance(plan, CropPlan)
    return crops.render(squares, plan, crop_size, dtype)
