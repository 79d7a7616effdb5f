"""Part e: full and read-only disks, data that disappears or changes while it is used, two of everything at once."""

import errno
import os
import resource
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from soak.campaign import Campaign, Row
from soak.commands import Child, Ended, run, start, succeed
from soak.samples import NO_PICTURES, differences, training_options, write_images, write_videos
from unshuffle.data.store import DATA
from unshuffle.runs.checkpoints import list_checkpoints
from unshuffle.runs.run import Run

ITERATIONS = 40
MEGABYTES = 1 << 20
RESULTS = ("run", "cache", "store")


def train(out: str = "run", *options: object) -> list[object]:
    """Return the command that starts or resumes a run."""
    return ["pretrain", "--resume", "--out", out, *training_options(ITERATIONS), *NO_PICTURES, *options]


def check(campaign: Campaign) -> None:
    """Try all faults of storage."""
    folder = campaign.new_folder("storage")
    write_images(folder / "images", 40, campaign.seed)
    write_videos(folder / "videos", 20, campaign.seed)
    with tarfile.open(folder / "images.tar", "w") as tar:
        tar.add(folder / "images", "images")
    shutil.copytree(folder, campaign.folder / "originals")
    whole = campaign.new_folder("storage-whole")
    succeed(train(), folder)
    succeed(["pack", "images", "images", "store"], folder)
    for name in RESULTS:  # all runs have the same paths, which are part of a store's name
        (folder / name).rename(whole / name)
    with campaign.row("e", "full disk: pack, pretrain, then room and the same commands") as row:
        for number in range(2 * campaign.counts.rounds):
            _note(row, campaign, number, *_full_disk(folder, whole, campaign.rng("full", number)))
    with campaign.row("e", "read-only folder: pack, pretrain, --resume, report, export, cache") as row:
        _check_read_only(campaign, folder, whole, row)
    for tried, fault in FAULTS.items():
        with campaign.row("e", f"while it is used: {tried}") as row:
            for number in range(campaign.counts.rounds):
                rng = campaign.rng(tried, number)
                _note(row, campaign, number, *_disturbed(campaign, folder, whole, fault, rng))
    _check_shards(campaign, folder)
    with campaign.row("e", "two at once: pack, pretrain into one folder, with one cache, report") as row:
        for number in range(campaign.counts.rounds):
            _note(row, campaign, number, *_two_at_once(folder, whole, campaign.rng("two", number)))


def _note(row: Row, campaign: Campaign, number: int, problems: Sequence[str], ends: Sequence[Ended]) -> None:
    """Count a try, and the commands that noticed the fault."""
    row.count += 1
    row.lost += [f"number {number}: {problem} (--only e --seed {campaign.seed})" for problem in problems]
    row.noticed += sum(ended.code == 2 for ended in ends)
    row.result = f"{row.noticed} commands ended with one sentence, the others continued; "
    row.result += "all results as undisturbed" if not row.lost else "see below"


