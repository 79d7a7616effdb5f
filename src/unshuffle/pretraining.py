"""The main job, from a config to a run folder."""

import csv
import os
import platform
import shlex
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import unshuffle
from unshuffle.accelerator import choose_device, local_rank
from unshuffle.assembly import (
    PermutationSets,
    build_monitor,
    build_trainer,
    initial_backbone,
    permutation_sets,
    stored_permutation_sets,
)
from unshuffle.config import Config, OptimConfig, check, preset_config
from unshuffle.console import ResilientConsole, say
from unshuffle.data.held_out import KEPT, load_held_out, save_held_out
from unshuffle.data.prepare import Data, prepare
from unshuffle.errors import UserError
from unshuffle.evaluation.retrieval import RetrievalMonitor
from unshuffle.files import check_folder, locked
from unshuffle.models.registry import backbone_features
from unshuffle.models.weights import save_backbone
from unshuffle.options import differences, merge, write_config
from unshuffle.permutations import save_permutations
from unshuffle.report.page import write_report
from unshuffle.report.pictures import draw_pictures
from unshuffle.report.results import error_table, retrieval_table
from unshuffle.report.snapshot import Snapshot, hold_out
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.folders import find_runs
from unshuffle.runs.run import Run
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.distributed import is_main, together
from unshuffle.training.log import NoLog, RunLog
from unshuffle.training.trainer import Trainer

