"""CaffeNet with fused kernels against the plain modules."""

import copy

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from unshuffle.kernels.fused_caffenet import fused_pool5, unroll, unrolled_weight
from unshuffle.models.caffenet import CaffeNet


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("side", [11, 12, 29, 30, 75])
def test_conv1_on_unrolled_images_equals_conv1(side: int, stride: int, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    images, weight = torch.randn(2, 3, side, side), torch.randn(5, 3, 11, 11, requires_grad=True)
    images, device_weight = images.to(kernel_device), weight.to(kernel_device)
    expected = F.conv2d(images, device_weight, stride=stride)
    actual = F.conv2d(unroll(images, stride), unrolled_weight(device_weight, stride))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    gradient = torch.randn_like(expected)
    (expected_gradient,) = torch.autograd.grad(expected, weight, gradient, retain_graph=True)
    (actual_gradient,) = torch.autograd.grad(actual, weight, gradient)
    torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("side", "stride"), [(75, 2), (139, 4)])
def test_output_gradients_and_running_statistics_of_the_whole_backbone(
    side: int, stride: int, kernel_device: torch.device
) -> None:
    torch.manual_seed(0)
    backbone = CaffeNet().to(kernel_device)
    fused = copy.deepcopy(backbone)
    images = torch.randn(3, 3, side, side, device=kernel_device)
    expected = backbone(images)
    actual = fused_pool5((fused.conv1, fused.conv2, fused.conv3, fused.conv4, fused.conv5), images, stride)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    actual.backward(gradient)
    for (name, plain), other in zip(backbone.named_parameters(), fused.parameters(), strict=True):
        assert plain.grad is not None and other.grad is not None
        if name.endswith("0.bias"):  # rounding errors only: the normalisation cancels the bias
            assert plain.grad.abs().max() < 1e-2 and not other.grad.any()
        else:
            difference = (other.grad - plain.grad).norm() / plain.grad.norm()
            assert difference < 1e-2, f"{name}: {difference}"  # one maximum at another pixel accounts for 1e-3
    for name, buffer in backbone.named_buffers():
        torch.testing.assert_close(fused.get_buffer(name), buffer, rtol=1e-3, atol=1e-4)


def test_fp32_images_do_not_use_the_kernels() -> None:
    backbone, images = CaffeNet(), torch.randn(2, 3, 75, 75)
    reference = copy.deepcopy(backbone)
    assert torch.equal(backbone.training_pass(images), reference(images))
