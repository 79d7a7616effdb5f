"""Part c: media files changed by a fuzzer are each used, or listed with a reason, in bounded time and memory."""

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from soak import originals
from soak.campaign import Campaign
from soak.commands import Ended, run
from soak.fuzzer import mutate
from soak.originals import Original
from unshuffle.data.store import Kind, Store

BATCH = 250
"""Files that are packed by one process."""
MEGABYTES = 2500
"""The most memory that such a process may take: torch and its copies 700, decoding 500, and room for the decoders."""
LIMITS = {"max_pixels": 20_000_000, "max_frames": 5000, "max_seconds": 20, "memory_gb": 0.5}
SOUND = "sound"
"""Name of the file of each folder that is not changed, so that a store can be packed."""


def changed_files(campaign: Campaign, kind: Kind, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of changed files; each depends on the seed and its number alone."""
    sources = originals.images() if kind == "images" else originals.videos()
    families: dict[int, list[Original]] = {}
    for original in sources:
        families.setdefault(id(original.layout), []).append(original)
    for number in range(count):
        rng = campaign.rng(kind, number)
        original = sources[number % len(sources)]
        donor = rng.choice(families[id(original.layout)])
        suffix = original.suffix if rng.random() < 0.95 else rng.choice(sources).suffix
        name = f"{number:06}-{original.name.replace(' ', '-')}{suffix}"
        yield name, mutate(original.content, original.layout, rng, donor.content)


def check(campaign: Campaign) -> None:
    """Pack changed images and videos."""
    count = campaign.counts.media
    for kind, number in (("images", count - count // 3), ("videos", count // 3)):
        check_kind(campaign, kind, number)  # type: ignore[arg-type]


def check_kind(campaign: Campaign, kind: Kind, count: int) -> None:
    """Pack changed files of one kind, some at a time."""
    formats = len(originals.images() if kind == "images" else originals.videos())
    with campaign.row("c", f"{kind} of {formats} formats changed by the fuzzer, packed") as row:
        folder = campaign.new_folder(kind)
        tally: Counter[str] = Counter()
        most = 0.0
        files = changed_files(campaign, kind, count)
        while batch := dict(islice(files, BATCH)):
            ended, problems, used = _pack(kind, folder / "batch", batch)
            most = max(most, ended.megabytes)
            tally.update(used=used, listed=len(batch) - used - len(problems))
            for name in problems if problems != [""] else _culprits(kind, folder, batch):
                shutil.copyfile(folder / "batch" / name, folder / name)
                what = problems_of(kind, folder, name) if problems == [""] else "neither used nor listed"
                row.lost.append(f"{name}: {what} ({folder / name}; --only c --seed {campaign.seed} --media {count})")
            row.count += len(batch)
        row.result = f"{tally['used']} used, {tally['listed']} listed with a reason; at most {most:.0f} MB"


def _pack(kind: Kind, folder: Path, files: dict[str, bytes]) -> tuple[Ended, list[str], int]:
    """Pack files; return how it ended, the files that are neither used nor listed, and how many are used.

    If the whole process fails, the name of the file is not known: it is empty.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sound = originals.images()[0] if kind == "images" else originals.videos()[0]
    (folder / f"{SOUND}{sound.suffix}").write_bytes(sound.content)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    out = folder.with_name("store")
    shutil.rmtree(out, ignore_errors=True)
    limits = [word for name, limit in LIMITS.items() for word in (f"--limits.{name}", limit)]
    ended = run(["pack", kind, folder, out, "--short_side", 32, "--workers", 2, *limits], folder.parent)
    if ended.problem or ended.code or ended.megabytes > MEGABYTES:
        return ended, [""], 0
    store = Store(out)
    reasons = dict(store.skipped)
    used = [name for name in files if name in store.names]
    for item in range(len(store)):
        store.read(item, [0])
    return ended, [name for name in files if name not in used and not reasons.get(name)], len(used)


def _culprits(kind: Kind, folder: Path, files: dict[str, bytes]) -> list[str]:
    """Return the files with which packing fails, each tried alone; all of them if none does."""
    alone = [name for name, content in files.items() if _pack(kind, folder / "alone", {name: content})[1]]
    return alone or list(files)


def problems_of(kind: Kind, folder: Path, name: str) -> str:
    """Say how packing one file fails."""
    ended, _, _ = _pack(kind, folder / "alone", {name: (folder / name).read_bytes()})
    return ended.problem or f"{ended.megabytes:.0f} MB"
