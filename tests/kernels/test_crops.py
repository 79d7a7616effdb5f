"""The kernel that renders crops, against the tensor code of `shuffle`."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from unshuffle.config import ShuffleConfig
from unshuffle.data import shuffle
from unshuffle.data.squares import Squares
from unshuffle.kernels.crops import render

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter takes the logarithm of black pixels


def random_squares(batch: int, frames: int, side: int, device: torch.device) -> Squares:
    """Squares at random positions of a byte tensor, each with its own row stride."""
    torch.manual_seed(0)
    strides = 3 * side + torch.randint(0, 40, (batch * frames,))
    starts = torch.randperm(batch * frames) * (4 * side * side + 50 * side) + 7
    data = torch.randint(0, 256, (int(starts.max()) + 5 * side * side + 50 * side,), dtype=torch.uint8)
    return Squares(data, torch.stack([starts, strides]), side, frames).to(device)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(
    ("task", "side", "crop"),
    [("spatial", 40, 16), ("spatial", 40, 7), ("spatial", 40, 10), ("temporal", 24, 30), ("temporal", 31, 12)],
)
def test_the_kernel_renders_the_same_as_the_tensor_code(
    task: str, side: int, crop: int, random: bool, mirror: bool, kernel_device: torch.device
) -> None:
    config = ShuffleConfig(crop_size=crop, frames=3, grey=0.5, hue=0.4, saturation=0.9, mirror=mirror)
    squares = random_squares(2, 1 if task == "spatial" else 3, side, kernel_device)
    generator = torch.Generator(kernel_device).manual_seed(1) if random else None
    cuts = shuffle.CUTS[task](2, side, config, kernel_device, generator)
    assert cuts.coloured == random
    expected = shuffle.render(squares.pixels(), cuts, crop)
    crops = render(squares, cuts, crop)
    assert crops.shape == expected.shape == (2, cuts.parts, 3, crop, crop)
    torch.testing.assert_close(crops, expected, rtol=1e-4, atol=1e-4)
    assert crops.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    half = render(squares, cuts, crop, torch.bfloat16)
    torch.testing.assert_close(half.float(), expected, rtol=1e-2, atol=1e-2)


def test_frames_without_jitter_keep_their_colours(kernel_device: torch.device) -> None:
    config = replace(ShuffleConfig(crop_size=8, frames=2), frame_jitter=False)
    squares = random_squares(2, 2, 12, kernel_device)
    cuts = shuffle.frame_cuts(2, 12, config, kernel_device, torch.Generator(kernel_device).manual_seed(0))
    assert cuts.draws is not None and not cuts.coloured
    torch.testing.assert_close(
        render(squares, cuts, 8), shuffle.render(squares.pixels(), cuts, 8), rtol=1e-4, atol=1e-4
    )


def test_frames_of_a_clip_can_share_their_random_numbers(kernel_device: torch.device) -> None:
    config = replace(ShuffleConfig(crop_size=8, frames=3), shared_crop=True)
    squares = random_squares(2, 3, 12, kernel_device)
    cuts = shuffle.frame_cuts(2, 12, config, kernel_device, torch.Generator(kernel_device).manual_seed(0))
    assert cuts.repeats == 3 and cuts.coloured
    torch.testing.assert_close(
        render(squares, cuts, 8), shuffle.render(squares.pixels(), cuts, 8), rtol=1e-4, atol=1e-4
    )
