"""`unshuffle pretrain`: from a config to a run folder."""

import csv
import os
import platform
import shlex
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import unshuffle
from unshuffle.accelerator import choose_device, local_rank
from unshuffle.config import Config, OptimConfig, check, preset_config
from unshuffle.console import ResilientConsole, say
from unshuffle.data.held_out import load_held_out, save_held_out
from unshuffle.errors import UserError
from unshuffle.evaluation.retrieval import RetrievalMonitor, build_monitor
from unshuffle.files import check_folder, locked
from unshuffle.models.weights import save_backbone
from unshuffle.options import differences, merge, write_config
from unshuffle.permutations import save_permutations
from unshuffle.report.page import write_report
from unshuffle.report.pictures import draw_pictures
from unshuffle.report.results import error_table, retrieval_table
from unshuffle.report.snapshot import Snapshot, hold_out
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.folders import find_runs
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS, build_tasks
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.distributed import is_main, together
from unshuffle.training.log import NoLog, RunLog
from unshuffle.training.trainer import Trainer, build_trainer, initial_backbone

CHANGEABLE_ON_RESUME = (
    "device",
    "log.",
    "data.workers",
    "data.cache",
    "data.shard_cache_gb",
    "data.gpu_memory_fraction",
    "out",
    "images",
    "videos",
)


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
    resume = resume and Run(Path(str(out)).expanduser()).config_file.is_file()  # otherwise the run starts here
    base = Run(Path(str(out)).expanduser()).config if resume else preset_config(preset)
    return run_pretraining(merge(base, {**paths, **options}), resume=resume)


def run_pretraining(config: Config, resume: bool = False, console: Console | None = None) -> Run:
    """Train from a config, or continue the run in its folder; under torchrun, as one of several processes."""
    with distributed.started(), ExitStack() as locks:
        console = (console or ResilientConsole()) if is_main() else ResilientConsole(quiet=True)
        return _run_pretraining(config, resume, console, locks)


def _run_pretraining(config: Config, resume: bool, console: Console, locks: ExitStack) -> Run:
    if config.out is not None:
        config = replace(config, out=config.out.expanduser())
    with together():
        check(config)
        _check_divisible(config, config.data.val_size)
        if is_main():
            _check_out(config, resume)
            if resume and config.out is not None:
                locks.enter_context(_run_lock(Run(config.out)))
    if resume and distributed.broadcast(_is_finished(config)):
        return _report_finished(config, console)
    with together():
        if resume and config.out is not None and list_checkpoints(Run(config.out).checkpoints):
            config = replace(config, init=None)  # the checkpoint holds the weights
        choose_device(config.device)
        try_backbone(config)
    data = _prepare(config)
    for sentence in data.sentences():
        say(console, sentence)
    with together():
        _check_divisible(config, min(len(samples) for samples in data.validation.values()))
        permutations = stored_permutations(Run(config.out)) if resume and config.out is not None else None
        trainer = build_trainer(config, data, permutations, build_monitor(config) if is_main() else None)
        folder = config.out or (_next_folder(config.preset) if is_main() else Path())
    run = Run(distributed.broadcast(folder))
    if resume:
        _restore(trainer, run, console)
    describe(trainer, run, console)
    with together():
        if is_main() and not resume:
            _start_folder(run, trainer)
            locks.enter_context(_run_lock(run))
        log = _open_log(trainer, run) if is_main() else NoLog()
    with log:
        trainer.train(run, log, Display(trainer.statuses(), config.optim.iterations, trainer.iteration, console))
    with together():
        if is_main():
            _finish(trainer, run, console)
    return run


def _check_divisible(config: Config, val_size: int) -> None:
    sizes = {"optim.batch_size": config.optim.batch_size}
    sizes |= {f"{name}.batch_size": TASKS[name](config).batch_size for name in config.task_names}
    distributed.check_divisible(sizes, val_size)


def _prepare(config: Config) -> Data:
    """Open the data: first in one process of each machine, which may have to pack it, then in the others."""
    data = Data()
    for first in (True, False):
        with together():
            if first == (local_rank() == 0):
                data = prepare(config, progress=is_main())
    return data


def _check_out(config: Config, resume: bool) -> None:
    """Raise a UserError if the run folder holds something else, or a run with another config."""
    if config.out is None:
        check_folder(Path("runs"), "--out")
        return
    run = Run(config.out)
    if not resume:
        if run.config_file.exists():
            raise UserError(f"{run.folder} already holds a run: continue it with --resume, or choose another --out")
        if run.folder.is_dir() and any(run.folder.iterdir()):
            raise UserError(f"{run.folder} is not empty: choose another --out")
        check_folder(run.folder, "--out")
        return
    changed = [
        name for name in differences(Run.open(run.folder).config, config) if not name.startswith(CHANGEABLE_ON_RESUME)
    ]
    if changed:
        raise UserError(f"a resumed run keeps its config, but {', '.join(changed)} would change")


