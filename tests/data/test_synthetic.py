import itertools

import numpy as np
import pytest
from PIL import Image

from unshuffle.data import synthetic
from unshuffle.data.synthetic import (
    MOTIONS,
    OBJECTS,
    Pose,
    SyntheticSource,
    render_clip,
    render_image,
    synthetic_clips,
    synthetic_images,
)

MAGENTA = (255, 0, 255)


def images(count: int = 24, seed: int = 0) -> SyntheticSource:
    return synthetic_images(count, 32, seed)


def clips(count: int = 12, seed: int = 0) -> SyntheticSource:
    return synthetic_clips(count, 24, 5, seed)


@pytest.mark.parametrize("make", [images, clips])
def test_the_seed_determines_the_pixels(make) -> None:
    first, again, other = make(), make(), make(seed=1)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert list(first.names) == list(again.names)
    for pixels, other_pixels in zip(first.pixels, other.pixels, strict=True):
        assert not np.array_equal(pixels, other_pixels)


@pytest.mark.parametrize("make", [images, clips])
def test_a_larger_world_begins_with_the_smaller_one(make) -> None:
    small, large = make(7), make(15)
    np.testing.assert_array_equal(small.pixels, large.pixels[:7])
    np.testing.assert_array_equal(small.labels, large.labels[:7])
    assert list(small.names) == list(large.names[:7])


@pytest.mark.parametrize(("make", "classes"), [(images, OBJECTS), (clips, MOTIONS)])
def test_labels_are_balanced_and_named(make, classes) -> None:
    source = make(3 * len(classes) + 1)
    assert list(source.classes) == list(classes)
    assert sorted(np.bincount(source.labels, minlength=len(classes))) == [3] * (len(classes) - 1) + [4]
    assert len(set(source.names)) == len(source)
    for name, label in zip(source.names, source.labels, strict=True):
        assert name.split("/")[1] == source.classes[label]


def test_shapes_and_types() -> None:
    assert images().pixels.shape == (24, 1, 32, 32, 3)
    source = clips()
    assert source.pixels.shape == (12, 5, 24, 24, 3)
    assert source.pixels.dtype == np.uint8 and source.labels.dtype == np.int64
    assert len(source) == 12 and source.num_frames(3) == 5 and source.size(3) == (24, 24)
    np.testing.assert_array_equal(source.read(3, [4, 0, 2]), source.pixels[3][[4, 0, 2]])


@pytest.fixture
def plain_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    """A background in a colour that no object has."""
    monkeypatch.setattr(synthetic, "_scene", lambda rng, size: Image.new("RGB", (size, size), MAGENTA))


def foreground(frame: np.ndarray) -> np.ndarray:
    """Mask of the object in front of a plain scene."""
    return np.abs(frame.astype(int) - MAGENTA).max(axis=-1) > 40


def centroid(mask: np.ndarray) -> tuple[float, float]:
    """Row and column, as fractions of the image."""
    rows, columns = np.nonzero(mask)
    return rows.mean() / len(mask), columns.mean() / len(mask)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.usefixtures("plain_scene")
def test_every_object_is_visible_and_varies(name: str) -> None:
    samples = [render_image(np.random.default_rng(seed), name, 48) for seed in range(4)]
    for sample in samples:
        assert sample.shape == (48, 48, 3)
        assert 0.05 < foreground(sample).mean() < 0.95
    assert not np.array_equal(foreground(samples[0]), foreground(samples[1]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.usefixtures("plain_scene")
def test_motions_have_a_direction(motion: str, seed: int) -> None:
    frames = render_clip(np.random.default_rng(seed), motion, 48, 9)
    assert frames.shape == (9, 48, 48, 3)
    masks = [foreground(frame) for frame in frames]
    rows, columns = np.array([centroid(mask) for mask in masks]).T
    areas = np.array([mask.mean() for mask in masks])
    if motion == "falling":
        assert rows[-1] - rows[0] > 0.3 and (np.diff(rows) > -0.02).all()
    elif motion == "rising":
        assert rows[0] - rows[-1] > 0.3 and (np.diff(rows) < 0.02).all()
    elif motion == "passing":
        steps = np.diff(columns)
        assert abs(columns[-1] - columns[0]) > 0.3 and (abs(steps.sum()) > 0.98 * abs(steps).sum())
    elif motion == "growing":
        assert areas[-1] > 3 * areas[0] and (np.diff(areas) > -0.01).all()
    elif motion == "burning":
        assert areas[0] > 1.5 * areas[-1] and (np.diff(areas) < 0.01).all()
    else:
        assert np.ptp(rows) < 0.1 and np.ptp(columns) < 0.1
        assert all(np.abs(a.astype(int) - b).mean() > 6 for a, b in itertools.pairwise(frames))


def test_objects_pass_in_both_directions() -> None:
    poses = [MOTIONS["passing"](np.random.default_rng(seed))[1] for seed in range(12)]
    for pose in poses:
        assert pose(0).hflip == pose(1).hflip == (pose(1).x < pose(0).x), "they face the way they move"
    assert len({pose(0).hflip for pose in poses}) == 2


def test_wheels_turn_clockwise_for_most_of_a_turn() -> None:
    for seed in range(5):
        name, pose = MOTIONS["rotating"](np.random.default_rng(seed))
        turn = pose(1).angle - pose(0).angle
        assert name == "wheel" and np.pi < turn < 2 * np.pi
    # a point at three o'clock is at six o'clock after a quarter turn: rows count downwards
    quarter = synthetic._to_pixels(np.array([[1.0, 0.5]]), Pose(0.5, 0.5, 1, 1, angle=np.pi / 2), 100)
    np.testing.assert_allclose(quarter, [[50, 100]], atol=1e-9)


def test_hflip_swaps_left_and_right_only() -> None:
    points = np.array([[0.1, 0.2], [0.9, 0.6]])
    flipped = synthetic._to_pixels(points, Pose(0.5, 0.5, 1, 1, hflip=True), 10)
    np.testing.assert_allclose(flipped, [[9, 2], [1, 6]])


def histograms(pixels: np.ndarray) -> np.ndarray:
    rows = [np.histogramdd(image.reshape(-1, 3), bins=4, range=[(0, 256)] * 3)[0].ravel() for image in pixels]
    return np.array([row / np.linalg.norm(row) for row in rows])


def test_colours_do_not_reveal_the_class() -> None:
    source = images(600)
    features = histograms(source.pixels[:, 0])
    similarity = features @ features.T
    np.fill_diagonal(similarity, -1)
    hits = source.labels[similarity.argmax(axis=1)] == source.labels
    chance = 1 / len(OBJECTS)
    assert hits.mean() < 1.8 * chance, f"{hits.mean():.3f}, chance is {chance:.3f}"
