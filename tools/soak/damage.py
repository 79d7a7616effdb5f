"""Part d: damaged and hostile files are refused in one sentence or recovered; never silently wrong, never run."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from soak import hostile
from soak.campaign import Campaign, Row
from soak.commands import fork, run, succeed
from soak.samples import differences, same, training_options, write_images, write_videos
from unshuffle.config import check as check_config
from unshuffle.config import read_config
from unshuffle.data.held_out import load_held_out
from unshuffle.data.pack import pack
from unshuffle.data.shards import ShardOptions, ShardSource, open_shards
from unshuffle.data.store import Kind, Store
from unshuffle.errors import UserError
from unshuffle.models.weights import read_weights
from unshuffle.permutations import load_permutations
from unshuffle.runs.checkpoints import load_checkpoint
from unshuffle.runs.history import read_states
from unshuffle.runs.run import Run

SMALL = ("--spatial.head.fc6", 8, "--spatial.head.hidden", 12, "--temporal.head.fc6", 8, "--temporal.head.hidden", 12)
ITERATIONS = 12
PATIENCE = 60.0
"""Seconds after which reading one file counts as hanging."""
MEGABYTES = 3000
CANARY = "canary"
"""The file that hostile files try to create."""


# ---- damage


def damaged(content: bytes, rng: Random) -> bytes:
    """Return what a failing disk, a bad copy or an editor may leave of a file; never the same."""
    while True:
        data = bytearray(content)
        position, length = rng.randrange(len(data)), rng.choice((1, 8, 64, 512, 4096))
        kind = rng.randrange(9)
        if kind <= 2:
            for _ in range((1, 1, 8)[kind]):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 3:
            data[position : position + length] = bytes(len(data[position : position + length]))
        elif kind == 4:
            data[position : position + length] = rng.randbytes(len(data[position : position + length]))
        elif kind == 5:
            del data[position:]
        elif kind == 6:
            data += rng.choice((rng.randbytes(length), bytes(length), bytes(data[:length])))
        elif kind == 7:
            del data[position : position + length]
        else:
            data[position:position] = data[position : position + length]
        if bytes(data) != content:
            return bytes(data)


_VALUES: tuple[Any, ...] = (None, True, -1, 0, 2**63, 1e308, float("nan"), float("inf"), [], {}, [[]])
_VALUES += ("", "x" * 300, "../../x", "\x1b[31m")


def damaged_json(content: bytes, rng: Random) -> bytes:
    """Replace a value in one line of JSON, or in the whole document, by one of another kind."""
    lines = content.splitlines(keepends=True)
    try:
        json.loads(content)
        lines = [content]
    except ValueError:  # one document per line
        pass
    position = rng.randrange(len(lines))
    document = json.loads(lines[position])
    parents = [parent for parent in _containers(document) if parent]
    parent = rng.choice(parents)
    parent[rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))] = rng.choice(_VALUES)
    lines[position] = json.dumps(document).encode() + b"\n"
    return b"".join(lines)


def _containers(value: Any) -> list[Any]:
    if not isinstance(value, dict | list):
        return []
    return [
        value,
        *(inner for entry in (value.values() if isinstance(value, dict) else value) for inner in _containers(entry)),
    ]


# ---- what is read


@dataclass(frozen=True)
class Target:
    """A kind of file that is damaged, and how the program reads it."""

    name: str
    file: Path
    read: Callable[[], Any]
    exact: bool = True
    """Whether reading must give the right value or refuse; otherwise the format has no checksums."""
    is_json: bool = False

    def change(self, rng: Random) -> bytes:
        """Return the file's content, damaged."""
        content = self.file.read_bytes()
        return (damaged_json if self.is_json and rng.random() < 0.5 else damaged)(content, rng)


def prepare(folder: Path, seed: int) -> Run:
    """Write the data and train a run that has several checkpoints."""
    write_images(folder / "images", 40, seed)
    write_videos(folder / "videos", 20, seed)
    succeed([*_train_command("run"), "--log.keep_checkpoints", 9], folder)
    return Run(folder / "run")


def _train_command(out: str) -> list[object]:
    return ["pretrain", "--resume", "--out", out, *training_options(ITERATIONS), *SMALL]