def _is_finished(config: Config) -> bool:
    """Return whether nothing is left to do; a run may also have been interrupted before its report was written."""
    assert config.out is not None, "a resumed run has a folder"
    run = Run(config.out)
    trained = any(int(path.stem) >= config.optim.iterations for path in list_checkpoints(run.checkpoints))
    return trained and run.weights.exists() and (run.report.exists() or not config.log.pictures)


def _report_finished(config: Config, console: Console) -> Run:
    assert config.out is not None, "a resumed run has a folder"
    say(
        console,
        f"{config.out} is finished, with all its {config.optim.iterations} iterations: to train its weights further, "
        f"start another run with --init {shlex.quote(str(config.out))}",
    )
    return Run(config.out)


def _run_lock(run: Run) -> AbstractContextManager[None]:
    """Keep a second process from writing into the run; reading is not restricted."""
    return locked(run.config_file, f"{run.folder} is being trained by another process: wait for its end, or stop it")


def _next_folder(preset: str) -> Path:
    """Create the next free runs/PRESET-N, at once, so that runs that start at the same time get different folders."""
    number = 1
    while True:
        folder = Path("runs", f"{preset}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def try_backbone(config: Config) -> None:
    """Build the backbone with its initial weights and pass it a crop of each task, to find errors before data is read."""
    backbone = initial_backbone(config)
    for task in build_tasks(config, config.task_names).values():
        task.features(backbone)


def _start_folder(run: Run, trainer: Trainer) -> None:
    try:
        run.permutations.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"another run has begun in {run.folder}: choose another --out") from None
    for name, rows in trainer.permutations.items():
        save_permutations(run.permutations / f"{name}.npy", rows.cpu().numpy())
    write_config(replace(trainer.config, out=run.folder), run.config_file)


def _write_skipped(run: Run, data: Data) -> None:
    # file names need not be valid text
    with run.skipped.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "reason"))
        writer.writerows(data.skipped)


def _restore(trainer: Trainer, run: Run, console: Console) -> None:
    newest = distributed.broadcast(list_checkpoints(run.checkpoints)[-1:])
    if not newest:
        say(console, "no checkpoint yet: starting from the beginning")
        return
    with together():
        trainer.load_state_dict(load_checkpoint(newest[0]))


def describe(trainer: Trainer, run: Run, console: Console) -> None:
    """Print what is about to be trained."""
    config = trainer.config
    sets = {name: f" (|Ψ| = {len(rows)})" for name, rows in trainer.permutations.items()}
    tasks = ", ".join(f"{name}{sets.get(name, '')}" for name in trainer.tasks)
    weights = sum(parameter.numel() for parameter in trainer.network.backbone.parameters())
    say(
        console,
        f"{config.model.backbone} ({weights / 1e6:.2f} million weights) on {_where(trainer)}; {tasks}; "
        f"iterations {trainer.iteration} to {config.optim.iterations}; into {run.folder}",
    )
    for note in _schedule_notes(config.optim):
        say(console, note)


def _where(trainer: Trainer) -> str:
    processes = trainer.part.world_size
    return str(trainer.device) if processes == 1 else f"{trainer.device.type}, {processes} processes"


def _schedule_notes(optim: OptimConfig) -> list[str]:
    """Return what may be unintended when only the number of iterations was changed."""
    notes = []
    late = [milestone for milestone in optim.milestones if milestone >= optim.iterations]
    if late:
        notes.append(f"note: optim.milestones {late} lie beyond the last iteration and have no effect")
    if optim.warmup > optim.iterations / 2:
        notes.append(f"note: optim.warmup {optim.warmup} takes more than half of the {optim.iterations} iterations")
    return notes


def _open_log(trainer: Trainer, run: Run) -> RunLog:
    _write_skipped(run, trainer.data)
    if trainer.config.log.pictures:
        save_held_out(run.held_out, hold_out(trainer))
    log = RunLog(run, trainer.iteration)
    if trainer.iteration == 0:
        _log_start(trainer, log)
    return log


def _log_start(trainer: Trainer, log: RunLog) -> None:
    versions = {
        "unshuffle": unshuffle.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
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
    if isinstance(trainer.monitor, RetrievalMonitor):
        for name, scores in trainer.monitor.baselines().items():
            log.write("baseline", 0, name=name, **scores)


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
    if trainer.monitor is not None:
        console.print("", retrieval_table(run), sep="\n")
    say(console, "\nResults:")
    for path in (*pages, run.weights, run.metrics_file):
        say(console, f"  {path}")


def _draw(trainer: Trainer, run: Run, console: Console) -> list[Path]:
    """Write the report and the pictures, and return the files."""
    snapshot = Snapshot.of(trainer, hold_out(trainer))
    pictures = draw_pictures(snapshot, trainer.monitor, run)
    try:
        stored = replace(snapshot, held_out=load_held_out(run.held_out))  # as `unshuffle report` will show it
        write_report(find_runs([run.folder]), run.report, snapshots={run.folder: stored})
    except Exception as error:  # the training is done, and the page can be written again
        again = f"unshuffle report {shlex.quote(str(run.folder))}"
        say(console, f"no report was written ({error}); try again with: {again}")
        return pictures
    return [run.report, *pictures]
