"""`unshuffle pack`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from unshuffle.cli.parsing import POSITIONAL, parse
from unshuffle.config import LimitsConfig
from unshuffle.wording import counted, printable


@dataclass(frozen=True)
class PackCommand:
    """Decode a folder of images or videos once into a packed store that is fast to read."""

    kind: Annotated[Literal["images", "videos"], POSITIONAL]
    """What the folder holds."""
    src: Annotated[Path, POSITIONAL]
    """Folder to read, flat or nested."""
    out: Annotated[Path, POSITIONAL]
    """Folder of the store; the same command continues an interrupted one."""
    short_side: Annotated[int, Ge(1)] | None = None
    """Short side in pixels to which images and frames are resized; by default 256 for images and 128 for videos."""
    encoding: Literal["raw", "jpeg"] = "raw"
    """raw: fastest to read; jpeg: takes less disk space."""
    quality: Annotated[int, Interval(ge=1, le=100)] = 90
    """JPEG quality, 1 to 100; for --encoding jpeg."""
    every: Annotated[int, Ge(1)] = 1
    """Keep every n-th frame of a video."""
    workers: Annotated[int, Ge(1)] | None = None
    """Files decoded in parallel; by default one per CPU core."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)


def main(args: Sequence[str]) -> int:
    """Pack and print what was skipped."""
    command = parse(PackCommand, "pack", args)
    from unshuffle.data.pack import pack

    store = pack(
        command.kind,
        command.src.expanduser(),
        command.out.expanduser(),
        short_side=command.short_side,
        encoding=command.encoding,
        quality=command.quality,
        every=command.every,
        workers=command.workers,
        limits=command.limits,
    )
    packed, skipped = counted(len(store), command.kind), counted(len(store.skipped), "files")
    print(f"{packed} in {printable(str(command.out))}, {skipped} skipped")
    print_skipped(store.skipped, command.out / "skipped.jsonl")
    return 0


def print_skipped(skipped: Sequence[tuple[str, str]], file: Path) -> None:
    """Print the first files that could not be used, with the reasons, and the file that lists all."""
    for name, reason in skipped[:10]:
        print(f"  skipped {printable(name)}: {printable(reason)}")
    if len(skipped) > 10:
        print(f"  and {len(skipped) - 10} more, listed in {file}")
