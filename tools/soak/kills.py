"""Part a: one chain of packing, training and report, killed again and again, ends as an unbroken one does."""

import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from soak.campaign import Campaign, Row
from soak.commands import SECONDS, Child, Ended, start
from soak.samples import differences, training_options, write_images, write_videos
from unshuffle import pretraining
from unshuffle.data import pack
from unshuffle.files import DRAFT_SUFFIX
from unshuffle.report import page
from unshuffle.runs.run import Run
from unshuffle.training import trainer

PHASES: dict[str, tuple[Any, str]] = {
    "packing": (pack, "_fill"),
    "beginning": (pretraining, "_start_folder"),
    "resuming": (pretraining, "_restore"),
    "rollouts": (trainer, "run_rollouts"),
    "checkpoint": (trainer, "save_checkpoint"),
    "report": (page, "write_report"),
    "finish": (pretraining, "_finish"),
}
"""Where kills are aimed at, and the function that each phase is."""
ANYWHERE = "anywhere"
ADVANCE = 1
"""Checkpoints that a process may write before it is killed, so that all kills happen before the end."""
PACK = ("pack", "images", "photos", "images", "--short_side", 48, "--workers", 2)
RESULTS = ("images", "cache", "run")
"""The folders that the commands write."""


@dataclass
class Phases:
    """What a process reports through a pipe about the phases that it enters and leaves."""

    reader: int
    entered: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The phases that it is in."""
    began: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each phase took, the last time."""
    _rest: bytes = b""

    def read(self, seconds: float) -> bool:
        """Read what arrives within some time; return False at the end of the process."""
        if not select.select([self.reader], [], [], seconds)[0]:
            return True
        content = os.read(self.reader, 4096)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            verb, name = line.decode().split()
            if verb == "enter":
                self.entered.append(name)
                self.open.append(name)
                self.began[name] = time.monotonic()
            else:
                self.open.remove(name)
                self.seconds[name] = time.monotonic() - self.began[name]
        return content != b""


def start_reporting(args: list[object], folder: Path) -> tuple[Child, Phases]:
    """Start a command that reports its phases."""
    reader, writer = os.pipe()

    def sabotage() -> None:
        for name, (module, function) in PHASES.items():
            setattr(module, function, _reporting(name, getattr(module, function), writer))
        setattr(pretraining, "write_report", page.write_report)  # noqa: B010 (imported there, not exported)

    child = start(args, folder, sabotage)
    os.close(writer)
    return child, Phases(reader)


def _reporting(name: str, function: Callable[..., Any], writer: int) -> Callable[..., Any]:
    def reported(*args: Any, **options: Any) -> Any:
        os.write(writer, f"enter {name}\n".encode())
        try:
            return function(*args, **options)
        finally:
            os.write(writer, f"leave {name}\n".encode())

    return reported


def finish(child: Child, phases: Phases) -> Ended:
    """Let a process end by itself."""
    deadline = time.monotonic() + SECONDS
    while phases.read(1.0) and time.monotonic() < deadline:
        pass
    os.close(phases.reader)
    return child.wait(max(1.0, deadline - time.monotonic()))


def live(child: Child, phases: Phases, target: str, delay: float) -> Ended:
    """Let a process live until `delay` seconds after it enters the phase, then kill it.

    It is killed in any case as it enters the end of its run, or after some checkpoints.
    """
    deadline = time.monotonic() + SECONDS
    alive = True
    while alive and time.monotonic() < deadline:
        if target in phases.entered or "finish" in phases.entered or phases.entered.count("checkpoint") > ADVANCE:
            break
        alive = phases.read(0.01 if target != ANYWHERE else 0.0)
        if target == ANYWHERE:
            break
    if alive:
        time.sleep(delay)
        child.signal(signal.SIGKILL)
    return finish(child, phases)


def commands(iterations: int) -> list[list[object]]:
    """Return the commands of the chain in their order; each can be repeated until it succeeds."""
    train = ["pretrain", "--resume", "--out", "run", *training_options(iterations)]
    return [list(PACK), train, ["report", "run"]]


def check(campaign: Campaign) -> None:
    """Kill a chain as often as asked, and compare it with an unbroken one."""
    count = campaign.counts.kills
    with campaign.row("a", "SIGKILL in one chain: pack, pretrain with rollouts, report") as row:
        folder = campaign.new_folder("chain")
        write_images(folder / "photos", 150, campaign.seed)
        write_videos(folder / "videos", 30, campaign.seed)
        chain = commands(10 + 5 * count)
        lengths: dict[str, float] = {}
        for args in chain:
            child, phases = start_reporting(args, folder)
            ended = finish(child, phases)
            lengths |= phases.seconds
            if ended.code:
                row.lost.append(f"the unbroken {args[0]} failed: {ended.errors[-300:]}")
                return
        whole = folder / "whole"
        whole.mkdir()
        for name in RESULTS:  # the second chain has the same paths, which are part of a store's name
            (folder / name).rename(whole / name)
        killed = _kill(chain, folder, count, lengths, campaign.rng("kills"), row)
        row.count = killed.total()
        row.result = "killed in: " + ", ".join(f"{name} {number}" for name, number in killed.most_common())
        for problem in (*differences(Run(folder / "run"), Run(whole / "run")), *_store_differences(folder, whole)):
            row.lost.append(f"after {row.count} kills {problem} (--only a --seed {campaign.seed})")


def _kill(
    chain: list[list[object]], folder: Path, count: int, lengths: dict[str, float], rng: Random, row: Row
) -> Counter[str]:
    """Kill each command of a chain several times, then let it end; return in which phases it was killed."""
    killed: Counter[str] = Counter()
    fractions = {"pack": 0.1, "pretrain": 0.8, "report": 0.1}
    for args in chain:
        command = str(args[0])
        for _ in range(max(1, round(count * fractions[command]))):
            target = rng.choice([*PHASES, ANYWHERE])
            length = lengths.get(target, 1.5)
            if command != "pretrain":
                target = {"pack": "packing", "report": "report"}[command]
                length = lengths[target] * (0.3 if command == "pack" else 1.0)  # packing continues with each process
            child, phases = start_reporting(args, folder)
            ended = live(child, phases, target, rng.uniform(0, length))
            if ended.code == -signal.SIGKILL and not ended.hung:
                killed[phases.open[-1] if phases.open else "elsewhere"] += 1
            elif problem := ended.problem:
                row.lost.append(f"{command}, after {killed.total()} kills: {problem}")
            elif command == "pack":
                break  # it is complete
        ended = finish(*start_reporting(args, folder))
        if ended.code:
            row.lost.append(f"{command} did not recover from {killed.total()} kills: {ended.problem}")
    return killed


def _store_differences(folder: Path, reference: Path) -> Iterator[str]:
    for name in ("images", "cache"):
        if _contents(folder / name) != _contents(reference / name):
            yield f"the packed stores in {name} differ"


def _contents(folder: Path) -> dict[Path, bytes]:
    """Return all files; drafts are what a killed process may leave."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != DRAFT_SUFFIX]
    return {path.relative_to(folder): path.read_bytes() for path in files}
