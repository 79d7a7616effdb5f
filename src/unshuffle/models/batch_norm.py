"""Batch normalisation synchronised over processes, or folded into the convolutions for fine-tuning without it."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unshuffle.errors import UserError
from unshuffle.models.all_gather import all_gather, world_size
from unshuffle.models.registry import Backbone

TOLERANCE = 1e-4
"""Largest difference between two forms of a backbone (folded, exported), as a fraction of the largest value."""


class _Synchronised(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with statistics over the batches of all processes, which are of equal size, on any device.

    torch's `SyncBatchNorm` does not accept CPU tensors. In a single process or in evaluation mode it is its base class.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...)."""
        if not self.training or world_size() == 1:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            values = input.to(torch.promote_types(input.dtype, torch.float32))
            axes = [0, *range(2, input.ndim)]
            own = torch.stack(torch.var_mean(values, dim=axes, correction=0))
            variances, means = all_gather(own).unbind(1)
            mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
            self._update_statistics(mean.detach(), variance.detach(), len(means) * input.numel() // input.shape[1])
            scale = torch.rsqrt(variance + self.eps) * self.weight
            shift = self.bias - mean * scale
            channels = (-1, *[1] * (input.ndim - 2))
            result: Tensor = values * scale.view(channels) + shift.view(channels)
            return result.to(input.dtype)

    def _update_statistics(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics as the base class does, with the unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        self.num_batches_tracked += 1


class SynchronisedBatchNorm1d(_Synchronised, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all processes."""


class SynchronisedBatchNorm2d(_Synchronised, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all processes."""


_SYNCHRONISED: dict[type[nn.Module], type[_Synchronised]] = {
    nn.BatchNorm1d: SynchronisedBatchNorm1d,
    nn.BatchNorm2d: SynchronisedBatchNorm2d,
}


def is_synchronised(module: nn.Module) -> bool:
    """Return whether a module has batch normalisations over several processes, which the fused kernels lack."""
    return world_size() > 1 and any(isinstance(layer, _Synchronised) for layer in module.modules())


def synchronise(module: nn.Module) -> None:
    """Replace, in place, the batch normalisations of a module by synchronised ones; the weights keep their names."""
    for name, child in module.named_children():
        if type(child) in _SYNCHRONISED:
            assert isinstance(child, nn.modules.batchnorm._BatchNorm)
            replacement = _SYNCHRONISED[type(child)](child.num_features, child.eps, child.momentum)
            replacement.load_state_dict(child.state_dict())
            setattr(module, name, replacement)
        else:
            synchronise(child)


def check_synchronised(backbone: Backbone) -> None:
    """Raise a UserError if a backbone has batch normalisations of other classes, which `synchronise` leaves alone."""
    norms = [layer for layer in backbone.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if other := [type(layer).__name__ for layer in norms if not isinstance(layer, _Synchronised)]:
        raise UserError(f"model.sync_bn is not available for {backbone.architecture}, which has layers {other[0]}")


def fold_batch_norm(backbone: Backbone) -> Backbone:
    """Return a trainable copy without batch normalisation that computes what the backbone does in evaluation mode."""
    device = next(backbone.parameters()).device
    backbone = copy.deepcopy(backbone).cpu()  # other devices may lack float64 or full float32 precision
    folded = copy.deepcopy(backbone)
    fold_layers(folded)
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in folded.modules()) or not _agree(
        backbone, folded
    ):
        raise UserError(f"the batch normalisation of {backbone.architecture} cannot be folded into its convolutions")
    return folded.to(device)


def fold_layers(module: nn.Module) -> None:
    """Fold, in place, each batch normalisation into the convolution that precedes it in the same module."""
    last: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        is_foldable = type(child) in (nn.BatchNorm2d, SynchronisedBatchNorm2d)
        if is_foldable and last is not None and isinstance(last[1], nn.Conv2d):
            setattr(module, last[0], _fused(last[1], child))
            setattr(module, name, nn.Identity())
        else:
            fold_layers(child)
        last = name, child


def _fused(conv: nn.Conv2d, norm: nn.Module) -> nn.Conv2d:
    assert isinstance(norm, nn.BatchNorm2d)
    was_training, dtype = conv.training, conv.weight.dtype
    # in float64, so that each weight is rounded once
    fused = fuse_conv_bn_eval(conv.double().eval(), norm.double().eval())
    assert fused.bias is not None
    fused.bias.requires_grad_(fused.weight.requires_grad)  # torch freezes the bias it adds to a convolution without one
    return fused.to(dtype).train(was_training)


@torch.no_grad()
def _agree(backbone: Backbone, folded: Backbone) -> bool:
    """Return whether both map noise alike: layers are not always called in the order in which they were defined."""
    images = torch.randn(1, 3, backbone.eval_size, backbone.eval_size, generator=torch.Generator().manual_seed(0))
    expected, actual = (copy.deepcopy(module).float().eval()(images) for module in (backbone, folded))
    return float((expected - actual).abs().max()) <= TOLERANCE * float(expected.abs().max())