def _clear(folder: Path) -> None:
    for name in (*RESULTS, "run-2"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _complete(folder: Path, whole: Path) -> Iterator[str]:
    """Run the command again, and yield in what the result differs from an undisturbed one."""
    ended = run(train(), folder)
    if ended.code:
        yield f"not resumed: {ended.problem or ended.sentence}"
        return
    yield from differences(Run(folder / "run"), Run(whole / "run"))


def _store_problem(folder: Path, whole: Path) -> Iterator[str]:
    for path in sorted((whole / "store").iterdir()):
        if (folder / "store" / path.name).read_bytes() != path.read_bytes():
            yield f"{path.name} of the store differs"


# ---- full and read-only


@contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Put a small file system in place of a folder; yield False if that is not permitted here."""
    code = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True
    ).returncode
    try:
        yield code == 0
    finally:
        if code == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def _remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True, capture_output=True)


def _full_disk(folder: Path, whole: Path, rng: Random) -> tuple[list[str], list[Ended]]:
    """Run out of space at some point, then continue with more."""
    _clear(folder)
    size = rng.randint(2, 60)
    with _small_disk(folder, size) as mounted:
        limits = None
        if mounted:
            shutil.copytree(folder.with_name("originals"), folder, dirs_exist_ok=True)
        else:  # the next best: files may not become larger
            limit = rng.randint(1, 15) * MEGABYTES
            limits = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        problems, ends = list[str](), list[Ended]()
        pack: list[object] = ["pack", "images", "images", "store"]
        for command in (pack, train()):
            ended = run(command, folder, limits)
            ends.append(ended)
            if ended.problem:
                problems.append(f"{command[0]} with {size} MB: {ended.problem}")
        if mounted:
            _remount(folder, "size=1g")
        ended = run(pack, folder)
        problems += [f"not packed again: {ended.problem or ended.sentence}"] if ended.code else []
        problems += [*_store_problem(folder, whole), *_complete(folder, whole)]
        if left := [path.name for path in (folder / "run").rglob("*.tmp")]:
            problems.append(f"drafts are left: {left}")
    return problems, ends


def _check_read_only(campaign: Campaign, folder: Path, whole: Path, row: Row) -> None:
    elsewhere: list[object] = ["pretrain", "--out", campaign.folder / "elsewhere", *training_options(ITERATIONS)]
    commands: list[list[object]] = [
        ["pack", "images", campaign.folder / "originals" / "images", folder / "store"],
        train(str(folder / "run")),
        train(str(folder / "other")),
        ["report", folder / "run"],
        ["export", folder / "backbone.safetensors", "--format", "torchvision", "--out", folder / "x.pth"],
        [*elsewhere, "--data.cache", folder / "c"],
    ]
    _clear(folder)
    with _small_disk(folder, 300) as mounted:
        if mounted:
            shutil.copytree(folder.with_name("originals"), folder, dirs_exist_ok=True)
        shutil.copytree(whole / "run", folder / "run")
        (folder / "run" / "backbone.safetensors").rename(folder / "backbone.safetensors")  # so that work is left
        if mounted:
            _remount(folder, "ro")
        elif os.access(folder, os.W_OK) and os.geteuid() == 0:
            row.result = "not tried: mounting is not permitted here, and permissions do not bind root"
            return
        else:
            folder.chmod(0o500)
            (folder / "run").chmod(0o500)
        try:
            for command in commands:
                ended = run(command, campaign.folder / "originals")
                row.count += 1
                if not any(word in ended.sentence for word in ("ead-only", "cannot write", "ermission")):
                    answer = ended.problem or ended.sentence or "it continued"
                    row.lost.append(f"{command[:3]}: {answer} (--only e --seed {campaign.seed})")
        finally:
            if not mounted:
                folder.chmod(0o700)
                (folder / "run").chmod(0o700)
    row.result = f"{row.count - len(row.lost)} refused in one sentence"
    _clear(folder)


# ---- while it is used


def _delete_cache(folder: Path) -> None:
    shutil.rmtree(folder / "cache", ignore_errors=True)


def _truncate_stores(folder: Path) -> None:
    for file in folder.glob(f"cache/*/{DATA}"):
        os.truncate(file, file.stat().st_size // 2)


def _replace_stores(folder: Path) -> None:
    """Replace each store's data by other bytes, as a tool does that writes a new file and renames it."""
    for file in folder.glob(f"cache/*/{DATA}"):
        other = file.with_name("other")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)


def _delete_data(folder: Path) -> None:
    for name in ("images", "videos"):
        shutil.rmtree(folder / name)


def _delete_run(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "checkpoints")


FAULTS: dict[str, Callable[[Path], None]] = {
    "the cache deleted": _delete_cache,
    "packed stores truncated": _truncate_stores,
    "packed stores replaced": _replace_stores,
    "images and videos deleted": _delete_data,
    "the run's checkpoints deleted": _delete_run,
}


