"""`unshuffle pretrain`: from a config to a run folder."""

import csv
import itertools
import os
import platform
import shlex
import shutil
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import unshuffle
from unshuffle.accelerator import choose_device, local_rank
from unshuffle.config import Config, check, preset_config
from unshuffle.console import ResilientConsole, say
from unshuffle.data.held_out import load_held_out, save_held_out
from unshuffle.errors import UserError
from unshuffle.evaluation.monitor import FeatureMonitor, RetrievalMonitor, build_monitor
from unshuffle.files import check_folder, csv_cell, locked, locked_folder
from unshuffle.models.weights import save_backbone
from unshuffle.options import differences, merge, write_config
from unshuffle.permutations import save_permutations
from unshuffle.report.page import write_report
from unshuffle.report.pictures import draw_pictures
from unshuffle.report.results import error_table, retrieval_table
from unshuffle.report.snapshot import Snapshot, hold_out
from unshuffle.report.verdict import judge_features, own_data_table
from unshuffle.runs.checkpoints import (
    DamagedCheckpoint,
    LoadedCheckpoint,
    checkpoint_iterations,
    fitting,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
)
from unshuffle.runs.folders import find_runs
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks import build_tasks
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.distributed import is_main, together
from unshuffle.training.log import NoLog, RunLog
from unshuffle.training.trainer import Trainer, build_trainer, fit_crop_sizes, initial_backbone
from unshuffle.wording import counted, skipped_sentence

CHANGEABLE_ON_RESUME = (
    "device",
    "log.",
    "optim.max_skipped_steps",
    "data.workers",
    "data.cache",
    "data.shard_cache_gb",
    "data.gpu_memory_fraction",
    "data.limits.memory_gb",
    "out",
    "images",
    "videos",
)
STARTING = ".starting"
"""Folder in a run folder that holds the first files until they are complete."""


def pretrain(
    images: str | Path | None = None,
    videos: str | Path | None = None,
    out: str | Path | None = None,
    *,
    preset: str = "demo",
    resume: bool = False,
    **options: Any,
) -> Run:
    """Learn features from images, videos or both (folders, packed stores, tar shards); without data, from a synthetic
    world.

    Options are the fields of `unshuffle.config.Config`; sections are given as dicts, such as
    `optim={"iterations": 1000}`. Returns the run: a folder with the backbone, the metrics and pictures.
    """
    given = {"images": images, "videos": videos, "out": out}
    paths = {name: str(path) for name, path in given.items() if path is not None}
    if resume and out is None:
        raise UserError("resume needs the run folder: give out")
    run = Run(Path(out or "").expanduser())
    base = run.config if resume and run.config_file.is_file() else preset_config(preset)
    return run_pretraining(merge(base, {**paths, **options}), resume=resume)


def run_pretraining(config: Config, resume: bool = False, console: Console | None = None) -> Run:
    """Train from a config; with `resume`, continue the run in its folder, if there is one to continue.

    Under torchrun this is one of several processes.
    """
    with distributed.started(), ExitStack() as locks:
        console = (console or ResilientConsole()) if is_main() else ResilientConsole(quiet=True)
        return _run_pretraining(config, resume, console, locks)


def _run_pretraining(config: Config, resume: bool, console: Console, locks: ExitStack) -> Run:
    out = None if config.out is None else config.out.expanduser()
    config = replace(config, out=out)
    resumed = Run(out) if resume and out is not None and Run(out).config_file.is_file() else None
    with together():
        check(config)
        config, remarks = fit_crop_sizes(config)
        _check_divisible(config, config.data.val_size)
        if is_main():
            _check_out(config, resumed)
            if resumed is not None:
                locks.enter_context(_run_lock(resumed))
                with suppress(OSError):  # not there, as a rule
                    (resumed.folder / STARTING).rmdir()
    if resumed is not None and distributed.broadcast(_is_finished(resumed, config)):
        say(
            console,
            f"{out} is finished, with all its {config.optim.iterations} iterations: to train its weights further, "
            f"start another run with --init {shlex.quote(str(out))}",
        )
        return resumed
    with together():
        if resumed is not None and list_checkpoints(resumed.checkpoints):
            config = replace(config, init=None)  # the checkpoint holds the weights
        choose_device(config.device)
        try_backbone(config)
    data = _prepare(config)
    for sentence in (*remarks, *data.sentences()):
        say(console, sentence)
    with together():
        _check_divisible(config, min(len(samples) for samples in data.validation.values()))
        permutations = None if resumed is None else stored_permutations(resumed)
        monitor = build_monitor(config, data, console) if is_main() else None
        trainer = build_trainer(config, data, permutations, monitor)
        folder = out or (_next_folder(config.preset) if is_main() else Path())
    run = Run(distributed.broadcast(folder))
    warnings = {} if resumed is None else _restore(trainer, run, console)
    describe(trainer, run, console)
    with together():
        if is_main() and resumed is None:
            _start_folder(run, trainer)
            locks.enter_context(_run_lock(run))
        log = _open_log(trainer, run) if is_main() else NoLog()
        for concern, sentence in warnings.items():
            log.write("warning", trainer.iteration, concern=concern, sentence=sentence)
    with log:
        trainer.train(run, log, Display(trainer.statuses(), config.optim.iterations, trainer.iteration, console))
    with together():
        if is_main():
            _finish(trainer, run, console)
    return run


