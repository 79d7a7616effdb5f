"""What all parts of the campaign have in common: the seed, the counts, the findings."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from unshuffle.wording import duration

SHOWN = 20
"""Losses of a line that are printed."""


@dataclass(frozen=True)
class Counts:
    """How often each part tries; the defaults are those of the full campaign."""

    kills: int = 60
    media: int = 10000
    damaged: int = 4000
    commands: int = 60
    """Damaged files that whole commands are given, beside those that only the reading functions are given."""
    rounds: int = 3
    """Repetitions of each fault of processes and of storage."""
    torchrun: int = 2
    """Repetitions of each fault of several processes."""


SHORT = Counts(kills=8, media=600, damaged=600, commands=6, rounds=1, torchrun=0)
"""The form that CI runs; its tests restart torchrun already."""


@dataclass
class Row:
    """One line of the table."""

    part: str
    tried: str
    count: int = 0
    result: str = ""
    """What became of the tries, in words and numbers."""
    lost: list[str] = field(default_factory=list)
    """A sentence for each try after which something was lost, with what is needed to repeat it."""
    noticed: int = 0
    """Commands that ended with one sentence."""
    seconds: float = 0.0


@dataclass
class Campaign:
    """One run of the campaign."""

    seed: int
    folder: Path
    """Where everything is written; kept if something was lost."""
    counts: Counts
    rows: list[Row] = field(default_factory=list)

    def rng(self, *stream: object) -> random.Random:
        """Return a generator that depends on the seed and the name of its stream alone."""
        return random.Random("/".join(map(str, (self.seed, *stream))))  # noqa: S311 (no security depends on it)

    def new_folder(self, name: str) -> Path:
        """Create a folder for a part of the campaign."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def row(self, part: str, tried: str) -> Iterator[Row]:
        """Yield a line of the table and print it when the block ends."""
        row = Row(part, tried)
        begin = time.monotonic()
        yield row
        row.seconds = time.monotonic() - begin
        self.rows.append(row)
        print(f"| {row.part} | {row.tried} | {row.count} | {row.result} | {len(row.lost)} | {duration(row.seconds)} |")
        for sentence in row.lost[:SHOWN]:
            print(f"    LOST: {sentence}")
        if len(row.lost) > SHOWN:
            print(f"    and {len(row.lost) - SHOWN} more")
        print(end="", flush=True)
