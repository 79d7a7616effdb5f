"""`unshuffle pack`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from unshuffle.cli.parsing import POSITIONAL, parse
from unshuffle.config import DataConfig, LimitsConfig
from unshuffle.wording import counted, ignored_words, printable, skipped_lines


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
    encoding: Literal["auto", "raw", "jpeg"] = "auto"
    """raw: fastest to read; jpeg: takes about a tenth of the space; auto: raw, or jpeg if that would take more than
    --max_raw_gb."""
    max_raw_gb: Annotated[float, Ge(0)] = DataConfig.max_raw_gb
    """With --encoding auto: largest expected size in GB that is packed raw."""
    quality: Annotated[int, Interval(ge=1, le=100)] = 90
    """JPEG quality, 1 to 100; for --encoding jpeg."""
    every: Annotated[int, Ge(1)] = 1
    """Keep every n-th frame of a video."""
    clip_frames: Annotated[int, Ge(0)] = DataConfig.clip_frames
    """Videos with twice as many frames or more are stored as windows of so many frames, each a clip of its own; 0:
    whole, as evaluations of long videos need them."""
    clips_per_video: Annotated[int, Ge(1)] = DataConfig.clips_per_video
    """Windows of a long video at most, evenly spread over it."""
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
        max_raw_gb=command.max_raw_gb,
        quality=command.quality,
        every=command.every,
        clip_frames=command.clip_frames,
        clips_per_video=command.clips_per_video,
        workers=command.workers,
        limits=command.limits,
    )
    files = len(set(store.origins))
    packed = counted(files, command.kind) + (f" as {counted(len(store), 'clips')}" if files < len(store) else "")
    print(f"{packed} in {printable(str(command.out))}, {counted(len(store.skipped), 'files')} skipped")
    print_left_out(store.skipped, store.ignored, command.out / "skipped.jsonl")
    return 0


def print_left_out(skipped: Sequence[tuple[str, str]], ignored: Mapping[str, int], file: Path) -> None:
    """Print why some files could not be used, the file that lists them all, and what is ignored."""
    for line in skipped_lines(skipped):
        print(line)
    if skipped:
        print(f"  all skipped files are listed in {printable(str(file))}")
    if ignored:
        print(f"  {ignored_words(ignored)}")
