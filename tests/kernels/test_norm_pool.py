"""Fused batch normalisation, ReLU and pooling against the plain modules."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("triton")

from unshuffle.kernels.norm_pool import norm_relu_pool


def new_norm(channels: int, device: torch.device) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).to(device)
    with torch.no_grad():
        norm.weight.normal_()  # also negative, for which the largest input is not the largest output
        norm.bias.normal_()
        norm.running_mean.normal_()  # type: ignore[union-attr]
    return norm


def plain(maps: Tensor, norm: nn.BatchNorm2d, bias: Tensor, pool: bool) -> Tensor:
    result: Tensor = norm(maps + bias[:, None, None]).relu()
    return F.max_pool2d(result, 3, 2) if pool else result


@pytest.mark.parametrize(
    ("shape", "input_parts", "output_parts", "pool"),
    [
        ((3, 12, 9, 9), 1, 2, True),
        ((3, 12, 8, 8), 2, 1, True),
        ((2, 6, 3, 7), 1, 1, True),
        ((3, 12, 5, 5), 1, 2, False),
        ((3, 12, 5, 4), 2, 2, False),
        ((2, 300, 3, 3), 2, 1, True),
    ],
)
def test_output_gradients_and_running_statistics(
    shape: tuple[int, ...], input_parts: int, output_parts: int, pool: bool, kernel_device: torch.device
) -> None:
    torch.manual_seed(0)
    maps = torch.randn(shape, device=kernel_device) * 2 + 0.5
    bias = torch.randn(shape[1], device=kernel_device, requires_grad=True)
    norm = new_norm(shape[1], kernel_device)
    fused_norm, whole = copy.deepcopy(norm), maps.clone().requires_grad_()
    expected = plain(whole, norm, bias.detach(), pool)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)

    parts = [
        part.contiguous(memory_format=torch.channels_last).requires_grad_() for part in maps.chunk(input_parts, dim=1)
    ]
    results = norm_relu_pool(parts, fused_norm, bias, pool=pool, parts=output_parts)
    assert len(results) == output_parts
    actual = torch.cat(results, dim=1)
    actual.backward(gradient)

    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(actual, expected, **close)
    torch.testing.assert_close(
        torch.cat([part.grad for part in parts if part.grad is not None], 1), whole.grad, **close
    )
    torch.testing.assert_close(fused_norm.weight.grad, norm.weight.grad, **close)
    torch.testing.assert_close(fused_norm.bias.grad, norm.bias.grad, **close)
    assert bias.grad is not None and not bias.grad.any(), "the normalisation cancels the bias"
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(fused_norm.get_buffer(name), buffer, **close)


def test_the_first_of_equal_pixels_gets_the_gradient(kernel_device: torch.device) -> None:
    maps = torch.tensor([1.0, 5, 5, 5, 2, 5, 1, 1, 5], device=kernel_device).view(1, 1, 3, 3).repeat(2, 1, 1, 1)
    norm, bias = nn.BatchNorm2d(1).to(kernel_device), torch.zeros(1, device=kernel_device)
    gradients = []
    for fused in (False, True):
        part = maps.clone().to(memory_format=torch.channels_last).requires_grad_()
        result = norm_relu_pool([part], norm, bias, pool=True)[0] if fused else plain(part, norm, bias, True)
        result[0].sum().backward()
        gradients.append(part.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", [False, True])
def test_nan_stays_nan(pool: bool, kernel_device: torch.device) -> None:
    maps = torch.zeros(2, 2, 3, 3, device=kernel_device).to(memory_format=torch.channels_last)
    maps[0, 0, 0, 0] = float("nan")
    norm = nn.BatchNorm2d(2).to(kernel_device)
    (result,) = norm_relu_pool([maps], norm, torch.zeros(2, device=kernel_device), pool=pool)
    assert result[:, 0].isnan().all()
    assert result[:, 1].isfinite().all()
