"""CaffeNet up to pool5: with batch normalisation (the paper's backbone), with LRN (the author's), and a tiny one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import has_kernels
from unshuffle.models.batch_norm import is_synchronised
from unshuffle.models.registry import SequentialBackbone, register_backbone

TILE_STRIDE, IMAGE_STRIDE = 2, 4
"""Strides of conv1 for tiles, in training, and for whole images, in all evaluations: as in the paper."""
WHOLE_IMAGE = 139
"""Side in pixels from which a crop in training counts as a whole image: with stride 4 it has the 3 x 3 features that a
tile of 75 px has with stride 2."""


def conv1_stride(side: int) -> int:
    """Return the stride of conv1 in training for crops of this side, so that whole images look as in evaluations."""
    return IMAGE_STRIDE if side >= WHOLE_IMAGE else TILE_STRIDE


class Conv1(nn.Conv2d):
    """The first convolution: 11 x 11, with a stride that depends on the size of the crops."""

    def __init__(self) -> None:
        super().__init__(3, 96, 11, stride=TILE_STRIDE)

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps; in evaluations, with stride 4 whatever the size."""
        stride = max(self.stride[0], conv1_stride(images.shape[-1]))
        return F.conv2d(images, self.weight, self.bias, stride, self.padding)


def _block(conv: nn.Conv2d) -> nn.Sequential:
    """Return convolution, BN and ReLU, an order that folds into one convolution; with a bias, as in CaffeNet."""
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True))


@register_backbone("caffenet")
class CaffeNet(SequentialBackbone):
    """2304 features of a tile of 75 px with conv1 stride 2, 9216 of a whole image of 227 px with stride 4."""

    channels = 256

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _block(Conv1())
        self.conv2 = _block(nn.Conv2d(96, 256, 5, padding=2, groups=2))
        self.conv3 = _block(nn.Conv2d(256, 384, 3, padding=1))
        self.conv4 = _block(nn.Conv2d(384, 384, 3, padding=1, groups=2))
        self.conv5 = _block(nn.Conv2d(384, 256, 3, padding=1, groups=2))
        # floor pooling: 75 px give 3x3 only with it (Caffe's ceil pooling would give 4x4)
        self.pool = nn.MaxPool2d(3, 2)

    def layers(self) -> list[nn.Module]:
        """Return conv1 to pool5."""
        early = [self.conv1, self.pool, self.conv2, self.pool]
        return [*early, self.conv3, self.conv4, self.conv5, self.pool]

    def training_pass(self, images: Tensor) -> Tensor:
        """Return the pool5 map; bf16 images on a GPU go through the fused kernels."""
        is_folded = not isinstance(self.conv1[1], nn.BatchNorm2d)
        if is_folded or not has_kernels(images.device) or images.dtype != torch.bfloat16 or is_synchronised(self):
            return super().training_pass(images)
        from unshuffle.kernels.fused_caffenet import fused_pool5  # needs Triton, which only torch for GPUs installs

        blocks = (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5)
        return fused_pool5(blocks, images, conv1_stride(images.shape[-1]))

    def for_evaluation(self) -> "CaffeNet":
        """Set conv1 to stride 4, as in all of the paper's evaluations."""
        conv1 = self.conv1[0]
        assert isinstance(conv1, nn.Conv2d)
        conv1.stride = (IMAGE_STRIDE, IMAGE_STRIDE)
        return self.eval()


@register_backbone("caffenet-lrn")
class CaffeNetLrn(SequentialBackbone):
    """CaffeNet with local response normalisation in place of BN: the backbone of the author's public jigsaw network.

    The shapes are those of `caffenet`: 2304 features at 75 px, 9216 at 227 px with conv1 stride 4.
    """

    channels = 256

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = Conv1()
        self.conv2 = nn.Conv2d(96, 256, 5, padding=2, groups=2)
        self.conv3 = nn.Conv2d(256, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, 3, padding=1, groups=2)
        self.conv5 = nn.Conv2d(384, 256, 3, padding=1, groups=2)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2)
        self.lrn = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)

    def layers(self) -> list[nn.Module]:
        """Return conv1 to pool5."""
        relu, pool, lrn = self.relu, self.pool, self.lrn
        early = [self.conv1, relu, pool, lrn, self.conv2, relu, pool, lrn]
        return [*early, self.conv3, relu, self.conv4, relu, self.conv5, relu, pool]

    def forms(self) -> dict[str, nn.Module]:
        """Add that of the author's files too, `conv.conv1_s1.weight` and so on."""
        convs = [self.conv1, self.conv2, self.conv3, self.conv4, self.conv5]
        author = nn.ModuleDict({f"conv{number}_s1": conv for number, conv in enumerate(convs, 1)})
        return {**super().forms(), "author": nn.ModuleDict({"conv": author})}

    def for_evaluation(self) -> "CaffeNetLrn":
        """Set conv1 to stride 4, as in all of the paper's evaluations."""
        self.conv1.stride = (IMAGE_STRIDE, IMAGE_STRIDE)
        return self.eval()


@register_backbone("tiny")
class Tiny(SequentialBackbone):
    """Four convolutions for the demo and for tests: 3x3 features at 24 px, in milliseconds on a CPU."""

    channels = 96
    eval_size = 96

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _block(nn.Conv2d(3, 32, 5, stride=2, padding=2))
        self.conv2 = _block(nn.Conv2d(32, 48, 3, padding=1))
        self.conv3 = _block(nn.Conv2d(48, 96, 3, padding=1))
        self.conv4 = _block(nn.Conv2d(96, 96, 3, padding=1))
        self.pool = nn.MaxPool2d(2, 2)

    def layers(self) -> list[nn.Module]:
        """Return conv1 to the last pooling."""
        return [self.conv1, self.conv2, self.pool, self.conv3, self.conv4, self.pool]