CHANGEABLE_ON_RESUME = (
    "device",
    "log.",
    "data.workers",
    "data.cache",
    "data.shard_cache_gb",
    "data.gpu_share",
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
    """Learn features from a folder or shards of images, of videos, or both; with neither, from the synthetic world.

    Options are the fields of `unshuffle.config.Config`; sections are given as dicts, such as
    `optim={"iterations": 1000}`. The run folder that comes back holds the backbone, the metrics and pictures.
    """
    given = {"images": images, "videos": videos, "out": out}
    paths = {name: str(path) for name, path in given.items() if path is not None}
    if resume and out is None:
        raise UserError("resume needs the run folder: give out")
    resume = resume and Run(Path(str(out)).expanduser()).config_file.is_file()  # else the run starts here
    base = Run(Path(str(out)).expanduser()).config if resume else preset_config(preset)
    return run_pretraining(merge(base, {**paths, **options}), resume=resume)


def run_pretraining(config: Config, resume: bool = False, console: Console | None = None) -> Run:
    """Train from a config, or go on with the run that lies in its folder; under torchrun, as one process of many."""
    with distributed.started(), ExitStack() as holding:
        console = (console or ResilientConsole()) if is_main() else ResilientConsole(quiet=True)
        return _run_pretraining(config, resume, console, holding)


def _run_pretraining(config: Config, resume: bool, console: Console, holding: ExitStack) -> Run:
    if config.out is not None:
        config = replace(config, out=config.out.expanduser())
    with together():
        check(config)
        distributed.check_shares(config.optim.batch_size, config.data.val_size)
        if is_main():
            _check_out(config, resume)
            if resume and config.out is not None:
                holding.enter_context(_alone(Run(config.out)))
    if resume and distributed.broadcast(_is_finished(config)):
        return _say_finished(config, console)
    with together():
        if resume and config.out is not None and list_checkpoints(Run(config.out).checkpoints):
            config = replace(config, init=None)  # the checkpoint has what became of those weights
        _try_parts(config)
    data = _prepare(config)
    for sentence in data.found + data.remarks:
        say(console, sentence)
    with together():
        distributed.check_shares(config.optim.batch_size, min(len(samples) for samples in data.validation.values()))
        tasks = list(data.training)
        permutations = _permutations(config, tasks, resume)
        trainer = build_trainer(config, data, permutations, build_monitor(config) if is_main() else None)
        folder = config.out or (_next_folder(config.preset) if is_main() else Path())
    run = Run(distributed.broadcast(folder))
    if resume:
        _restore(trainer, run, console)
    describe(trainer, run, console)
    with together():
        if is_main() and not resume:
            _start_folder(run, replace(config, out=run.folder), permutations)
            holding.enter_context(_alone(run))
        log = _open_log(trainer, run, data) if is_main() else NoLog()
    with log:
        trainer.train(run, log, Display(trainer.statuses(), config.optim.iterations, trainer.iteration, console))
    with together():
        if is_main():
            _finish(trainer, run, console)
    return run


def _prepare(config: Config) -> Data:
    """Open the data: first one process of each machine, which may have to pack it, then the others."""
    data = Data({}, {})
    for first in (True, False):
        with together():
            if first == (local_rank() == 0):
                data = prepare(config, progress=is_main())
    return data


def _permutations(config: Config, tasks: list[str], resume: bool) -> PermutationSets:
    if not resume:
        return permutation_sets(config, tasks)
    assert config.out is not None, "a run to go on with has a folder"
    return stored_permutation_sets(Run(config.out), tasks)


def _check_out(config: Config, resume: bool) -> None:
    """Refuse a folder that holds something else, or a run that does not fit."""
    if config.out is None:
        check_folder(Path("runs"), "--out")
        return
    run = Run(config.out)
    if not resume:
        if run.config_file.exists():
            raise UserError(f"{run.folder} already holds a run: --resume goes on with it, another --out starts afresh")
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
    """Whether nothing is left to do; a run may also have been broken off between its last iteration and its report."""
    assert config.out is not None, "a run to go on with has a folder"
    run = Run(config.out)
    trained = any(int(path.stem) >= config.optim.iterations for path in list_checkpoints(run.checkpoints))
    return trained and run.weights.exists() and (run.report.exists() or not config.log.pictures)


def _say_finished(config: Config, console: Console) -> Run:
    assert config.out is not None, "a run to go on with has a folder"
    console.print(
        f"{config.out} is finished, with all its {config.optim.iterations} iterations: to train its weights on, start "
        f"another run with --init {shlex.quote(str(config.out))}",
        highlight=False,
        soft_wrap=True,
    )
    return Run(config.out)


def _alone(run: Run) -> AbstractContextManager[None]:
    """Two processes that write one run would spoil it; reading it is free to all."""
    return locked(run.config_file, f"{run.folder} is being trained by another process: wait for its end, or stop it")


def _next_folder(preset: str) -> Path:
    """The next free runs/PRESET-N, made at once so that a run that starts at the same time takes another."""
    number = 1
    while True:
        folder = Path("runs", f"{preset}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def _try_parts(config: Config) -> None:
    """What is misspelt or cannot fit should be found before the data is read."""
    choose_device(config.device)
    try_backbone(config)


def try_backbone(config: Config) -> None:
    """Build the backbone, fill it with the weights it is to start from and show it a crop; an error if that fails."""
    backbone_features(initial_backbone(config), config.shuffle.crop_size, "shuffle.crop_size")


def _start_folder(run: Run, config: Config, permutations: PermutationSets) -> None:
    try:
        run.permutations.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"another run has begun in {run.folder}: choose another --out") from None
    for task, rows in permutations.items():
        save_permutations(run.permutations / f"{task}.npy", rows)
    write_config(config, run.config_file)


def _list_skipped(run: Run, data: Data) -> None:
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
    """Say what is about to be trained."""
    config = trainer.config
    sets = ", ".join(f"{task} |Ψ| = {len(rows)}" for task, rows in trainer.permutations.items())
    weights = sum(parameter.numel() for parameter in trainer.network.backbone.parameters())
    console.print(
        f"{config.model.backbone} ({weights / 1e6:.2f} million weights) on {_where(trainer)}; {sets}; "
        f"iterations {trainer.iteration} to {config.optim.iterations}; into {run.folder}",
        highlight=False,
        soft_wrap=True,
    )
    for note in _schedule_notes(config.optim):
        say(console, note)


def _where(trainer: Trainer) -> str:
    count = trainer.share.of
    return str(trainer.device) if count == 1 else f"{trainer.device.type}, {count} processes"


def _schedule_notes(optim: OptimConfig) -> list[str]:
    """What a person who changed only the number of iterations may not have meant."""
    notes = []
    late = [milestone for milestone in optim.milestones if milestone >= optim.iterations]
    if late:
        notes.append(f"note: optim.milestones {late} lie beyond the last iteration, so the rates will not drop there")
    if optim.warmup > optim.iterations / 2:
        notes.append(f"note: optim.warmup {optim.warmup} takes more than half of the {optim.iterations} iterations")
    return notes


def _open_log(trainer: Trainer, run: Run, data: Data) -> RunLog:
    _list_skipped(run, data)
    if trainer.config.log.pictures:
        save_held_out(run.held_out, hold_out(trainer, KEPT))
    log = RunLog(run, trainer.iteration)
    if trainer.iteration == 0:
        _log_start(trainer, data, log)
    return log


def _log_start(trainer: Trainer, data: Data, log: RunLog) -> None:
    versions = {
        "unshuffle": unshuffle.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else platform.machine()
    machine = {"device": device, "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    samples = {task: len(some) for task, some in data.training.items()}
    told = {"data": data.found, "remarks": data.remarks}
    log.write("start", 0, versions=versions, processes=trainer.share.of, **machine, **told, samples=samples)
    if isinstance(trainer.monitor, RetrievalMonitor):
        for name, scores in trainer.monitor.baselines().items():
            log.write("baseline", 0, name=name, **scores)


def _finish(trainer: Trainer, run: Run, console: Console) -> None:
    config = trainer.config
    save_backbone(
        trainer.network.backbone,
        config.model.backbone,
        run.weights,
        crop_size=config.shuffle.crop_size,
        permutations={task: rows.cpu().numpy() for task, rows in trainer.permutations.items()},
    )
    pages = _draw(trainer, run, console) if config.log.pictures else []
    console.print(error_table(run))
    if trainer.monitor is not None:
        console.print("", retrieval_table(run), sep="\n")
    say(console, "\nOpen these:")
    for path in (*pages, run.weights, run.metrics_file):
        say(console, f"  {path}")


def _draw(trainer: Trainer, run: Run, console: Console) -> list[Path]:
    """The report and the pictures."""
    snapshot = Snapshot.of(trainer, hold_out(trainer, KEPT))
    pictures = draw_pictures(snapshot, trainer.monitor, run)
    try:
        kept = replace(snapshot, held_out=load_held_out(run.held_out))  # as the run's folder alone would show it
        write_report(find_runs([run.folder]), run.report, snapshots={run.folder: kept})
    except Exception as error:  # whatever it is: the training is done, and a page can be written again
        again = f"unshuffle report {shlex.quote(str(run.folder))}"
        say(console, f"no report was written ({error}); try again with: {again}")
        return pictures
    return [run.report, *pictures]
