"""The kernel that renders augmented views, against the tensor code of `data.views`."""

import pytest
import torch

pytest.importorskip("triton")

from unshuffle.config import ViewConfig
from unshuffle.data.crops import normalise
from unshuffle.data.squares import Squares
from unshuffle.data.views import ViewPlan, view_uniforms
from unshuffle.kernels.views import render


def random_squares(count: int, frames: int, side: int, device: torch.device) -> Squares:
    """Squares at random positions of a byte tensor, each with its own row stride."""
    torch.manual_seed(0)
    strides = 3 * side + torch.randint(0, 40, (count * frames,))
    starts = torch.randperm(count * frames) * (4 * side * side + 50 * side) + 7
    data = torch.randint(0, 256, (int(starts.max()) + 5 * side * side + 50 * side,), dtype=torch.uint8)
    return Squares(data, torch.stack([starts, strides]), side, frames).to(device)


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize(("side", "crop_size"), [(40, 16), (20, 24), (33, 11), (44, 40)])  # 40 has two blocks
def test_the_kernel_renders_the_same_as_the_tensor_code(
    side: int, crop_size: int, random: bool, frames: int, kernel_device: torch.device
) -> None:
    squares, config = random_squares(12, frames, side, kernel_device), ViewConfig(blur=0.7, sigma=(0.5, 2.0))
    generator = torch.Generator(kernel_device).manual_seed(1) if random else None
    plan = ViewPlan(24, config, view_uniforms(24, kernel_device, generator))
    rendered = render(squares, plan, crop_size, torch.float32)
    expected = normalise(plan.crop(squares.pixels(), crop_size)).view(12, 2, 3, crop_size, crop_size)
    torch.testing.assert_close(rendered, expected, rtol=1e-3, atol=1e-3)
    assert rendered.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    half = render(squares, plan, crop_size, torch.bfloat16)
    torch.testing.assert_close(half.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("grayscale", [0.0, 1.0])
def test_all_or_none_of_the_views_change_their_colours(
    jitter: float, grayscale: float, kernel_device: torch.device
) -> None:
    squares = random_squares(12, 1, 24, kernel_device)
    config = ViewConfig(jitter=jitter, grayscale=grayscale, blur=0.0)
    plan = ViewPlan(24, config, view_uniforms(24, kernel_device, torch.Generator(kernel_device).manual_seed(2)))
    expected = normalise(plan.crop(squares.pixels(), 16)).view(12, 2, 3, 16, 16)
    torch.testing.assert_close(render(squares, plan, 16, torch.float32), expected, rtol=1e-3, atol=1e-3)
