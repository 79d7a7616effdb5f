"""Batch normalisation whose batch is that of all processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SynchronisedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with the statistics of all processes' equally large batches, on any device.

    torch's own `SyncBatchNorm` refuses CPU tensors. Alone, and in evaluation mode, this is its base class.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, H, W)."""
        if not self.training or _is_alone():
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            values = input.to(torch.promote_types(input.dtype, torch.float32))
            variances, means = _gathered(torch.stack(torch.var_mean(values, dim=(0, 2, 3), correction=0))).unbind(1)
            mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
            self._remember(mean.detach(), variance.detach(), len(means) * input.numel() // input.shape[1])
            scale = torch.rsqrt(variance + self.eps) * self.weight
            shift = self.bias - mean * scale
            return (values * scale[:, None, None] + shift[:, None, None]).to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics as the base class does, towards the unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        self.num_batches_tracked += 1


def _is_alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1


def is_synchronised(module: nn.Module) -> bool:
    """Whether normalisations inside a module wait for other processes, which fused kernels do not."""
    return not _is_alone() and any(isinstance(layer, SynchronisedBatchNorm2d) for layer in module.modules())


class _Gather(torch.autograd.Function):
    """A tensor of each process to a stack of all, and gradients back to where they belong."""

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


def _gathered(own: Tensor) -> Tensor:
    stack: Tensor = _Gather.apply(own)  # type: ignore[no-untyped-call]
    return stack


def synchronise(module: nn.Module) -> None:
    """Put synchronised normalisations in place of the plain ones inside a module; the weights' names stay."""
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d:
            twin = SynchronisedBatchNorm2d(child.num_features, child.eps, child.momentum)
            twin.load_state_dict(child.state_dict())
            setattr(module, name, twin)
        else:
            synchronise(child)
