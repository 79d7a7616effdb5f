"""CaffeNet by fused kernels against CaffeNet."""

import copy

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from unshuffle.models.caffenet import CaffeNet
from unshuffle.models.fused_caffenet import fused_pool5, unroll, unrolled_weight


@pytest.mark.parametrize("side", [11, 12, 30, 75])
def test_conv1_on_unrolled_images(side: int, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    images, weight = torch.randn(2, 3, side, side), torch.randn(5, 3, 11, 11, requires_grad=True)
    images, inner = images.to(kernel_device), weight.to(kernel_device)
    expected, ours = F.conv2d(images, inner, stride=2), F.conv2d(unroll(images), unrolled_weight(inner))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    gradient = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, weight, gradient, retain_graph=True)
    (found,) = torch.autograd.grad(ours, weight, gradient)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_whole_backbone(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    backbone = CaffeNet().to(kernel_device)
    fused = copy.deepcopy(backbone)
    images = torch.randn(3, 3, 75, 75, device=kernel_device)
    expected = backbone(images)
    ours = fused_pool5(fused, images)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    ours.backward(gradient)
    for (name, plain), other in zip(backbone.named_parameters(), fused.parameters(), strict=True):
        assert plain.grad is not None and other.grad is not None
        if name.endswith("0.bias"):  # nothing but rounding: see the normalisation
            assert plain.grad.abs().max() < 1e-2 and not other.grad.any()
        else:
            difference = (other.grad - plain.grad).norm() / plain.grad.norm()
            assert difference < 1e-2, f"{name}: {difference}"  # one maximum that changes its pixel makes 1e-3
    for name, buffer in backbone.named_buffers():
        torch.testing.assert_close(fused.get_buffer(name), buffer, rtol=1e-3, atol=1e-4)


def test_only_bf16_on_a_gpu_takes_the_kernels() -> None:
    backbone, images = CaffeNet(), torch.randn(2, 3, 75, 75)
    again = copy.deepcopy(backbone)
    assert torch.equal(backbone.training_pass(images), again(images))
