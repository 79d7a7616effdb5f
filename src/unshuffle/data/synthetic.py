"""The synthetic world: labelled images and clips, rendered from a seed in seconds, so that everything runs anywhere.

An image shows one object made of parts, upright in front of a scene. Colours and textures of every part are random and
therefore do not reveal the class: it is determined by which parts there are and where they are, which is also what
ordering tiles requires. A clip shows an object in a motion with a direction in time, so that only one permutation of
its frames looks right, and the reverse looks wrong.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from unshuffle.data.source import Pixels

Points = npt.NDArray[np.float64]
Parts = list[Points]

SUPERSAMPLING = 2  # rendered this much larger, then averaged: soft edges


def _box(left: float, top: float, right: float, bottom: float) -> Points:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _polygon(*points: tuple[float, float]) -> Points:
    return np.array(points)


def _ellipse(x: float, y: float, radius_x: float, radius_y: float) -> Points:
    angles = np.linspace(0, 2 * np.pi, 28, endpoint=False)
    return np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], axis=1)


def _disc(x: float, y: float, radius: float) -> Points:
    return _ellipse(x, y, radius, radius)


def _read_objects(kind: str) -> dict[str, Parts]:
    """Read objects in the unit square, y pointing down, facing right; later parts cover earlier ones."""
    shapes: dict[str, Callable[..., Points]] = {"box": _box, "polygon": _polygon, "ellipse": _ellipse, "disc": _disc}
    objects = json.loads(files("unshuffle.data").joinpath("synthetic_objects.json").read_text())[kind]
    return {name: [shapes[shape](*numbers) for shape, *numbers in parts] for name, parts in objects.items()}


OBJECTS = _read_objects("images")
# a wheel whose single thick spoke shows the angle, a ball, a candle that burns down, and objects of images
MOVING_OBJECTS = _read_objects("clips") | {
    name: OBJECTS[name] for name in ("rocket", "car", "fish", "flower", "tree", "mushroom")
}


@dataclass(frozen=True)
class Pose:
    """Centre and size of an object as fractions of the image, angle in radians, and whether it is flipped."""

    x: float
    y: float
    width: float
    height: float
    angle: float = 0.0
    hflip: bool = False


def _to_pixels(points: Points, pose: Pose, size: int) -> Points:
    """Transform points of the unit square to pixel coordinates (x, y)."""
    centred = points - 0.5
    if pose.hflip:
        centred = centred * (-1, 1)
    scaled = centred * (pose.width, pose.height)
    cos, sin = np.cos(pose.angle), np.sin(pose.angle)
    rotated = scaled @ np.array([[cos, sin], [-sin, cos]])
    return np.asarray((rotated + np.array([pose.x, pose.y])) * size)


@dataclass(frozen=True)
class Appearance:
    """Colours and texture of one object."""

    colours: npt.NDArray[np.uint8]
    frequency: npt.NDArray[np.float64]
    phase: float
    contrast: float

    @classmethod
    def sample(cls, rng: np.random.Generator, num_parts: int) -> "Appearance":
        """Sample an appearance in which consecutive parts differ clearly in brightness."""
        colours = rng.uniform(30, 225, (num_parts, 3))
        lightness = np.where(np.arange(num_parts) % 2 == rng.integers(2), 55.0, -55.0)
        angle, waves = rng.uniform(0, np.pi), rng.uniform(6, 16)
        return cls(
            colours=np.clip(colours + lightness[:, None], 0, 255).astype(np.uint8),
            frequency=2 * np.pi * waves * np.array([np.cos(angle), np.sin(angle)]),
            phase=float(rng.uniform(0, 2 * np.pi)),
            contrast=float(rng.choice([0.0, 0.25])),
        )


def _paint(canvas: Image.Image, parts: Parts, pose: Pose, appearance: Appearance) -> None:
    size = canvas.size[0]
    mask = Image.new("L", canvas.size)
    draw, draw_mask = ImageDraw.Draw(canvas), ImageDraw.Draw(mask)
    for points, colour in zip(parts, appearance.colours, strict=True):
        outline = [tuple(point) for point in _to_pixels(points, pose, size)]
        draw.polygon(outline, fill=tuple(int(c) for c in colour))
        draw_mask.polygon(outline, fill=255)
    if appearance.contrast:
        y, x = np.mgrid[:size, :size] / size
        wave = 128 + 127 * appearance.contrast * np.sin(
            appearance.frequency[0] * x + appearance.frequency[1] * y + appearance.phase
        )
        # 128 leaves a colour unchanged; the wave darkens and lightens around it
        shaded = np.asarray(canvas, np.int32) * wave.astype(np.int32)[..., None] // 128
        canvas.paste(Image.fromarray(np.clip(shaded, 0, 255).astype(np.uint8)), mask=mask)


def _jitter_parts(parts: Parts, rng: np.random.Generator, amount: float = 0.08) -> Parts:
    """Scale and shift each part a little, so that no two objects of a class are equal."""
    jittered = []
    for points in parts:
        centre = points.mean(axis=0)
        scale = rng.uniform(1 - 2 * amount, 1 + 2 * amount, 2)
        jittered.append((points - centre) * scale + centre + rng.uniform(-amount / 3, amount / 3, 2))
    return jittered


def _landscape(rng: np.random.Generator, x: Points, y: Points) -> Points:
    """Smooth sky above a ground whose texture grows towards the viewer."""
    horizon = rng.uniform(0.4, 0.8)
    sky, ground = rng.uniform(20, 235, (2, 3))
    height = np.clip(y / horizon, 0, 1)[..., None]
    above = sky * (1 - height) + np.clip(sky + rng.uniform(-70, 70), 0, 255) * height
    depth = np.clip((y - horizon) / (1 - horizon), 1e-3, 1)
    waves = np.sin(rng.uniform(14, 26) / (depth + 0.35)) * np.sin(rng.uniform(9, 25) * (x - 0.5) / (depth + 0.5))
    below = ground + (rng.uniform(15, 50) * waves)[..., None]
    return np.asarray(np.where((y < horizon)[..., None], above, below))


def _wall(rng: np.random.Generator, x: Points, y: Points) -> Points:
    """Flat texture that is the same everywhere, so that only the object reveals the position of a tile."""
    colour, angle, waves = rng.uniform(30, 225, 3), rng.uniform(0, np.pi), rng.uniform(20, 70, 2)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    pattern = np.sin(waves[0] * along) * (np.sin(waves[1] * across) if rng.integers(2) else 1)
    return np.asarray(colour + (rng.uniform(0, 45) * pattern)[..., None])


def _haze(rng: np.random.Generator, x: Points, y: Points) -> Points:
    """Gradient from one colour to another in a random direction."""
    start, end = rng.uniform(20, 235, (2, 3))
    angle = rng.uniform(0, 2 * np.pi)
    fraction = np.clip(0.5 + (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle), 0, 1)[..., None]
    return np.asarray(start * (1 - fraction) + end * fraction)


def _scene(rng: np.random.Generator, size: int) -> Image.Image:
    """Render a random background."""
    y, x = np.mgrid[:size, :size] / size
    background = (_landscape, _wall, _haze)[rng.integers(3)]
    return Image.fromarray(np.clip(background(rng, x, y), 0, 255).astype(np.uint8))


def _downsample(canvas: Image.Image, rng: np.random.Generator, size: int) -> Pixels:
    """Average to the final size and add noise."""
    small = np.asarray(canvas.resize((size, size), Image.Resampling.BOX), np.float32)
    return np.clip(small + rng.normal(0, 4, small.shape), 0, 255).astype(np.uint8)


def render_image(rng: np.random.Generator, name: str, size: int) -> Pixels:
    """Render one image of the named object, as (size, size, 3)."""
    canvas = _scene(rng, size * SUPERSAMPLING)
    parts = _jitter_parts(OBJECTS[name], rng)
    side = rng.uniform(0.6, 0.95)
    pose = Pose(
        x=rng.uniform(0.37, 0.63),
        y=rng.uniform(0.4, 0.6),
        width=side * rng.uniform(0.85, 1.1),
        height=side,
        angle=rng.uniform(-0.15, 0.15),
        hflip=bool(rng.integers(2)),
    )
    _paint(canvas, parts, pose, Appearance.sample(rng, len(parts)))
    return _downsample(canvas, rng, size)


Motion = Callable[[np.random.Generator], tuple[str, Callable[[float], Pose]]]


def _falling(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    x, side, drift = rng.uniform(0.25, 0.75), rng.uniform(0.25, 0.45), rng.uniform(-0.15, 0.15)
    start, end = rng.uniform(0.0, 0.2), rng.uniform(0.75, 0.95)
    return "ball", lambda t: Pose(x + drift * t, start + (end - start) * t**1.5, side, side)


def _rising(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    x, side = rng.uniform(0.3, 0.7), rng.uniform(0.35, 0.55)
    start, end = rng.uniform(0.75, 0.95), rng.uniform(0.0, 0.2)
    return "rocket", lambda t: Pose(x, start + (end - start) * t**1.5, side, side)


def _passing(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    """Objects move the way they face: to the right, or flipped to the left."""
    name, hflip = str(rng.choice(["car", "fish"])), bool(rng.integers(2))
    y, side = rng.uniform(0.4, 0.75), rng.uniform(0.4, 0.6)
    start, end = rng.uniform(-0.05, 0.15), rng.uniform(0.85, 1.05)

    def pose(t: float) -> Pose:
        x = start + (end - start) * t
        return Pose(1 - x if hflip else x, y, side, side, hflip=hflip)

    return name, pose


def _growing(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    name, x = str(rng.choice(["flower", "tree", "mushroom"])), rng.uniform(0.35, 0.65)
    foot, small, large = rng.uniform(0.85, 0.98), rng.uniform(0.1, 0.25), rng.uniform(0.7, 0.9)

    def pose(t: float) -> Pose:
        side = small + (large - small) * t
        return Pose(x, foot - side / 2, side, side)

    return name, pose


def _burning(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    x, foot = rng.uniform(0.3, 0.7), rng.uniform(0.85, 0.98)
    tall, short, width = rng.uniform(0.75, 0.9), rng.uniform(0.15, 0.3), rng.uniform(0.6, 0.9)

    def pose(t: float) -> Pose:
        height = tall + (short - tall) * t
        return Pose(x, foot - height / 2, width, height)

    return "candle", pose


def _rotating(rng: np.random.Generator) -> tuple[str, Callable[[float], Pose]]:
    """Clockwise rotation by most of one turn."""
    x, y, side = rng.uniform(0.4, 0.6), rng.uniform(0.4, 0.6), rng.uniform(0.6, 0.85)
    start, turn = rng.uniform(0, 2 * np.pi), rng.uniform(1.2, 1.8) * np.pi
    return "wheel", lambda t: Pose(x, y, side, side, angle=start + turn * t)


MOTIONS: dict[str, Motion] = {
    "falling": _falling,
    "rising": _rising,
    "passing": _passing,
    "growing": _growing,
    "burning": _burning,
    "rotating": _rotating,
}


def render_clip(rng: np.random.Generator, motion: str, size: int, num_frames: int) -> Pixels:
    """Render one clip of the named motion, as (num_frames, size, size, 3)."""
    scene = _scene(rng, size * SUPERSAMPLING)
    name, pose = MOTIONS[motion](rng)
    parts = _jitter_parts(MOVING_OBJECTS[name], rng)
    appearance = Appearance.sample(rng, len(parts))
    frames = []
    for t in np.linspace(0, 1, num_frames):
        canvas = scene.copy()
        _paint(canvas, parts, pose(float(t)), appearance)
        frames.append(_downsample(canvas, rng, size))
    return np.stack(frames)


@dataclass(frozen=True)
class SyntheticSource:
    """Images or clips of the synthetic world in memory, with labels, which pretraining does not use."""

    names: Sequence[str]
    labels: npt.NDArray[np.int64]
    classes: Sequence[str]
    pixels: Pixels
    """(items, frames, height, width, 3)"""

    def __len__(self) -> int:
        return len(self.pixels)

    def num_frames(self, item: int) -> int:
        """Number of frames of one item: 1 for an image."""
        return int(self.pixels.shape[1])

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of an item's frames."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Read the chosen frames of one item, as (len(frames), height, width, 3) RGB."""
        return self.pixels[item, list(frames)]

    @property
    def flat_bytes(self) -> int:
        """Size of all frames in bytes."""
        return self.pixels.nbytes

    def flat(self) -> tuple[Pixels, npt.NDArray[np.int64]]:
        """Return the bytes of all frames, and the offset of each item."""
        return self.pixels.reshape(-1), np.arange(len(self)) * int(np.prod(self.pixels.shape[1:]))


def _render_all(
    kind: str,
    classes: Sequence[str],
    count: int,
    seed: int,
    render: Callable[[np.random.Generator, str], Pixels],
) -> SyntheticSource:
    labels = [item % len(classes) for item in range(count)]
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
    pixels = np.stack([render(rng, classes[label]) for rng, label in zip(rngs, labels, strict=True)])
    names = [f"{kind}/{classes[label]}/{item:05d}" for item, label in enumerate(labels)]
    return SyntheticSource(names, np.array(labels), classes, pixels)


def synthetic_images(count: int, size: int, seed: int) -> SyntheticSource:
    """Render labelled images of objects, the classes in turn."""
    return _render_all("image", tuple(OBJECTS), count, seed, lambda rng, name: render_image(rng, name, size)[None])


def synthetic_clips(count: int, size: int, num_frames: int, seed: int) -> SyntheticSource:
    """Render labelled clips of motions, the classes in turn."""
    return _render_all("clip", tuple(MOTIONS), count, seed, lambda rng, name: render_clip(rng, name, size, num_frames))
