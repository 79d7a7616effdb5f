"""What the live page shows of a run's network: imports torch, so it is imported on first use."""

import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from unshuffle.data.held_out import HeldOut
from unshuffle.data.squares import Squares
from unshuffle.errors import UserError
from unshuffle.report.policy_summary import policy_data, summarise_policy
from unshuffle.report.puzzles import restored_order, strip
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.views import puzzles_view
from unshuffle.runs.checkpoints import list_checkpoints
from unshuffle.runs.history import ordering_tasks, read_sampling_states
from unshuffle.runs.run import Run
from unshuffle.serve.uploads import decode_squares
from unshuffle.tasks import TASKS

MAX_SNAPSHOTS, MAX_UPLOADS = 3, 16
"""Networks, and images and clips for puzzles, that are kept in memory."""
UPLOAD = "upload-"
"""What the names of images and clips that were sent begin with."""
SAME = 8 / 255
"""Parts look the same if no square of an eighth of their side differs by more."""
NO_NETWORK = "the run has no checkpoint"


class Snapshots:
    """The networks of runs at their checkpoints; one thread at a time uses them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: dict[tuple[Path, float], Snapshot] = {}
        self._uploads: dict[str, Tensor] = {}

    def at(self, run: Run, iteration: int | None = None) -> Snapshot:
        """Return the network of the checkpoint nearest to an iteration, by default of the newest."""
        file = nearest_checkpoint(run, iteration)
        key = file, file.stat().st_mtime
        if key not in self._known:
            snapshot = Snapshot.newest(run, int(file.stem))
            if snapshot is None:
                raise UserError(NO_NETWORK)
            while len(self._known) >= MAX_SNAPSHOTS:
                self._known.pop(next(iter(self._known)))
            self._known[key] = snapshot
        return self._known[key]

    def keep_upload(self, pixels: Tensor) -> str:
        """Keep an image or a clip for questions about it, and return its name."""
        while len(self._uploads) >= MAX_UPLOADS:
            self._uploads.pop(next(iter(self._uploads)))
        name = f"{UPLOAD}{secrets.token_hex(8)}"
        self._uploads[name] = pixels
        return name

    def upload(self, name: str) -> Tensor:
        """Return an image or a clip by its name."""
        if name not in self._uploads:
            raise UserError("the server no longer has this image: choose it again")
        return self._uploads[name]


def nearest_checkpoint(run: Run, iteration: int | None) -> Path:
    """Return the file of the checkpoint nearest to an iteration, by default of the newest."""
    files = list_checkpoints(run.checkpoints)
    if not files:
        raise UserError(NO_NETWORK)
    return files[-1] if iteration is None else min(files, key=lambda file: abs(int(file.stem) - iteration))


# ---- the policy


def policy_view(snapshots: Snapshots, run: Run) -> dict[str, Any]:
    """Return what the policy of each ordering task preferred, with a sample to apply permutations to."""
    with snapshots.lock:
        try:
            snapshot = snapshots.at(run)
        except UserError:  # the maps are shown without pictures
            snapshot = None
        tasks = {}
        for task in ordering_tasks(run):
            states = read_sampling_states(run, task)
            if states:
                summary = summarise_policy(run, task, states)
                tasks[task] = {
                    "conclusion": summary.conclusion,
                    "details": list(summary.details),
                    "data": policy_data(run, task, states, snapshot),
                }
    return {"tasks": tasks}


# ---- puzzles that the network solved at a checkpoint


def solved_view(snapshots: Snapshots, run: Run, iteration: int) -> dict[str, Any]:
    """Return held-out samples as the network of a checkpoint orders them."""
    with snapshots.lock:
        snapshot = snapshots.at(run, iteration)
        shown = {task: puzzles_view(snapshot, task) for task in snapshot.ordering_tasks if task in snapshot.held_out}
    return {"iteration": snapshot.iteration, "tasks": shown}


# ---- one puzzle


def is_upload(sample: str) -> bool:
    """Return whether a sample is named as one that was sent."""
    return sample.startswith(UPLOAD)


def send_sample(snapshots: Snapshots, run: Run, task: str | None, upload: bytes) -> str:
    """Return the name of an image or a clip that was sent, decoded as a sample of a task."""
    with snapshots.lock:
        snapshot = snapshots.at(run)
        task = _task(snapshot, task)
        frames, side = snapshot.held_out[task].pixels.shape[1:3]
        span = snapshot.ordering_tasks[task].frame_span
    pixels = decode_squares(upload, frames, side, span)  # may take seconds
    with snapshots.lock:
        return snapshots.keep_upload(pixels)


def new_puzzle(snapshots: Snapshots, run: Run, task: str | None, sample: int | str, permutation: int) -> dict[str, Any]:
    """Return a held-out sample or one that was sent, and a permutation of Ψ. Numbers beyond their end begin again."""
    with snapshots.lock:
        snapshot = snapshots.at(run)
        task = _task(snapshot, task)
        held_out, ordering, view = snapshot.held_out[task], snapshot.ordering_tasks[task], TASKS[task].view
        if isinstance(sample, int):
            sample %= len(held_out)
        number = permutation % len(ordering.permutations)
        parts = ordering.pictures(_pixels(snapshots, held_out, sample), 2 * view.picture_side)[0]
        return {
            "tasks": _puzzle_tasks(snapshot),
            "task": task,
            "sample": sample,
            "samples": len(held_out),
            "name": held_out.names[sample] if isinstance(sample, int) else "",
            "noun": view.noun,
            "strip": strip(parts),
            "columns": view.columns(len(parts)),
            "arrangement": ordering.permutations[number].tolist(),
            "looks": _looks(parts),
            "permutations": len(ordering.permutations),
            "iteration": snapshot.iteration,
        }


def network_answer(
    snapshots: Snapshots, run: Run, task: str, sample: int | str, arrangement: Sequence[int]
) -> dict[str, Any]:
    """Return how the network orders a sample whose parts are arranged by hand or by a permutation of Ψ.

    The sample is the number of a held-out one, or the name of an image or clip that was sent.
    """
    with snapshots.lock:
        snapshot = snapshots.at(run)
        task = _task(snapshot, task)
        held_out, ordering = snapshot.held_out[task], snapshot.ordering_tasks[task]
        pixels = _pixels(snapshots, held_out, sample)
        if sorted(arrangement) != list(range(ordering.parts)):
            raise UserError(f"an arrangement of the {task} task is a permutation of 0 to {ordering.parts - 1}")
        shown = torch.tensor([list(arrangement)])
        crops = ordering.crops(Squares.of(pixels).to(snapshot.device))
        ratios = ordering.answer(snapshot.network, crops, shown).float().softmax(dim=1)[0]
        label = int(ratios.argmax())
        predicted = ordering.permutations[[label]].cpu()
        restored = restored_order(shown, predicted)
        return {
            "predicted": predicted[0].tolist(),
            "confidence": float(ratios[label]),
            "restored": restored[0].tolist(),
            "in_set": bool((ordering.permutations.cpu() == shown).all(dim=1).any()),
            "iteration": snapshot.iteration,
        }


def _looks(parts: Tensor) -> list[int]:
    """Return for each of (P, 3, S, S) parts the first that looks the same: a puzzle is solved by either."""
    coarse = avg_pool2d(parts, max(1, parts.shape[-1] // 8))  # without noise
    different = (coarse[:, None] - coarse[None]).abs().amax(dim=(2, 3, 4)) > SAME
    return [row.index(False) for row in different.tolist()]


def _puzzle_tasks(snapshot: Snapshot) -> list[str]:
    return [name for name in snapshot.ordering_tasks if name in snapshot.held_out]


def _task(snapshot: Snapshot, task: str | None) -> str:
    """Return a task whose puzzles can be shown; without a name, the first one."""
    tasks = _puzzle_tasks(snapshot)
    if not tasks:
        reason = "it keeps no samples: log.pictures is off" if snapshot.ordering_tasks else "it has no ordering task"
        raise UserError(f"the run has no puzzles ({reason})")
    if task is not None and task not in tasks:
        raise UserError(f"the run has no samples of the task {task}: choose one of {', '.join(tasks)}")
    return task or tasks[0]


def _pixels(snapshots: Snapshots, held_out: HeldOut, sample: int | str) -> Tensor:
    """Return a held-out sample by its number, or one that was sent by its name, (1, frames, side, side, 3)."""
    if isinstance(sample, int):
        if not 0 <= sample < len(held_out):
            raise UserError(f"there is no sample {sample}: give 0 to {len(held_out) - 1}")
        return held_out.pixels[[sample]]
    pixels = snapshots.upload(sample)
    if pixels.shape[1:] != held_out.pixels.shape[1:]:
        raise UserError("this image was sent for another task or run: choose it again")
    return pixels
