"""What image files and video files have in common: how they are found, refused and resized."""

import os
from collections.abc import Collection
from pathlib import Path

from PIL import Image

from unshuffle.errors import UserError

MIN_SIDE = 16
MAX_ASPECT = 100  # a thinner strip would grow without bound when its short side is scaled up


class BadMedia(Exception):
    """A file that cannot be used; the text says why."""


def find_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Every visible file under a folder whose lower-case suffix is wanted, sorted by relative posix path."""
    if not folder.exists():
        raise UserError(f"{folder} does not exist")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    wanted = [path for path in _walk(folder) if path.suffix.lower() in suffixes and path.is_file()]
    return sorted(wanted, key=lambda path: path.relative_to(folder).as_posix())


def _walk(folder: Path) -> list[Path]:
    """Visible files under a folder, through links to other folders but never twice through one folder."""
    found: list[Path] = []
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and os.path.realpath(Path(parent, name)) not in seen
        )
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    return found


def check_not_empty(file: Path | bytes) -> None:
    """Refuse a file of zero bytes, for which decoders have only obscure words."""
    if (len(file) if isinstance(file, bytes) else file.stat().st_size) == 0:
        raise BadMedia("the file is empty")


def check_short_side(short_side: int) -> None:
    """Refuse to store frames at a size that would itself be refused."""
    if short_side < MIN_SIDE:
        raise UserError(f"a short side of {short_side} pixels is too small: the least is {MIN_SIDE}")


def check_sides(width: int, height: int) -> None:
    """Refuse frames too small or too thin to be of use."""
    if min(width, height) < MIN_SIDE:
        raise BadMedia(f"{width} x {height} pixels is too small: the least is {MIN_SIDE} a side")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadMedia(f"{width} x {height} pixels is too thin: the most is 1 to {MAX_ASPECT}")


def explain(error: Exception) -> str:
    """A decoder's complaint without the path that most of them add to it."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def resize_short_side(image: Image.Image, short_side: int | None) -> Image.Image:
    """The image with its shape kept and its short side made `short_side` pixels; None leaves it alone."""
    if short_side is None or min(image.size) == short_side:
        return image
    return image.resize(scaled_size(image.size, short_side), Image.Resampling.BILINEAR)


def scaled_size(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """The two sides of a frame once its short side is `short_side` pixels."""
    scale = short_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)
