"""Tensors of all processes in each of them, with gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes that train one network."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def all_gather(own: Tensor) -> Tensor:
    """Return the tensors of all processes, stacked in rank order.

    The gradient of a process's tensor is the sum of those that the losses of all processes have with respect to it.
    """
    if world_size() == 1:
        return own[None]
    stacked: Tensor = _AllGather.apply(own)  # type: ignore[no-untyped-call]
    return stacked


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        stack = own.new_zeros(dist.get_world_size(), *own.shape)
        stack[dist.get_rank()] = own
        dist.all_reduce(stack)
        return stack

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[dist.get_rank()]
