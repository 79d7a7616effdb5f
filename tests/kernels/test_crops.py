"""The kernel that renders crops, against the tensor code of `data.crops`."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from unshuffle.config import AugmentationConfig, Config, RotationConfig, SpatialConfig, TemporalConfig
from unshuffle.data import crops
from unshuffle.data.squares import Resident, Squares
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.kernels.crops import render
from unshuffle.tasks import TASKS
from unshuffle.tasks.temporal import TemporalTask

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter takes the logarithm of black pixels


def random_squares(batch: int, frames: int, side: int, device: torch.device) -> Squares:
    """Squares at random positions of a byte tensor, each with its own row stride."""
    torch.manual_seed(0)
    strides = 3 * side + torch.randint(0, 40, (batch * frames,))
    starts = torch.randperm(batch * frames) * (4 * side * side + 50 * side) + 7
    data = torch.randint(0, 256, (int(starts.max()) + 5 * side * side + 50 * side,), dtype=torch.uint8)
    return Squares(data, torch.stack([starts, strides]), side, frames).to(device)


def small_config(crop_size: int, hflip: float = 0.0, **temporal: Any) -> Config:
    """Two clips' worth of three frames, or 3 x 3 tiles, with strong changes of colour."""
    return Config(
        augmentation=AugmentationConfig(hflip=hflip, grayscale=0.5, hue=0.4, saturation=0.9),
        spatial=SpatialConfig(crop_size=crop_size),
        temporal=TemporalConfig(crop_size=crop_size, **{"frames": 3, **temporal}),
        rotation=RotationConfig(crop_size=crop_size),
    )


@pytest.mark.parametrize("hflip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(
    ("name", "side", "crop_size"),
    [
        ("spatial", 40, 16),
        ("spatial", 40, 7),
        ("spatial", 40, 10),
        ("temporal", 24, 30),
        ("temporal", 31, 12),
        ("rotation", 30, 21),
    ],
)
def test_the_kernel_renders_the_same_as_the_tensor_code(
    name: str, side: int, crop_size: int, random: bool, hflip: float, kernel_device: torch.device
) -> None:
    task = TASKS[name](small_config(crop_size, hflip), kernel_device)
    squares = random_squares(2, 3 if name == "temporal" else 1, side, kernel_device)
    generator = torch.Generator(kernel_device).manual_seed(1) if random else None
    plan = task.plan_crops(2, side, generator)
    assert plan.coloured == random
    expected = crops.render(squares.pixels(), plan, crop_size)
    rendered = render(squares, plan, crop_size)
    assert rendered.shape == expected.shape == (2, plan.parts, 3, crop_size, crop_size)
    torch.testing.assert_close(rendered, expected, rtol=1e-4, atol=1e-4)
    assert rendered.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    half = render(squares, plan, crop_size, torch.bfloat16)
    torch.testing.assert_close(half.float(), expected, rtol=1e-2, atol=1e-2)


def frame_plan(config: Config, device: torch.device) -> crops.CropPlan:
    """A plan of random crops of two clips of 12 x 12 pixels."""
    return TemporalTask(config, device).plan_crops(2, 12, torch.Generator(device).manual_seed(0))


def test_frames_without_jitter_keep_their_colours(kernel_device: torch.device) -> None:
    squares = random_squares(2, 2, 12, kernel_device)
    plan = frame_plan(small_config(8, frames=2, colour_jitter=False), kernel_device)
    assert plan.uniforms is not None and not plan.coloured
    expected = crops.render(squares.pixels(), plan, 8)
    torch.testing.assert_close(render(squares, plan, 8), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hflip", [0.0, 1.0])
def test_each_frame_is_rendered_from_its_own_window(kernel_device: torch.device, hflip: float) -> None:
    clips = np.random.default_rng(0).integers(0, 256, (3, 5, 20, 27, 3), dtype=np.uint8)
    source = SyntheticSource(["a", "b", "c"], np.zeros(3, np.int64), ("noise",), clips)
    task = TemporalTask(small_config(8, hflip, crop_fraction=0.6, colour_jitter=False), kernel_device)
    samples = task.samples_of(source, np.arange(3))
    resident = Resident(*source.flat(), np.array([(20, 27)] * 3), kernel_device)
    windows = samples.random_windows(np.array([2, 0]), np.random.default_rng(1))
    assert len(np.unique(windows.corners.reshape(-1, 2), axis=0)) == 6, "six frames, six places"
    squares = resident.squares(windows, 12).to(kernel_device)
    plan = task.plan_crops(2, 12, torch.Generator(kernel_device).manual_seed(0))
    rendered = render(squares, plan, 8).cpu()
    for row, item in enumerate([2, 0]):
        for position in range(3):
            top, left = windows.corners[row, position]
            frame = clips[item, windows.frames[row, position]]
            cut = frame[top : top + 12, left : left + 12][:, :: -1 if hflip else 1]
            crop = torch.from_numpy(cut.copy()).permute(2, 0, 1)[None] / 255
            expected = crops.normalise(crops.resize(crop, 8))[0]
            torch.testing.assert_close(rendered[row, position], expected, rtol=1e-4, atol=1e-4)


def test_frames_of_a_clip_can_share_their_random_numbers(kernel_device: torch.device) -> None:
    squares = random_squares(2, 3, 12, kernel_device)
    plan = frame_plan(small_config(8, shared_crop=True), kernel_device)
    assert plan.repeats == 3 and plan.coloured
    expected = crops.render(squares.pixels(), plan, 8)
    torch.testing.assert_close(render(squares, plan, 8), expected, rtol=1e-4, atol=1e-4)
