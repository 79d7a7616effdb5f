"""Batched augmentations against torchvision's functions, image by image."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms import functional as TF

from unshuffle.config import ViewConfig
from unshuffle.data import views
from unshuffle.data.squares import RankSlice
from unshuffle.data.views import UNIFORMS, VIEWS, ViewPlan, view_uniforms

NOTHING = ViewConfig(hflip=0, jitter=0, grayscale=0, blur=0)
CPU = torch.device("cpu")


def squares(count: int = 3, side: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (count, 3, side // 4, side // 4), generator=generator).float()
    noise = 20 * torch.rand(count, 3, side, side, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bilinear") + noise
    return smooth.clamp(0, 255).byte().permute(0, 2, 3, 1)


def images(count: int = 24, side: int = 16) -> Tensor:
    """Images in [0, 1], with black, white and grey ones among them."""
    pictures = squares(count, side).permute(0, 3, 1, 2).float() / 255
    pictures[0], pictures[1], pictures[2] = 0, 1, 0.3
    return pictures


def uniforms_of(count: int, seed: int = 0) -> dict[str, Tensor]:
    table = view_uniforms(count, CPU, torch.Generator().manual_seed(seed))
    assert table is not None
    return dict(zip(UNIFORMS, table.split(list(UNIFORMS.values()), dim=1), strict=True))


@pytest.mark.parametrize("size", [5, 12, 20, 31])
@pytest.mark.parametrize("boxes_of_a_square", [1, 2])
def test_resized_crops_are_torchvisions(size: int, boxes_of_a_square: int) -> None:
    boxes = torch.tensor([(0, 0, 20, 20), (3, 4, 12, 16), (19, 0, 1, 7), (5, 5, 8, 8), (2, 0, 17, 3), (1, 9, 5, 11)])
    flip = torch.tensor([False, True, False, True, True, False])
    pixels = squares(6 // boxes_of_a_square)
    crops = views.resized_crop(pixels, boxes.T.float(), flip, size)
    for index, (top, left, height, width) in enumerate(boxes.tolist()):
        image = pixels[index // boxes_of_a_square].permute(2, 0, 1) / 255
        expected = TF.resized_crop(image, top, left, height, width, [size, size], antialias=True)
        expected = TF.hflip(expected) if flip[index] else expected
        torch.testing.assert_close(crops[index], expected, rtol=0, atol=1e-5)


def box_by_loop(uniforms: dict[str, list[float]], config: ViewConfig, side: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params with given random numbers."""
    for area_uniform, ratio_uniform in zip(uniforms["area"], uniforms["ratio"], strict=True):
        area = side * side * (config.scale[0] + (config.scale[1] - config.scale[0]) * area_uniform)
        low, high = map(math.log, config.ratio)
        ratio = math.exp(low + (high - low) * ratio_uniform)
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= side and 0 < height <= side:
            top = int(uniforms["top"][0] * (side - height + 1))
            return top, int(uniforms["left"][0] * (side - width + 1)), height, width
    width, height = side, side
    if config.ratio[0] > 1:
        height = round(side / config.ratio[0])
    elif config.ratio[1] < 1:
        width = round(side * config.ratio[1])
    return (side - height) // 2, (side - width) // 2, height, width


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [((0.2, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.5, 2.0)), ((1.0, 1.0), (2.0, 3.0)), ((1.0, 1.0), (0.2, 0.4))],
)
def test_boxes_are_sampled_as_torchvision_does(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    config, uniforms = ViewConfig(scale=scale, ratio=ratio), uniforms_of(200)
    boxes = views.random_boxes(uniforms, config, 40).T.int().tolist()
    for index, box in enumerate(boxes):
        row = {name: values[index].tolist() for name, values in uniforms.items()}
        assert tuple(box) == box_by_loop(row, config, 40)


def test_boxes_have_torchvisions_distribution() -> None:
    """Means of torchvision's own samples, within the error of so many."""
    torch.manual_seed(0)
    image, config = torch.zeros(3, 64, 64), ViewConfig()
    expected = np.array([RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    boxes = views.random_boxes(uniforms_of(4000), config, 64).T.numpy()
    np.testing.assert_allclose(boxes.mean(axis=0), expected.mean(axis=0), atol=1.0)
    np.testing.assert_allclose(boxes.std(axis=0), expected.std(axis=0), atol=1.0)


def test_colour_jitter_is_torchvisions_in_every_order() -> None:
    pictures, generator = images(), torch.Generator().manual_seed(1)
    orders = torch.tensor([(a, b, c, 6 - a - b - c) for a in range(4) for b in range(4) for c in range(4)
                           if len({a, b, c}) == 3])  # fmt: skip
    assert len(orders) == len(pictures) == 24
    factors = torch.rand(24, 4, generator=generator) * 2
    factors[:, views.HUE] = torch.rand(24, generator=generator) - 0.5
    factors[3], factors[4] = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 0.5])
    jittered = views.colour_jitter(pictures, factors, orders)
    functions = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    for image, result, order, row in zip(pictures, jittered, orders.tolist(), factors.tolist(), strict=True):
        expected = image
        for kind in order:
            expected = functions[kind](expected, row[kind])
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def test_jitter_factors_are_those_of_torchvision() -> None:
    """The ranges of ColorJitter; every order is as frequent as any other."""
    config, uniforms = ViewConfig(brightness=0.4, contrast=1.5, saturation=0.8, hue=0.1, jitter=0.8), uniforms_of(5000)
    factors, order = views.jitter_factors(uniforms, config)
    jitter = ColorJitter(0.4, 1.5, 0.8, 0.1)
    applied = uniforms["jitter"][:, 0] < 0.8
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    for column, limits in zip(factors.T, ranges, strict=True):
        assert column[applied].min() == pytest.approx(limits[0], abs=0.01)
        assert column[applied].max() == pytest.approx(limits[1], abs=0.01)
        assert column[applied].mean() == pytest.approx(sum(limits) / 2, abs=0.03)
    assert torch.equal(factors[~applied].unique(dim=0), torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    orders, counts = order.unique(dim=0, return_counts=True)
    assert len(orders) == 24 and counts.min() > 150 and counts.max() < 270


def test_hue_and_grayscale_are_torchvisions() -> None:
    pictures = images()
    shift = torch.linspace(-0.5, 0.5, len(pictures))
    for image, moved, amount in zip(pictures, views.adjust_hue(pictures, shift), shift.tolist(), strict=True):
        torch.testing.assert_close(moved, TF.adjust_hue(image, amount), rtol=0, atol=1e-5)
    torch.testing.assert_close(views.grayscale(pictures), TF.rgb_to_grayscale(pictures))


@pytest.mark.parametrize(("size", "kernel_size"), [(8, 1), (16, 1), (30, 3), (48, 5), (112, 11), (224, 23)])
def test_blur_is_torchvisions(size: int, kernel_size: int) -> None:
    assert views.blur_kernel_size(size) == kernel_size
    pictures, sigma = images(4, size), torch.tensor([0.0, 0.1, 0.7, 2.0])
    for image, blurred, amount in zip(pictures, views.gaussian_blur(pictures, sigma), sigma.tolist(), strict=True):
        expected = TF.gaussian_blur(image, [kernel_size] * 2, [amount] * 2) if amount else image
        torch.testing.assert_close(blurred, expected, rtol=0, atol=1e-5)


def view_by_torchvision(image: Tensor, row: dict[str, Tensor], config: ViewConfig, size: int) -> Tensor:
    """One view of a (3, H, H) image by torchvision's functions, one after another."""
    listed = {name: values.tolist() for name, values in row.items()}
    view = TF.resized_crop(image, *box_by_loop(listed, config, image.shape[-1]), [size, size], antialias=True)
    if listed["hflip"][0] < config.hflip:
        view = TF.hflip(view)
    if listed["jitter"][0] < config.jitter:
        functions = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
        strengths = (config.brightness, config.contrast, config.saturation, config.hue)
        for kind in np.argsort(listed["order"]):
            low = -strengths[kind] if kind == views.HUE else max(0.0, 1 - strengths[kind])
            high = strengths[kind] if kind == views.HUE else 1 + strengths[kind]
            view = functions[kind](view, low + (high - low) * listed["factors"][kind])
    if listed["grayscale"][0] < config.grayscale:
        view = TF.rgb_to_grayscale(view, 3)
    if listed["blur"][0] < config.blur:
        sigma = config.sigma[0] + (config.sigma[1] - config.sigma[0]) * listed["sigma"][0]
        view = TF.gaussian_blur(view, [views.blur_kernel_size(size)] * 2, [sigma] * 2)
    return view


@pytest.mark.parametrize("frames", [1, 2])
def test_whole_views_are_torchvisions(frames: int) -> None:
    config, uniforms = ViewConfig(), uniforms_of(60)
    pixels = squares(60 // VIEWS * frames, 48)
    made = ViewPlan(60, config, torch.cat(list(uniforms.values()), dim=1)).crop(pixels, 32)
    for index, view in enumerate(made):
        row = {name: values[index] for name, values in uniforms.items()}
        image = pixels[index * frames // VIEWS].permute(2, 0, 1) / 255
        torch.testing.assert_close(view, view_by_torchvision(image, row, config, 32), rtol=0, atol=1e-4)


def test_probabilities_of_zero_and_one() -> None:
    table = view_uniforms(8, CPU, torch.Generator().manual_seed(0))
    pixels = squares(4, 24)
    config = replace(NOTHING, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    plain = ViewPlan(8, config, table).crop(pixels, 24)
    torch.testing.assert_close(plain, pixels.permute(0, 3, 1, 2).repeat_interleave(2, dim=0) / 255, rtol=0, atol=1e-6)
    flipped = ViewPlan(8, replace(config, hflip=1.0), table).crop(pixels, 24)
    torch.testing.assert_close(flipped, plain.flip(-1), rtol=0, atol=1e-6)
    grey = ViewPlan(8, replace(config, grayscale=1.0), table).crop(pixels, 24)
    torch.testing.assert_close(grey, TF.rgb_to_grayscale(plain, 3), rtol=0, atol=1e-6)


def test_a_slice_of_the_samples_has_the_views_of_the_whole_batch() -> None:
    plan = ViewPlan(8, ViewConfig(), view_uniforms(8, CPU, torch.Generator().manual_seed(0)))
    pixels = squares(4, 24)
    whole, part = plan.crop(pixels, 16), plan.slice(RankSlice(1, 2))
    assert part.count == 4
    torch.testing.assert_close(part.crop(pixels[2:], 16), whole[4:], rtol=0, atol=1e-6)


def test_fixed_views_depend_on_the_pixels_alone() -> None:
    pixels = squares(4, 24)
    whole = ViewPlan(8, ViewConfig()).crop(pixels, 16)
    reverse = ViewPlan(8, ViewConfig()).crop(pixels.flip(0), 16)
    torch.testing.assert_close(whole.unflatten(0, (4, 2)), reverse.unflatten(0, (4, 2)).flip(0), rtol=0, atol=1e-6)
    alone = ViewPlan(8, ViewConfig()).slice(RankSlice(3, 4)).crop(pixels[3:], 16)
    torch.testing.assert_close(alone, whole[6:], rtol=0, atol=1e-6)
    assert not torch.allclose(whole[::2], whole[1::2], atol=0.05), "two views of a sample differ"
    as_clip = ViewPlan(8, ViewConfig()).crop(pixels.repeat_interleave(2, dim=0), 16)
    assert as_clip.shape == whole.shape


@pytest.mark.parametrize("random", [True, False])
def test_nothing_is_read_back_from_a_gpu(random: bool) -> None:
    """Tensors without data raise where a value or a shape would depend on it."""
    constants = (views._taps, views._fixed_table)
    try:
        with FakeTensorMode():
            table = torch.rand(8, sum(views.UNIFORMS.values()), device="cuda") if random else None
            squares = torch.empty(4, 24, 24, 3, dtype=torch.uint8, device="cuda")
            crops = ViewPlan(8, ViewConfig(), table).crop(squares, 16)
    finally:
        for constant in constants:
            constant.cache_clear()  # those of this test have no data either
    assert crops.shape == (8, 3, 16, 16)
