import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unshuffle.config import AugmentationConfig, Config, SpatialConfig, TemporalConfig
from unshuffle.data import crops as cropping
from unshuffle.data.crops import CropPlan, Plan, normalise, permute, render
from unshuffle.data.squares import RankSlice
from unshuffle.data.views import ViewPlan
from unshuffle.permutations import inverse
from unshuffle.tasks.instance import InstanceTask
from unshuffle.tasks.spatial import SpatialTask
from unshuffle.tasks.temporal import TemporalTask


@dataclass(frozen=True)
class Options:
    """The options that decide the crops of both tasks."""

    grid: int = 3
    frames: int = 8
    crop_size: int = 75
    tile_fraction: float = 64 / 85
    shared_crop: bool = False
    colour_jitter: bool = True
    hflip: float = 0.0
    grayscale: float = 0.3
    gamma: float = 0.3
    saturation: float = 0.3
    hue: float = 0.05

    @property
    def config(self) -> Config:
        return Config(
            spatial=SpatialConfig(crop_size=self.crop_size, grid=self.grid, tile_fraction=self.tile_fraction),
            temporal=TemporalConfig(
                crop_size=self.crop_size,
                frames=self.frames,
                shared_crop=self.shared_crop,
                colour_jitter=self.colour_jitter,
            ),
            augmentation=AugmentationConfig(self.hflip, self.grayscale, self.gamma, self.saturation, self.hue),
        )


