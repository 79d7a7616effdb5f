"""Images and clips that are sent to the server, decoded like any file that is not trusted."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unshuffle.config import LimitsConfig
from unshuffle.data.batches import spaced_frames
from unshuffle.data.dataset import centre_square
from unshuffle.data.media import BadMedia, count_frames, read_frames, read_image, recognise
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError

LIMITS = LimitsConfig(max_pixels=50_000_000, max_frames=5_000, max_seconds=20.0)


def decode_image(data: bytes) -> Pixels:
    """Return an image, or the middle frame of a clip."""
    return _decode(data, 1, None, 0)[0]


def decode_squares(data: bytes, frames: int, side: int, span: int) -> Tensor:
    """Return an image or a clip in the form of a sample for validation, (1, frames, side, side, 3) bytes."""
    squares = [centre_square(pixels, side) for pixels in _decode(data, frames, side, span)]
    return torch.from_numpy(np.stack(squares))[None]


def _decode(data: bytes, frames: int, short_side: int | None, span: int) -> list[Pixels]:
    kinds = recognise(data[:4096])
    if "videos" in kinds and (frames > 1 or "images" not in kinds):
        return _decode_clip(data, frames, short_side, span)
    if frames > 1:
        raise UserError("this task orders the frames of a clip: choose a video")
    try:
        return [read_image(data, short_side, LIMITS)]
    except BadMedia as problem:
        raise UserError(f"this image cannot be used: {problem}") from None


def _decode_clip(data: bytes, frames: int, short_side: int | None, span: int) -> list[Pixels]:
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip"
        clip.write_bytes(data)
        try:
            chosen = spaced_frames(count_frames(clip, LIMITS), frames, span)
            length = 2 if frames == 1 else 1  # one frame alone is refused as no clip
            spans = [range(frame, frame + length) for frame in dict.fromkeys(chosen)]
            decoded = list(read_frames(clip, short_side, limits=LIMITS, spans=spans))
        except BadMedia as problem:
            raise UserError(f"this clip cannot be used: {problem}") from None
    if len(decoded) < frames:
        raise UserError(f"this clip cannot be used: it has fewer than {frames} readable frames")
    return decoded[:frames]