def _check_divisible(config: Config, val_size: int) -> None:
    sizes = {"optim.batch_size": config.optim.batch_size}
    sizes |= {f"{name}.batch_size": config.batch_size(name) for name in config.task_names}
    distributed.check_divisible(sizes, val_size)


def _prepare(config: Config) -> Data:
    """Open the data: first in one process of each machine, which may have to pack it, then in the others."""
    data = Data()
    for first in (True, False):
        with together():
            if first == (local_rank() == 0):
                data = prepare(config, progress=is_main())
    return data


def _check_out(config: Config, resumed: Run | None) -> None:
    """Raise a UserError if the run folder holds something else, or a run with another config."""
    if resumed is not None:
        changed = [name for name in differences(resumed.config, config) if not name.startswith(CHANGEABLE_ON_RESUME)]
        if changed:
            raise UserError(f"a resumed run keeps its config, but {', '.join(changed)} would change")
        return
    if config.out is not None and Run(config.out).config_file.exists():
        raise UserError(f"{config.out} already holds a run: continue it with --resume, or choose another --out")
    if config.out is not None and config.out.is_dir() and not _can_start(config.out):
        raise UserError(f"{config.out} is not empty: choose another --out")
    check_folder(config.out or Path("runs"), "--out")


def _can_start(folder: Path) -> bool:
    """Return whether a folder is empty, or holds only what a process left that was killed as it began a run."""
    names = {path.name for path in folder.iterdir()}
    return not names or (STARTING in names and names <= {STARTING, Run(folder).permutations.name})


def _is_finished(run: Run, config: Config) -> bool:
    """Return whether nothing is left to do; a run may also have been interrupted before its report was written."""
    trained = any(iteration >= config.optim.iterations for iteration in checkpoint_iterations(run.checkpoints))
    return trained and run.weights.exists() and (run.report.exists() or not config.log.pictures)


def _run_lock(run: Run) -> AbstractContextManager[None]:
    """Keep a second process from writing into the run; reading is not restricted."""
    return locked(run.config_file, f"{run.folder} is being trained by another process: wait for its end, or stop it")


