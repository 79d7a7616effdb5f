"""Features of a folder of any size as a file, with the name of each row; a broken-off run is gone on with.

Rows are computed in parts, each of which is a file of `OUT.parts/` once it is done. In the end they are put together.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unshuffle.data.media import BadMedia, check_short_side, explain
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.collection import Collection
from unshuffle.evaluation.feature_file import Rows, find_writer, names_file, skipped_file, write_table
from unshuffle.evaluation.features import pool5
from unshuffle.models import Backbone
from unshuffle.outputs import check_new_file
from unshuffle.wording import counted

PART = 256
"""Files in a part: what a kill can cost."""


@dataclass(frozen=True)
class Part:
    """Rows with their names, and the files that gave none."""

    names: list[str]
    rows: Rows
    skipped: list[tuple[str, str]]

    def save(self, file: Path) -> None:
        """Write the part so that a kill leaves all of it or nothing."""
        draft = file.with_suffix(".tmp")
        with draft.open("wb") as stream:
            np.savez(stream, names=np.array(self.names, str), rows=self.rows, skipped=np.array(self.skipped, str))
        draft.replace(file)

    @classmethod
    def load(cls, file: Path) -> "Part":
        """Read a part."""
        with np.load(file) as stored:
            return cls([str(name) for name in stored["names"]], stored["rows"], cls.load_skipped(file))

    @staticmethod
    def load_skipped(file: Path) -> list[tuple[str, str]]:
        """Only the files that gave no row."""
        with np.load(file) as stored:
            return [(str(name), str(reason)) for name, reason in stored["skipped"].reshape(-1, 2)]


@dataclass(frozen=True)
class Embedded:
    """What became of a folder."""

    rows: int
    dimensions: int
    skipped: list[tuple[str, str]]
    """Name and reason for each file that could not be used."""


@dataclass(frozen=True)
class Embedder:
    """A trunk that turns clips of squares into vectors, the mean over the frames of each."""

    trunk: Backbone
    size: int
    device: torch.device
    batch: int = 64

    def __post_init__(self) -> None:
        check_short_side(self.size)
        if self.batch < 1:
            raise UserError(f"a batch of {self.batch} makes no sense: it must be at least 1")
        self.trunk.to(self.device).eval()

    def dimensions(self) -> int:
        """Length of a vector."""
        try:
            return int(self([np.zeros((1, self.size, self.size, 3), np.uint8)]).shape[1])
        except (RuntimeError, AssertionError) as error:  # timm asserts
            problem = explain(error).splitlines()[0]
            raise UserError(f"{self.size} pixels a side do not suit this backbone: {problem}") from None

    def __call__(self, clips: Sequence[Pixels]) -> Rows:
        """A row for each (frames, size, size, 3) clip."""
        frames = torch.from_numpy(np.concatenate(clips))
        features = torch.cat([pool5(self.trunk, some.to(self.device), self.size) for some in frames.split(self.batch)])
        rows: Rows = torch.stack([clip.mean(dim=0) for clip in features.split([*map(len, clips)])]).cpu().numpy()
        return rows

    def fingerprint(self) -> str:
        """Tells one set of weights, at one size, from another."""
        digest = hashlib.sha256(f"{self.size} {self.trunk.normalisation}".encode())
        for key, value in self.trunk.state_dict().items():
            digest.update(key.encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def embed(embedder: Embedder, data: Collection, out: Path, *, workers: int | None = None, bar: bool = True) -> Embedded:
    """Write the features of all of `data` to `out` (.npy, .parquet or .csv), or go on where that was broken off."""
    write = find_writer(out)
    check_new_file(out, "--out")
    dimensions = embedder.dimensions()
    folder = out.with_name(f"{out.name}.parts")
    _claim(folder, {"weights": embedder.fingerprint(), "files": data.fingerprint})
    files = _compute_all(embedder, data, folder, workers or os.cpu_count() or 1, bar)
    skipped = [one for file in files for one in Part.load_skipped(file)]
    if len(skipped) == len(data):
        shutil.rmtree(folder)
        name, reason = skipped[0]
        raise UserError(
            f"none of the {data.kind} can be read ({counted(len(data), data.kind)}; first problem: {name}: {reason})"
        )
    draft = folder / f"whole{out.suffix}"
    filled = ((part.names, part.rows) for part in map(Part.load, files) if part.names)
    write(draft, filled, len(data) - len(skipped), dimensions)
    skipped_file(out).unlink(missing_ok=True)  # of an earlier file of this name
    if skipped:
        write_table(skipped_file(out), ["file", "reason"], skipped)
    if names_file(draft).exists():
        names_file(draft).replace(names_file(out))
    draft.replace(out)  # last, so that the rest is there when it is
    shutil.rmtree(folder)
    return Embedded(len(data) - len(skipped), dimensions, skipped)


def _claim(folder: Path, job: dict[str, str]) -> None:
    """Make the folder of parts, or see that the parts in it are of this job."""
    header = folder / "job.json"
    if header.exists():
        if json.loads(header.read_text()) != job:
            raise UserError(
                f"{folder} was begun with other files, weights or options: delete it, or choose another --out"
            )
        return
    folder.mkdir(exist_ok=True)
    draft = header.with_suffix(".tmp")
    draft.write_text(json.dumps(job))
    draft.replace(header)


def _compute_all(embedder: Embedder, data: Collection, folder: Path, workers: int, bar: bool) -> list[Path]:
    parts = {
        folder / f"{start:09}.npz": range(start, min(len(data), start + PART)) for start in range(0, len(data), PART)
    }
    done = sum(len(items) for file, items in parts.items() if file.exists())
    with _progress(data, bar) as progress, ThreadPoolExecutor(workers) as pool:
        if done and bar:
            progress.console.print(f"going on: {done} of {counted(len(data), data.kind)} were done before")
        for file, items in parts.items():
            if not file.exists():
                _compute(embedder, data, items, pool, 2 * workers).save(file)
            progress.advance(progress.task_ids[0], len(items))
    return list(parts)


def _compute(embedder: Embedder, data: Collection, items: range, pool: ThreadPoolExecutor, ahead: int) -> Part:
    names: list[str] = []
    rows: list[Rows] = []
    skipped: list[tuple[str, str]] = []
    waiting: list[Pixels] = []
    for item, clip in _read_ahead(data, items, pool, ahead):
        if isinstance(clip, BadMedia):
            skipped.append((data.names[item], str(clip)))
            continue
        names.append(data.names[item])
        waiting.append(clip)
        if sum(map(len, waiting)) >= embedder.batch:
            rows.append(embedder(waiting))
            waiting = []
    if waiting:
        rows.append(embedder(waiting))
    return Part(names, np.concatenate(rows) if rows else np.zeros((0, 0), np.float32), skipped)


def _read_ahead(
    data: Collection, items: range, pool: ThreadPoolExecutor, ahead: int
) -> Iterator[tuple[int, Pixels | BadMedia]]:
    """Items in their order, with only a few under way so that memory stays bounded."""
    waiting: deque[tuple[int, Future[Pixels | BadMedia]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(_read, data, item)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _read(data: Collection, item: int) -> Pixels | BadMedia:
    try:
        return data.read(item)
    except BadMedia as problem:
        return problem


def _progress(data: Collection, shown: bool) -> Progress:
    progress = Progress(
        TextColumn("embedding {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )
    progress.add_task(data.kind, total=len(data))
    return progress