def targets(folder: Path, trained: Run) -> list[Target]:
    """Return everything that is read back."""
    checkpoint = trained.checkpoints / f"{ITERATIONS:08}.pt"
    state_dict = folder / "weights.pth"
    torch.save(read_weights(trained.weights)[0], state_dict)
    found = [
        Target("checkpoint", checkpoint, lambda: load_checkpoint(checkpoint)),
        Target("weights", trained.weights, lambda: read_weights(trained.weights)),
        Target("state dict", state_dict, lambda: read_weights(state_dict)),
        Target("config", trained.config_file, lambda: check_config(read_config(trained.config_file)), exact=False),
        Target("metrics", trained.metrics_file, lambda: [*trained.metrics()], exact=False, is_json=True),
        Target("held-out samples", trained.held_out, lambda: _held_out(trained)),
    ]
    for task in ("spatial", "temporal"):
        state, file = trained.states / f"{task}-{ITERATIONS:08}.npz", trained.permutations / f"{task}.npy"
        found.append(Target("states", state, partial(_states, trained, task)))
        found.append(Target("permutations", file, partial(load_permutations, file)))
    for kind in hostile.KINDS:
        (folder / kind / "broken.png").write_bytes(b"not an image")  # so that something is listed as skipped
        (folder / kind / "broken.mp4").write_bytes(b"not a video")
        for encoding in ("raw", "jpeg"):
            store = folder / f"{kind}-{encoding}"
            pack(kind, folder / kind, store, short_side=32, encoding=encoding, progress=False)  # type: ignore[arg-type]
            for file in sorted(store.iterdir()):
                found.append(Target("store", file, partial(_read_store, store), is_json=file.suffix != ".bin"))
        # two files, as a shard that was written to is indexed anew
        shard, indexed = (folder / f"{kind}-{name}.tar" for name in ("shard", "indexed"))
        for file in (shard, indexed):
            hostile.write_shard(file, folder / "images", kind)
        cache = folder / f"{kind}-index"
        _read_shard(indexed, kind, cache)
        (index,) = (cache / "shards").glob("*.index")
        found.append(Target("shard", shard, partial(_read_shard, shard, kind, None), exact=False))
        found.append(Target("index of a shard", index, partial(_read_shard, indexed, kind, cache)))
    return found


def _states(trained: Run, task: str) -> Any:
    return list(read_states(trained, task, ("permutation_errors", "sampled", "groups", "probabilities")))


def _read_store(folder: Path) -> Any:
    return _contents(Store(folder))


def _read_shard(shard: Path, kind: Kind, cache: Path | None) -> Any:
    """Read a shard with the index in a cache; without a cache, index it."""
    with TemporaryDirectory() as empty:
        return _contents(open_shards(str(shard), ShardOptions(kind, 32), cache or Path(empty), progress=False))


def _held_out(trained: Run) -> Any:
    return {task: (samples.pixels, list(samples.names)) for task, samples in load_held_out(trained.held_out).items()}


def _contents(source: Store | ShardSource) -> Any:
    items = range(len(source))
    return source.names, source.skipped, [source.read(item, range(source.num_frames(item))) for item in items]


# ---- trying


def check(campaign: Campaign) -> None:
    """Read damaged files, then hostile ones, then give damaged files to whole commands."""
    folder = campaign.new_folder("damage")
    trained = prepare(folder, campaign.seed)
    with campaign.row("d", "commands with damaged files of a run: --resume, report, export, --init, embed") as row:
        check_commands(campaign, folder, trained, row)
    found = targets(folder, trained)
    with campaign.row("d", f"damaged {', '.join(dict.fromkeys(target.name for target in found))}") as row:
        originals = {target.file: target.file.read_bytes() for target in found}
        right = [target.read() for target in found]

        def damage_and_read(number: int) -> str:
            target, rng = found[number % len(found)], campaign.rng("damage", number)
            target.file.write_bytes(target.change(rng))
            try:
                return f"{target.name}: {_outcome(target.read, right[number % len(found)], target.exact)}"
            finally:
                target.file.write_bytes(originals[target.file])

        _try_all(damage_and_read, campaign.counts.damaged, campaign, folder, row)
        for target in found:  # a process that was killed may have left a damaged one
            target.file.write_bytes(originals[target.file])
    cases = hostile.cases(folder / "hostile", folder / CANARY)
    with campaign.row("d", "hostile files: code in pickles, YAML and addresses, bombs, links and paths in tars") as row:

        def read_hostile(number: int) -> str:
            case = cases[number]
            outcome = _outcome(case.read, None, exact=False)
            ran = (folder / CANARY).exists()
            return f"{case.name}: {'LOST it ran code or wrote outside' if ran else outcome}"

        _try_all(read_hostile, len(cases), campaign, folder, row)


def _outcome(read: Callable[[], Any], right: Any, exact: bool) -> str:
    """Read and return what became of it; it begins with LOST if that must not be."""
    try:
        value = read()
    except UserError as error:
        return "refused" if len(str(error).splitlines()) == 1 else f"LOST more than one sentence: {error!r}"
    except (OSError, MemoryError):  # the command line prints one sentence
        return "refused"
    except Exception as error:
        return f"LOST {type(error).__name__}: {str(error)[:200]}"
    if same(value, right):
        return "the right value"
    return "LOST a wrong value" if exact and not _is_subset(value, right) else "read"


def _is_subset(value: Any, right: Any) -> bool:
    """Return whether only some of the validations are left out, which is what happens to damaged ones."""
    states = isinstance(right, list) and bool(right) and isinstance(right[0], dict)
    return states and all(any(same(state, other) for other in right) for state in value)