def _disturbed(
    campaign: Campaign, folder: Path, whole: Path, fault: Callable[[Path], None], rng: Random
) -> tuple[list[str], list[Ended]]:
    """Disturb a run after its first checkpoint; then restore the data and continue."""
    _clear(folder)
    child = start(train(), folder)
    ended = _after_first_checkpoint(child, Run(folder / "run"), partial(fault, folder), rng)
    problems = [ended.problem] if ended.problem else []
    for name in ("images", "videos"):
        if not (folder / name).exists():
            shutil.copytree(campaign.folder / "originals" / name, folder / name)
    if ended.code:  # as the sentence asks: what is damaged is deleted and packed again
        _delete_cache(folder)
    return [*problems, *_complete(folder, whole)], [ended]


def _after_first_checkpoint(child: Child, run: Run, disturb: Callable[[], object], rng: Random) -> Ended:
    child.until(lambda: bool(list_checkpoints(run.checkpoints)))
    time.sleep(rng.uniform(0, 0.3))
    try:
        disturb()
    except OSError as error:  # it writes there at this moment
        if error.errno != errno.ENOTEMPTY:
            raise
    return child.wait()


def _check_shards(campaign: Campaign, folder: Path) -> None:
    """Delete a shard, or replace it, while a run reads it."""
    options = ("--images", "images.tar")
    original = campaign.folder / "originals" / "images.tar"
    _clear(folder)
    succeed(train("run", *options), folder)
    whole = campaign.new_folder("shards-whole")
    (folder / "run").rename(whole / "run")
    (folder / "cache").rename(whole / "cache")

    def delete() -> None:
        (folder / "images.tar").unlink()

    def replace() -> None:
        other = folder / "other.tar"
        with tarfile.open(other, "w") as tar:  # the same members in another order
            for path in sorted((folder / "images").iterdir(), reverse=True):
                tar.add(path, f"images/{path.name}")
        other.replace(folder / "images.tar")

    for tried, disturb in (("a tar shard deleted", delete), ("a tar shard replaced", replace)):
        with campaign.row("e", f"while it is used: {tried}") as row:
            for number in range(campaign.counts.rounds):
                _clear(folder)
                child = start(train("run", *options), folder)
                rng = campaign.rng(tried, number)
                ended = _after_first_checkpoint(child, Run(folder / "run"), disturb, rng)
                ends, problems = [ended], [ended.problem] if ended.problem else []
                if not ended.code:  # it may have read all that it needs
                    problems += differences(Run(folder / "run"), Run(whole / "run"))
                shutil.copy2(original, folder / "images.tar")
                if ended.code:
                    ended = run(train("run", *options), folder)
                    problems += [f"not resumed: {ended.problem or ended.sentence}"] if ended.code else []
                    problems += differences(Run(folder / "run"), Run(whole / "run"))
                _note(row, campaign, number, problems, ends)


# ---- two at once


def _two_at_once(folder: Path, whole: Path, rng: Random) -> tuple[list[str], list[Ended]]:
    """Start the same command twice, or two that share something."""
    _clear(folder)
    problems, ends = list[str](), list[Ended]()
    pack: list[object] = ["pack", "images", "images", "store"]
    report: list[object] = ["report", "run"]
    for command in (pack, train(), report):
        both = _both(command, command, folder, rng, problems)
        ends += both
        if all(ended.code for ended in both):
            problems.append(f"{command[0]}: neither succeeded")
    problems += [*_store_problem(folder, whole), *differences(Run(folder / "run"), Run(whole / "run"))]
    shutil.rmtree(folder / "cache")
    both = _both(train("run-2"), train("run-3"), folder, rng, problems)
    ends += both
    if any(ended.code for ended in both):
        problems.append("two runs with one cache: one failed")
    for name in ("run-2", "run-3"):
        problems += differences(Run(folder / name), Run(whole / "run"))
        shutil.rmtree(folder / name, ignore_errors=True)
    return problems, ends


def _both(one: list[object], other: list[object], folder: Path, rng: Random, problems: list[str]) -> list[Ended]:
    first = start(one, folder)
    time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 1.5))))
    second = start(other, folder)
    ends = [child.wait() for child in (first, second)]
    problems += [f"two at once, {one[0]}: {ended.problem}" for ended in ends if ended.problem]
    return ends