NO_JITTER = Options(grayscale=0, gamma=0, saturation=0, hue=0)
"""Random crops in true colours."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plan_views(batch: int, size: int, options: Options, randomness: torch.Generator | None = None) -> ViewPlan:
    return InstanceTask(options.config).plan_crops(batch, size, randomness)


def plan_tiles(batch: int, size: int, options: Options, randomness: torch.Generator | None = None) -> CropPlan:
    return SpatialTask(options.config).plan_crops(batch, size, randomness)


def plan_frames(batch: int, size: int, options: Options, randomness: torch.Generator | None = None) -> CropPlan:
    return TemporalTask(options.config).plan_crops(batch, size, randomness)


def tiles(images: torch.Tensor, options: Options, randomness: torch.Generator | None = None) -> torch.Tensor:
    return render(images, plan_tiles(len(images), images.shape[1], options, randomness), options.crop_size)


def frames(clips: torch.Tensor, options: Options, randomness: torch.Generator | None = None) -> torch.Tensor:
    plan = plan_frames(len(clips), clips.shape[2], replace(options, frames=clips.shape[1]), randomness)
    return render(clips.flatten(0, 1), plan, options.crop_size)


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def coordinates(batch: int, size: int) -> torch.Tensor:
    """Images whose colour tells row, column and image."""
    images = np.zeros((batch, size, size, 3), np.uint8)
    for item in range(batch):
        for row in range(size):
            for column in range(size):
                images[item, row, column] = row, column, item
    return torch.from_numpy(images)


def decoded(crops: torch.Tensor) -> np.ndarray:
    """(..., 3, S, S) crops that were not normalised back to bytes."""
    return (crops * 255).round().long().numpy()


def slow_resize(crop: np.ndarray, side: int) -> np.ndarray:
    """(S, S, 3) floats with Pillow's antialiased bilinear filter."""
    planes = [
        Image.fromarray(np.ascontiguousarray(crop[..., channel]).astype(np.float32)).resize(
            (side, side), Image.Resampling.BILINEAR
        )
        for channel in range(3)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def slow_normalise(crop: np.ndarray) -> np.ndarray:
    """(S, S, 3) floats to (3, S, S), one channel at a time."""
    result = []
    for channel in range(3):
        values = crop[..., channel].astype(np.float64)
        result.append((values - values.mean()) / max(values.std(), 2 / 255))
    return np.stack(result)


def slow_tiles(image: np.ndarray, grid: int, fraction: float, side: int) -> list[np.ndarray]:
    """Centre crops of the cells, row by row, as (3, S, S)."""
    result = []
    cell = len(image) // grid
    cut = round(cell * fraction)
    for row in range(grid):
        for column in range(grid):
            top, left = row * cell + (cell - cut) // 2, column * cell + (cell - cut) // 2
            crop = image[top : top + cut, left : left + cut] / 255
            result.append(slow_normalise(crop if cut == side else slow_resize(crop, side)))
    return result


@pytest.fixture
def unnormalised(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Crops as they are before the last step."""
    with monkeypatch.context() as patch:
        patch.setattr(cropping, "normalise", lambda crops: crops)
        yield


@pytest.mark.parametrize("grid", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [60, 61, 64, 67])
@pytest.mark.parametrize(("fraction", "side"), [(1.0, 11), (64 / 85, 20), (0.5, 8)])
def test_tiles_against_a_loop(grid: int, size: int, fraction: float, side: int) -> None:
    images = random_bytes(3, size, size, 3, seed=grid)
    config = Options(grid=grid, tile_fraction=fraction, crop_size=side)
    ours = tiles(images, config)
    assert ours.shape == (3, grid * grid, 3, side, side)
    expected = np.stack([np.stack(slow_tiles(image, grid, fraction, side)) for image in images.numpy()])
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("grid", [2, 3, 4, 5])
@pytest.mark.parametrize("remainder", [0, 1])
@pytest.mark.usefixtures("unnormalised")
def test_whole_cells_put_back_are_the_image(grid: int, remainder: int) -> None:
    cell = 7
    images = random_bytes(2, grid * cell + remainder, grid * cell + remainder, 3)
    parts = decoded(tiles(images, Options(grid=grid, tile_fraction=1, crop_size=cell)))
    for image, its_parts in zip(images.numpy(), parts, strict=True):
        rows = [
            np.concatenate([its_parts[row * grid + column] for column in range(grid)], axis=2) for row in range(grid)
        ]
        rebuilt = np.concatenate(rows, axis=1).transpose(1, 2, 0)
        np.testing.assert_array_equal(rebuilt, image[: grid * cell, : grid * cell])


@pytest.mark.parametrize("grid", [2, 3, 4, 5])
@pytest.mark.parametrize("fraction", [0.5, 0.8, 1.0])
@pytest.mark.usefixtures("unnormalised")
def test_random_tile_crops_cover_their_cell_and_never_leave_it(grid: int, fraction: float) -> None:
    size, batch = 10 * grid + 1, 40
    side = round(10 * fraction)
    config = replace(NO_JITTER, grid=grid, tile_fraction=fraction, crop_size=side)
    crops = decoded(tiles(coordinates(batch, size), config, generator()))
    seen: list[set[int]] = [set(), set()]
    for item in range(batch):
        for part in range(grid * grid):
            rows, columns, owner = crops[item, part]
            assert (owner == item).all()
            np.testing.assert_array_equal(rows, rows[0, 0] + np.arange(side)[:, None] + np.zeros((1, side)))
            np.testing.assert_array_equal(columns, columns[0, 0] + np.arange(side)[None] + np.zeros((side, 1)))
            seen[0].add(int(rows[0, 0]) - part // grid * 10)
            seen[1].add(int(columns[0, 0]) - part % grid * 10)
    assert seen == [set(range(10 - side + 1))] * 2


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(("size", "side"), [(21, 21), (29, 24), (29, 12), (16, 20)])
def test_frames_against_a_loop(size: int, side: int, random: bool) -> None:
    clips = random_bytes(2, 3, size, size, 3)
    ours = frames(clips, replace(NO_JITTER, crop_size=side), generator() if random else None)
    for clip, its_frames in zip(clips.numpy(), ours.numpy(), strict=True):
        for frame, mine in zip(clip, its_frames, strict=True):
            np.testing.assert_allclose(mine, slow_normalise(slow_resize(frame / 255, side)), atol=2e-4)


def test_the_papers_tiles_are_64_of_85_pixels_made_75() -> None:
    assert plan_tiles(1, 255, Options()).side == 64
    assert tiles(random_bytes(1, 255, 255, 3), Options()).shape == (1, 9, 3, 75, 75)
    assert frames(random_bytes(1, 8, 224, 224, 3), Options()).shape == (1, 8, 3, 75, 75)


def test_position_t_holds_part_psi_t() -> None:
    parts = torch.tensor([[10, 11, 12], [20, 21, 22]])
    permutations = torch.tensor([[[1, 2, 0], [0, 2, 1]], [[2, 1, 0], [0, 1, 2]]])
    assert permute(parts, permutations).tolist() == [
        [[11, 12, 10], [10, 12, 11]],
        [[22, 21, 20], [20, 21, 22]],
    ]


@pytest.mark.parametrize("grid", [2, 3, 4])
def test_the_identity_leaves_the_parts_as_they_are(grid: int) -> None:
    parts = tiles(random_bytes(2, 40, 40, 3), Options(grid=grid, crop_size=8))
    identity = torch.arange(grid * grid).expand(2, 1, -1)
    assert torch.equal(permute(parts, identity)[:, 0], parts)


@given(st.integers(2, 12).flatmap(lambda parts: st.lists(st.permutations(range(parts)), min_size=1, max_size=4)))
@settings(max_examples=50, deadline=None)
def test_permute_against_a_loop_and_back(rows: list[list[int]]) -> None:
    batch, count, parts = 2, len(rows), len(rows[0])
    values = torch.arange(batch * parts * 2).reshape(batch, parts, 2)
    permutations = torch.tensor([rows, rows[::-1]])
    permuted = permute(values, permutations)
    assert permuted.shape == (batch, count, parts, 2)
    for sample in range(batch):
        for number in range(count):
            psi = permutations[sample, number].tolist()
            for position in range(parts):
                assert permuted[sample, number, position].equal(values[sample, psi[position]])
            back = torch.from_numpy(inverse([psi]))[None]
            assert permute(permuted[sample, number][None], back)[0, 0].equal(values[sample])


def test_normalise_against_numpy() -> None:
    crops = random_bytes(5, 9, 9, 3).permute(0, 3, 1, 2) / 255
    ours = normalise(crops)
    expected = np.stack([slow_normalise(crop) for crop in crops.permute(0, 2, 3, 1).numpy()])
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(ours.mean(dim=(2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(ours.std(dim=(2, 3), correction=0), 1, atol=1e-4)


def test_a_constant_crop_becomes_zeros() -> None:
    images = torch.full((1, 12, 12, 3), 200, dtype=torch.uint8)
    np.testing.assert_allclose(tiles(images, Options(crop_size=4)), np.zeros((1, 9, 3, 4, 4)), atol=1e-4)
    np.testing.assert_allclose(normalise(torch.full((1, 3, 4, 4), 0.3)), np.zeros((1, 3, 4, 4)), atol=1e-4)


def test_hardly_any_contrast_is_not_blown_up() -> None:
    crop = torch.zeros(1, 3, 4, 4)
    crop[0, :, 0, 0] = 1 / 255
    assert normalise(crop).abs().max() < 0.5


@pytest.mark.usefixtures("unnormalised")
def test_grey_images_have_equal_channels_and_the_luma_of_the_colours() -> None:
    images = random_bytes(2, 12, 12, 3)
    config = replace(NO_JITTER, tile_fraction=1, crop_size=4, grayscale=1)
    colour, gray = tiles(images, config), tiles(images, config, generator())
    luma = 0.299 * colour[:, :, 0] + 0.587 * colour[:, :, 1] + 0.114 * colour[:, :, 2]
    for channel in range(3):
        np.testing.assert_allclose(gray[:, :, channel], luma, atol=1e-5)
    jittered = tiles(images, Options(grayscale=1, crop_size=4), generator())
    np.testing.assert_allclose(jittered[:, :, :1].expand_as(jittered), jittered, atol=1e-5)


@pytest.mark.usefixtures("unnormalised")
def test_the_share_of_grey_images() -> None:
    config = replace(NO_JITTER, grid=2, tile_fraction=1, crop_size=2, grayscale=0.3)
    crops = tiles(random_bytes(2000, 4, 4, 3), config, generator())
    gray = (crops.amax(dim=2) - crops.amin(dim=2)).amax(dim=(2, 3)) < 1e-5
    assert torch.equal(gray.all(dim=1), gray.any(dim=1)), "all tiles of an image are gray or none"
    assert 0.26 < gray[:, 0].double().mean() < 0.34


@pytest.mark.usefixtures("unnormalised")
def test_without_jitter_the_colours_stay() -> None:
    images = random_bytes(2, 12, 12, 3)
    config = replace(NO_JITTER, tile_fraction=1, crop_size=4)
    np.testing.assert_allclose(tiles(images, config, generator()), tiles(images, config), atol=1e-5)


@pytest.mark.usefixtures("unnormalised")
def test_gamma_is_an_exponent_of_each_tile_within_its_range() -> None:
    images = torch.tensor([77, 178], dtype=torch.uint8).repeat(3)[None, :, None, None].expand(200, 6, 6, 3)
    crops = tiles(images, replace(NO_JITTER, gamma=0.3, tile_fraction=1, crop_size=2), generator())
    exponents = crops[..., 0, 0].log() / np.log(77 / 255)
    np.testing.assert_allclose(crops[..., 1, 0].log() / np.log(178 / 255), exponents, rtol=1e-4)
    assert (exponents.amax(dim=2) - exponents.amin(dim=2)).max() < 1e-4, "all channels of a tile alike"
    logs = exponents[..., 0].log()
    assert -0.3001 <= logs.min() < -0.29 and 0.29 < logs.max() <= 0.3001
    assert (logs.amax(dim=1) - logs.amin(dim=1)).min() > 0.01, "each tile has its own jitter"


def test_gamma_survives_the_normalisation() -> None:
    images = random_bytes(4, 12, 12, 3)
    config = replace(NO_JITTER, tile_fraction=1, crop_size=4)
    still, moved = (tiles(images, changed, generator()) for changed in (config, replace(config, gamma=0.5)))
    assert (still - moved).abs().mean() > 0.05


@pytest.mark.usefixtures("unnormalised")
def test_colours_stay_in_their_range() -> None:
    images = random_bytes(4, 12, 12, 3) // 128 * 255
    crops = tiles(images, Options(gamma=2.0, saturation=3.0, crop_size=4), generator())
    assert crops.min() == 0 and crops.max() == 1


def test_saturation_matrix() -> None:
    ours = cropping._saturation_matrix(torch.tensor([1.0, 0.0, 0.4]))
    colours = np.random.default_rng(0).uniform(size=(20, 3))
    for matrix, amount in zip(ours.numpy(), [1.0, 0.0, 0.4], strict=True):
        for colour in colours:
            gray = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
            np.testing.assert_allclose(matrix @ colour, gray + amount * (colour - gray), atol=1e-6)


@given(st.floats(-math.pi, math.pi))
@settings(max_examples=30, deadline=None)
def test_hue_matrix_is_a_rotation_that_keeps_grey(angle: float) -> None:
    (matrix,) = cropping._hue_matrix(torch.tensor([angle])).double().numpy()
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-5)
    assert np.linalg.det(matrix) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(matrix @ np.ones(3), np.ones(3), atol=1e-5)
    assert np.trace(matrix) == pytest.approx(1 + 2 * math.cos(angle), abs=1e-5)


def test_hue_matrix_by_thirds_of_a_turn() -> None:
    none, third, whole = cropping._hue_matrix(torch.tensor([0.0, 2 * math.pi / 3, 2 * math.pi])).numpy()
    np.testing.assert_allclose(none, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(whole, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(third @ [1, 0, 0], [0, 1, 0], atol=1e-6)  # red turns green
    np.testing.assert_allclose(third @ [0, 1, 0], [0, 0, 1], atol=1e-6)  # green turns blue


@pytest.mark.parametrize("make", [tiles, frames])
def test_the_seed_decides(make) -> None:
    data = random_bytes(2, 20, 20, 3) if make is tiles else random_bytes(2, 4, 20, 20, 3)
    config = Options(crop_size=8)
    first = make(data, config, generator(1))
    assert torch.equal(first, make(data, config, generator(1)))
    assert not torch.equal(first, make(data, config, generator(2)))
    same = generator(1)
    assert torch.equal(first, make(data, config, same)) and not torch.equal(first, make(data, config, same))


@pytest.mark.parametrize("make", [tiles, frames])
def test_without_a_generator_nothing_is_random(make) -> None:
    data = random_bytes(2, 20, 20, 3) if make is tiles else random_bytes(2, 4, 20, 20, 3)
    state = torch.get_rng_state()
    first = make(data, Options(crop_size=8))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(first, make(data, Options(crop_size=8)))


def test_a_generator_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    tiles(random_bytes(2, 20, 20, 3), Options(crop_size=8), generator())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shared", [False, True])
def test_the_colour_jitter_of_a_shared_crop_is_the_same_for_all_frames_of_a_clip(shared: bool) -> None:
    clips = random_bytes(3, 1, 20, 20, 3).expand(-1, 5, -1, -1, -1)
    crops = frames(clips, Options(crop_size=8, shared_crop=shared), generator())
    for clip in crops:
        equal = [torch.equal(clip[0], frame) for frame in clip[1:]]
        assert all(equal) if shared else not any(equal)
    assert not torch.equal(crops[0], crops[1])


@pytest.mark.usefixtures("unnormalised")
def test_colour_jitter_can_be_turned_off() -> None:
    clips = random_bytes(2, 3, 16, 16, 3)
    config = Options(crop_size=8, colour_jitter=False)
    assert torch.equal(frames(clips, config, generator()), frames(clips, config))
    jittered = frames(clips, replace(config, colour_jitter=True), generator())
    assert not torch.allclose(jittered, frames(clips, config), atol=1e-2)


def test_frames_are_never_turned_grey() -> None:
    clips = random_bytes(2, 3, 16, 16, 3)
    config = replace(NO_JITTER, crop_size=8, grayscale=1)
    np.testing.assert_allclose(frames(clips, config, generator()), frames(clips, config), atol=1e-4)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("make", [plan_tiles, plan_frames, plan_views])
def test_crops_rendered_in_chunks_are_those_of_the_whole_batch(
    make: Callable[..., Plan], random: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(crop_size=12, hflip=0.5)
    plan = make(7, 48, options, generator() if random else None)
    per_sample = options.frames if make is plan_frames else 1
    squares = torch.randint(0, 256, (7 * per_sample, 48, 48, 3), generator=generator(1)).byte()
    whole = normalise(plan.crop(squares, 12)).view(7, plan.parts, 3, 12, 12)
    for numbers in (1, 1000, 2 * plan.parts * 3 * 12**2, 1 << 30):  # one sample at a time, a few, all at once
        monkeypatch.setattr(cropping, "CPU_CHUNK", numbers)
        torch.testing.assert_close(render(squares, plan, 12), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shared_crop", [False, True])
def test_a_slice_of_the_plan_renders_its_slice_of_the_crops(shared_crop: bool) -> None:
    config = Options(frames=4, crop_size=10, shared_crop=shared_crop)
    for plan, parts, frames_each in ((plan_tiles, 9, 1), (plan_frames, 4, 4)):
        squares = random_bytes(6 * frames_each, 48, 48, 3)
        own = squares[2 * frames_each : 4 * frames_each]
        whole = plan(6, 48, config, generator())
        part = render(own, whole.slice(RankSlice(1, 3)), 10)
        assert part.shape == (2, parts, 3, 10, 10)
        torch.testing.assert_close(part, render(squares, whole, 10)[2:4], rtol=0, atol=1e-5)


def all_flipped(plan: CropPlan) -> CropPlan:
    assert plan.uniforms is not None
    plan.uniforms[:, 6] = 0.0
    return plan


@pytest.mark.parametrize("size", [30, 32])
def test_flipped_tiles_are_those_of_the_flipped_image(size: int) -> None:
    config = Options(crop_size=7, hflip=0.5)
    images = random_bytes(3, size, size, 3)
    plan = all_flipped(plan_tiles(3, size, config, generator()))
    by_hand = images.clone()
    by_hand[:, :, :30] = images[:, :, :30].flip(2)  # 30 columns are tiled
    torch.testing.assert_close(render(images, plan, 7), render(by_hand, replace(plan, hflip=0.0), 7))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_the_frames_of_a_clip_are_flipped_together(shared: bool, probability: float) -> None:
    options = replace(NO_JITTER, crop_size=6, frames=4, shared_crop=shared, hflip=probability)
    clips = random_bytes(64, 4, 9, 9, 3).flatten(0, 1)
    plan = plan_frames(64, 9, options, generator())
    upright, flipped = (render(pixels, replace(plan, hflip=0.0), 6) for pixels in (clips, clips.flip(2)))
    crops = render(clips, plan, 6)
    is_flipped = [torch.equal(clip, expected) for clip, expected in zip(crops, flipped, strict=True)]
    is_upright = [torch.equal(clip, expected) for clip, expected in zip(crops, upright, strict=True)]
    assert all(a != b for a, b in zip(is_flipped, is_upright, strict=True))
    assert 64 * probability * 0.5 < sum(is_flipped) < 64 * probability * 1.5