def _try_all(attempt: Callable[[int], str], count: int, campaign: Campaign, folder: Path, row: Row) -> None:
    """Make all attempts in a child process; one that crashes or hangs is lost, and another child continues."""
    results, log = folder / f"results-{len(campaign.rows)}", folder / "attempts.stderr"
    results.write_text("")
    outcomes: Counter[str] = Counter()
    most = 0.0
    while (begin := len(lines := results.read_text().splitlines())) < count:

        def work(begin: int = begin) -> None:
            with results.open("a") as file:
                for number in range(begin, count):
                    file.write(attempt(number).replace("\n", " ") + "\n")
                    file.flush()

        end, megabytes = _watch(fork(work, log), results)
        most = max(most, megabytes)
        if end:  # the attempt after those with a line
            with results.open("a") as file:
                file.write(f"attempt: LOST the process {end}\n")
    for number, line in enumerate(lines):
        outcome = line.partition(": ")[2]
        if outcome.startswith("LOST"):
            row.lost.append(f"{line} (number {number}; --only d --seed {campaign.seed} --damaged {count})")
        outcomes[outcome if not outcome.startswith("LOST") else "lost"] += 1
    if most > MEGABYTES:
        row.lost.append(f"it took {most:.0f} MB")
    row.count = count
    row.result = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    row.result += f"; at most {most:.0f} MB"


def _watch(pid: int, results: Path) -> tuple[str, float]:
    """Wait for a child; return how it failed, empty if it did not, and its memory."""
    size, changed = -1, time.monotonic()
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return f"ended with code {code}" if code else "", usage.ru_maxrss / 1024
        if results.stat().st_size != size:
            size, changed = results.stat().st_size, time.monotonic()
        if time.monotonic() - changed > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs", 0.0
        time.sleep(0.02)


# ---- whole commands

_UNCHECKED = {"metrics.jsonl": ("metrics",), "config.yaml": ("metrics",), "states": ("states",)}
"""Files without checksums, and where a resumed run may then differ."""


def check_commands(campaign: Campaign, folder: Path, trained: Run, row: Row) -> None:
    """Damage one file of a run, then resume it, report it or use its weights."""
    outcomes: Counter[str] = Counter()
    moved = folder / "whole"
    shutil.move(trained.folder, moved)
    try:
        for number in range(campaign.counts.commands):
            rng = campaign.rng("commands", number)
            shutil.copytree(moved, trained.folder, dirs_exist_ok=True)
            outcome = _damage_and_run(Run(trained.folder), Run(moved), folder, rng)
            outcomes[outcome.partition(":")[0]] += 1
            if "LOST" in outcome:
                again = f"number {number}; --only d --seed {campaign.seed} --commands {campaign.counts.commands}"
                row.lost.append(f"{outcome} ({again})")
            shutil.rmtree(trained.folder)
    finally:
        shutil.rmtree(trained.folder, ignore_errors=True)
        shutil.move(moved, trained.folder)
    row.count = campaign.counts.commands
    row.result = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())


def _damage_and_run(damaged_run: Run, whole: Run, folder: Path, rng: Random) -> str:
    commands: Sequence[list[object]] = [
        _train_command("run"),
        _train_command("run"),
        ["report", "run"],
        ["export", "run", "--format", "torchvision", "--out", "exported.pth"],
        ["embed", "images", "--weights", "run", "--out", "embedded.csv"],
        [*_train_command("other"), "--init", "run"],
    ]
    command = rng.choice(commands)
    if resumes := command[0] == "pretrain" and "--init" not in command:  # as if it had been killed after iteration 10
        (damaged_run.checkpoints / f"{ITERATIONS:08}.pt").unlink()
        damaged_run.weights.unlink()
        damaged_run.report.unlink()
    files = sorted(path for path in damaged_run.folder.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
    file = rng.choice(files)
    file.write_bytes(damaged(file.read_bytes(), rng) if file.stat().st_size else b"\0")
    ended = run(command, folder)
    shutil.rmtree(folder / "other", ignore_errors=True)
    for name in ("exported.pth", "embedded.csv"):
        (folder / name).unlink(missing_ok=True)
    where = f"{command[0]} with {file.relative_to(damaged_run.folder)}"
    if ended.problem:
        return f"{where}: LOST {ended.problem}"
    if ended.code:
        return "refused"
    if resumes:
        unchecked = _UNCHECKED.get(file.name, _UNCHECKED.get(file.parent.name, ()))
        wrong = [text for text in differences(damaged_run, whole) if not any(word in text for word in unchecked)]
        warned = any(entry["kind"] == "warning" for entry in damaged_run.metrics())
        wrong = [text for text in wrong if not (warned and text == "the metrics differ")]
        if wrong:
            return f"{where}: LOST it resumed with exit code 0, but {wrong}"
    return "done"
