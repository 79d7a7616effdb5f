"""Batch normalisation absorbed by the convolutions before it: the paper fine-tunes "without batch normalisation"."""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unshuffle.errors import UserError
from unshuffle.models.norm import SynchronisedBatchNorm2d
from unshuffle.models.registry import Backbone

_PLAIN = (nn.BatchNorm2d, SynchronisedBatchNorm2d)
_ALL = nn.modules.batchnorm._BatchNorm
TOLERANCE = 1e-4


def fold_batch_norm(backbone: Backbone) -> Backbone:
    """A copy that computes what the backbone does in evaluation mode, without batch normalisation, and can be trained."""
    device = next(backbone.parameters()).device
    backbone = copy.deepcopy(backbone).cpu()  # where there is double precision, and float is all of float
    folded = copy.deepcopy(backbone)
    absorb(folded)
    if any(isinstance(layer, _ALL) for layer in folded.modules()) or not _agree(backbone, folded):
        raise UserError(f"the batch normalisation of {backbone.architecture} cannot be folded into its convolutions")
    return folded.to(device)


def absorb(module: nn.Module) -> None:
    """Fold each plain normalisation into the convolution that stands before it in the same module."""
    last: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if last is not None and isinstance(last[1], nn.Conv2d) and type(child) in _PLAIN:
            setattr(module, last[0], _fused(last[1], child))
            setattr(module, name, nn.Identity())
        else:
            absorb(child)
        last = name, child


def _fused(conv: nn.Conv2d, norm: nn.Module) -> nn.Conv2d:
    assert isinstance(norm, nn.BatchNorm2d)
    was_training, dtype = conv.training, conv.weight.dtype
    # in double, so that each weight is rounded once
    fused = fuse_conv_bn_eval(conv.double().eval(), norm.double().eval())
    assert fused.bias is not None
    fused.bias.requires_grad_(fused.weight.requires_grad)  # torch freezes a bias that the convolution did not have
    return fused.to(dtype).train(was_training)


@torch.no_grad()
def _agree(backbone: Backbone, folded: Backbone) -> bool:
    """Whether two backbones map noise alike: layers need not be called in the order in which they were made."""
    images = torch.randn(1, 3, backbone.eval_size, backbone.eval_size, generator=torch.Generator().manual_seed(0))
    one, other = (copy.deepcopy(each).float().eval()(images) for each in (backbone, folded))
    return float((one - other).abs().max()) <= TOLERANCE * float(one.abs().max())
