"""The data and the options of the campaign's runs, all made by the program itself, and what two runs must share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.run import Run

TIMES = {"seconds", "time", "duration", "samples_per_second", "crops_per_second", "waiting_for_data"}
"""What metrics say about the clock, in which two runs may differ."""
NO_PICTURES = ("--log.no_pictures",)
"""Option of runs whose report is of no interest."""


def training_options(iterations: int) -> list[object]:
    """Return the options of a tiny run of both tasks, with rollouts, from images and videos."""
    options: dict[str, object] = {
        "preset": "demo",
        "device": "cpu",
        "images": "images",
        "videos": "videos",
        "data.cache": "cache",
        "data.val_size": 6,
        "data.workers": 2,
        "data.image_short_side": 48,
        "data.frame_short_side": 24,
        "optim.iterations": iterations,
        "optim.batch_size": 4,
        "optim.warmup": 2,
        "spatial.permutations": 6,
        "spatial.crop_size": 16,
        "temporal.permutations": 6,
        "temporal.crop_size": 16,
        "temporal.frames": 4,
        "policy.sampler": "rollouts",
        "policy.rollout_iterations": 2,
        "policy.num_groups": 3,
        "policy.interval": 6,
        "policy.batches": 4,
        "policy.start_below": 2,
        "log.train_every": 5,
        "log.checkpoint_every": 5,
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def texture(rng: np.random.Generator, height: int, width: int, shift: int = 0) -> Pixels:
    """Return stripes with noise, moved by `shift` pixels."""
    row, column = np.mgrid[:height, :width]
    stripes = ((row + 2 * column + shift) // 7 % 2)[:, :, None] * np.array([150, 90, 60])
    pixels: Pixels = np.clip(stripes + rng.integers(0, 90, (height, width, 3)), 0, 255).astype(np.uint8)
    return pixels


def write_images(folder: Path, count: int, seed: int = 0) -> None:
    """Write a folder of PNG files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(texture(rng, 64, 72, number)).save(folder / f"{number:04}.png")


def write_videos(folder: Path, count: int, seed: int = 0) -> None:
    """Write a folder of MP4 files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        write_video(folder / f"{number:04}.mp4", [texture(rng, 48, 64, number + frame) for frame in range(10)])


def write_video(path: Path, frames: list[Pixels], container: str | None = None, codec: str = "mpeg4") -> None:
    """Write a video; the same frames give the same bytes."""
    pixel_format = {"gif": "rgb8", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
    own = {"libx265": {"x265-params": "log-level=none"}, "libsvtav1": {"svtav1-params": "lp=1"}}.get(codec, {})
    # bitexact: without dates, versions and random numbers
    with (
        _same_scheduling(),
        av.open(str(path), "w", format=container, container_options={"fflags": "+bitexact"}) as file,
    ):
        stream: Any = file.add_stream(codec, rate=25, options={"flags": "+bitexact", "threads": "1", **own})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixel_format
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


@contextmanager
def _same_scheduling() -> Iterator[None]:
    """Restore the scheduling of this process: SVT-AV1 makes it a real-time one for root, which starves all others."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


# ---- equality


def differences(run: Run, reference: Run, *, averages: bool = True) -> Iterator[str]:
    """Yield in what the results of two runs differ: weights, checkpoints, states and metrics, times aside.

    Without `averages` the mean losses between two lines are left out: a run that was stopped between two lines and
    resumed averages over fewer steps.
    """
    try:
        if run.weights.read_bytes() != reference.weights.read_bytes():
            yield "the weights differ"
        ours, theirs = (list_checkpoints(folder.checkpoints)[-1] for folder in (run, reference))
        if ours.name != theirs.name or not same(load_checkpoint(ours), load_checkpoint(theirs)):
            yield "the last checkpoints differ"
    except (OSError, IndexError, UserError) as error:
        yield f"the run is not complete: {error}"
    if not same(_states(run), _states(reference)):
        yield "the states differ"
    if _metrics(run, averages) != _metrics(reference, averages):
        yield "the metrics differ"
    if reference.report.is_file() and not _is_page(run.report):
        yield "the report is not complete"
    if drafts := sorted(path.name for path in run.folder.glob("checkpoints/*.tmp")):
        yield f"drafts of checkpoints are left: {drafts}"


def same(one: Any, other: Any) -> bool:
    """Return whether two trees of values are equal, tensors and arrays bit for bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        alike = isinstance(other, np.ndarray) and one.shape == other.shape and one.dtype == other.dtype
        return alike and one.tobytes() == other.tobytes()
    return bool(type(one) is type(other) and one == other)


def _is_page(file: Path) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8").rstrip().endswith("</html>")


def _states(run: Run) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {}
    for file in sorted(run.states.glob("*.npz")):
        try:
            with np.load(file) as arrays:
                states[file.name] = dict(arrays)
        except Exception as error:  # a damaged archive makes numpy raise almost anything
            states[file.name] = {"problem": str(error)}
    return states


def _metrics(run: Run, averages: bool) -> list[dict[str, Any]]:
    entries = [entry for entry in run.metrics() if averages or entry["kind"] != "train"]
    return [{name: value for name, value in entry.items() if name not in TIMES} for entry in entries]