def _next_folder(preset: str) -> Path:
    """Create the next free runs/PRESET-N, at once, so that runs that start at the same time get different folders."""
    for number in itertools.count(1):
        folder = Path("runs", f"{preset}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def try_backbone(config: Config) -> None:
    """Build the backbone with its initial weights and pass it a crop of each task, to fail before data is read."""
    config, _ = fit_crop_sizes(config)
    backbone = initial_backbone(config)
    for task in build_tasks(config, config.task_names).values():
        task.features(backbone)


def _start_folder(run: Run, trainer: Trainer) -> None:
    """Write the permutation sets, then the config, which makes the folder a run.

    Both are first written into a folder that marks a start that is not finished, so that a process killed in between
    leaves a folder that can be started again.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    taken = f"another run has begun in {run.folder}: choose another --out"
    with locked_folder(run.folder, taken):
        draft = run.folder / STARTING
        if draft.is_dir() and not run.config_file.exists():
            shutil.rmtree(run.permutations, ignore_errors=True)
            shutil.rmtree(draft)
        if run.config_file.exists() or run.permutations.exists():
            raise UserError(taken)
        started = Run(draft)
        started.permutations.mkdir(parents=True)
        for name, rows in trainer.permutations.items():
            save_permutations(started.permutations / f"{name}.npy", rows.cpu().numpy())
        write_config(replace(trainer.config, out=run.folder), started.config_file)
        started.permutations.rename(run.permutations)
        started.config_file.rename(run.config_file)
        draft.rmdir()


def _restore(trainer: Trainer, run: Run, console: Console) -> dict[str, str]:
    """Load the newest checkpoint that is not damaged; print and return the sentence of each concern, by its name."""
    checkpoint: LoadedCheckpoint | None = None
    with together():
        if is_main():
            try:
                checkpoint = newest_checkpoint(run.checkpoints)
            except DamagedCheckpoint as problem:
                raise UserError(f"{problem}; start the training again with another --out") from problem
    path = distributed.broadcast(None if checkpoint is None else checkpoint.path)
    if path is None:
        say(console, "no checkpoint yet: starting from the beginning")
        return {}
    with together(), fitting(path):
        trainer.load_state_dict(load_checkpoint(path) if checkpoint is None else checkpoint.state)
    damage = None if checkpoint is None else checkpoint.warning
    concerns = {
        "damaged_checkpoint": damage,
        "damaged_metrics": run.metrics_warning if is_main() else None,
        "threads": _other_threads(trainer, run),
    }
    warnings = {concern: sentence for concern, sentence in concerns.items() if sentence is not None}
    for sentence in warnings.values():
        say(console, sentence)
    return warnings


def _other_threads(trainer: Trainer, run: Run) -> str | None:
    """Return a sentence if a run on a CPU began with another number of threads, which sum in another order."""
    before, threads = next((entry.get("threads") for entry in run.metrics("start")), None), torch.get_num_threads()
    if trainer.device.type != "cpu" or before in (None, threads):
        return None
    return (
        f"the run began with {counted(before, 'threads')} and continues with {threads}, so its results will differ in "
        f"the last bits from those of an uninterrupted run: set OMP_NUM_THREADS={before} to get the same"
    )


def describe(trainer: Trainer, run: Run, console: Console) -> None:
    """Print what is about to be trained."""
    config = trainer.config
    sets = {name: f" (|Ψ| = {len(rows)})" for name, rows in trainer.permutations.items()}
    tasks = ", ".join(f"{name}{sets.get(name, '')}" for name in trainer.tasks)
    weights = sum(parameter.numel() for parameter in trainer.network.backbone.parameters())
    processes = trainer.part.world_size
    device = str(trainer.device) if processes == 1 else f"{trainer.device.type}, {processes} processes"
    say(
        console,
        f"{config.model.backbone} ({weights / 1e6:.2f} million weights) on {device}; {tasks}; "
        f"iterations {trainer.iteration} to {config.optim.iterations}; into {run.folder}",
    )
    # what may be unintended when only the number of iterations was changed
    optim = config.optim
    late = [milestone for milestone in optim.milestones if milestone >= optim.iterations]
    if late and optim.schedule == "steps":
        say(console, f"note: optim.milestones {late} lie beyond the last iteration and have no effect")
    if optim.warmup > optim.iterations / 2:
        say(console, f"note: optim.warmup {optim.warmup} takes more than half of the {optim.iterations} iterations")


def _open_log(trainer: Trainer, run: Run) -> RunLog:
    # file names need not be valid text
    with run.skipped.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows([("file", "reason"), *(map(csv_cell, row) for row in trainer.data.skipped)])
    if trainer.config.log.pictures:
        save_held_out(run.held_out, hold_out(trainer))
    log = RunLog(run, trainer.iteration)
    if trainer.iteration > 0:
        return log
    versions = {"unshuffle": unshuffle.__version__, "python": platform.python_version(), "torch": torch.__version__}
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else platform.machine()
    log.write(
        "start",
        0,
        versions=versions,
        processes=trainer.part.world_size,
        device=device,
        cpus=os.cpu_count(),
        threads=torch.get_num_threads(),
        sources=[asdict(source) for source in trainer.data.sources],
        splits={name: asdict(split) for name, split in trainer.data.splits.items()},
    )
    if (retrieval := _retrieval(trainer)) is not None:
        for name, scores in retrieval.baselines().items():
            log.write("baseline", 0, name=name, **scores)
    return log


def _retrieval(trainer: Trainer) -> RetrievalMonitor | None:
    """Return the retrieval of labelled images that the trainer's monitor has, if any."""
    return trainer.monitor.retrieval if isinstance(trainer.monitor, FeatureMonitor) else None


def _finish(trainer: Trainer, run: Run, console: Console) -> None:
    config = trainer.config
    save_backbone(
        trainer.network.backbone,
        run.weights,
        crop_sizes={name: task.settings.crop_size for name, task in trainer.tasks.items()},
        permutations={name: rows.cpu().numpy() for name, rows in trainer.permutations.items()},
    )
    pages = _draw(trainer, run, console) if config.log.pictures else []
    console.print(error_table(run))
    if _retrieval(trainer) is not None:
        console.print("", retrieval_table(run), sep="\n")
    if (verdict := judge_features(run)) is not None:
        console.print("", own_data_table(run), "", sep="\n")
        for sentence in verdict.sentences:
            say(console, sentence)
    if trainer.skipped_steps.total:
        say(console, skipped_sentence(trainer.skipped_steps.total, trainer.iteration))
    say(console, "\nResults:")
    for path in (*pages, run.weights, run.metrics_file):
        say(console, f"  {path}")


def _draw(trainer: Trainer, run: Run, console: Console) -> list[Path]:
    """Write the report and the pictures, and return the files."""
    snapshot = Snapshot.of(trainer, hold_out(trainer))
    pictures = draw_pictures(snapshot, _retrieval(trainer), run)
    try:
        stored = replace(snapshot, held_out=load_held_out(run.held_out))  # as `unshuffle report` will show it
        write_report(find_runs([run.folder]), run.report, snapshots={run.folder: stored})
    except Exception as error:  # the training is done, and the page can be written again
        again = f"unshuffle report {shlex.quote(str(run.folder))}"
        say(console, f"no report was written ({error}); try again with: {again}")
        return pictures
    return [run.report, *pictures]
