"""`unshuffle pretrain`: from a config to a run folder."""

import itertools
import os
import platform
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import unshuffle
from unshuffle.accelerator import choose_device, choose_precision, has_gpu, local_rank
from unshuffle.config import (
    CPU_PRESET,
    GPU_PRESETS,
    TASK_SYMBOLS,
    Config,
    OrderingConfig,
    addresses,
    check,
    data_preset,
    merge_sections,
    preset_config,
    with_absolute_paths,
    with_epochs,
    with_options,
    with_registered_sections,
)
from unshuffle.console import ResilientConsole, say
from unshuffle.data.dataset import address_exists
from unshuffle.data.held_out import load_held_out, save_held_out
from unshuffle.data.inventory import write_skipped
from unshuffle.data.squares import WHOLE
from unshuffle.errors import UserError
from unshuffle.evaluation.monitor import FeatureMonitor, RetrievalMonitor, build_monitor
from unshuffle.files import check_folder, locked, locked_folder
from unshuffle.models.weights import save_backbone
from unshuffle.options import differences, write_config
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
from unshuffle.stopping import Stopped
from unshuffle.tasks import TASKS, build_tasks
from unshuffle.tasks.base import Inputs, Network
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.distributed import is_main, together
from unshuffle.training.log import NoLog, RunLog, check_loggers
from unshuffle.training.optim import Optimisers, lr_factor
from unshuffle.training.step import Step
from unshuffle.training.trainer import Trainer, build_trainer, choose_layout, fit_crop_sizes, initial_backbone
from unshuffle.wording import counted, duration, os_error_sentence, skipped_lines, skipped_sentence

DATA = (
    "images",
    "videos",
    "data.val_images",
    "data.val_videos",
    "data.test_images",
    "data.test_videos",
    "monitor.gallery",
    "monitor.queries",
)
"""Options that name data."""
CHANGEABLE_ON_RESUME = (
    *DATA,
    "device",
    "log.",
    "optim.max_skipped_steps",
    "data.workers",
    "data.cache",
    "data.shard_cache_gb",
    "data.gpu_memory_fraction",
    "data.limits.memory_gb",
    "out",
)
"""Options, or their sections, that a resumed run may have other values of; it checks that the data is the same."""
LENGTH = ("optim.iterations", "optim.epochs", "optim.milestones")
"""Options by which a resumed run is made longer."""
STARTING = ".starting"
"""Folder in a run folder that holds the first files until they are complete."""


def pretrain(
    images: str | Path | Sequence[str | Path] | None = None,
    videos: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    *,
    preset: str | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Learn features from images, videos or both (folders, packed stores, tar shards); without data, from a synthetic
    world.

    The default preset is `demo` without data, `small` with data and a GPU, `cpu` with data and no GPU. Options are the
    fields of `unshuffle.config.Config`; sections are given as dicts, such as `optim={"warmup": 100}`. The short names
    of the command line work too: `iterations`, `epochs`, `batch_size`, `lr`, `backbone`. Returns the run: a folder with
    the backbone, the metrics and pictures.
    """
    given = {"images": images, "videos": videos, "out": out}
    paths = {
        name: str(value) if isinstance(value, str | Path) else tuple(map(str, value))
        for name, value in given.items()
        if value is not None
    }
    if resume and out is None:
        raise UserError("resume needs the run folder: give out")
    run = Run(Path(out or "").expanduser())
    if preset is None:
        has_data = images is not None or videos is not None
        preset = data_preset(has_gpu(options.get("device", "auto"))) if has_data else "demo"
    base = run.config if resume and run.config_file.is_file() else preset_config(preset)
    return run_pretraining(with_options(base, {**paths, **options}), resume=resume)


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
        config, remarks = _checked(config, resumed, locks)
    if resumed is not None and distributed.broadcast(_is_finished(resumed, config)):
        say(
            console,
            f"{out} is finished, with all its {config.optim.iterations} iterations: give more (--iterations) to "
            f"continue it, or start another run from its weights with --init {shlex.quote(str(out))}",
        )
        return resumed
    stored = config
    with together():
        if resumed is not None and list_checkpoints(resumed.checkpoints):
            config = replace(config, init=None)  # the checkpoint holds the weights
        device = choose_device(config.device)
        try_backbone(config)
        if is_main() and device.type == "cpu":
            _warn_of_cpu(config, console)
    data = _prepare(config)
    samples = {name: len(task_samples) for name, task_samples in data.training.items()}
    config, batches = fit_batches(config, samples)
    config, epochs = with_epochs(config, samples, scale=resumed is None)
    for sentence in (*remarks, *notes_on(stored), *data.sentences(), *batches, *epochs):
        say(console, sentence)
    with together():
        check(config)
        if resumed is not None:
            _check_length(config, resumed)
        _check_divisible(config, min(len(samples) for samples in data.validation.values()))
        permutations = None if resumed is None else stored_permutations(resumed)
        monitor = build_monitor(config, data, console) if is_main() else None
        trainer = build_trainer(config, data, permutations, monitor)
        folder = out or (_next_folder(config.preset) if is_main() else Path())
    run = Run(distributed.broadcast(folder))
    warnings = {} if resumed is None else _restore(trainer, run, console)
    describe(trainer, run, console)
    with together():
        stored, _ = fit_batches(replace(stored, out=run.folder, optim=config.optim), samples)
        stored = with_absolute_paths(stored)
        if is_main() and resumed is None:
            _start_folder(run, trainer, stored)
            locks.enter_context(_run_lock(run))
        log = _open_log(trainer, run) if is_main() else NoLog()
        if resumed is not None:
            _extend(trainer, resumed.config, log, console)
            if is_main() and differences(resumed.config, stored):
                write_config(stored, run.config_file)
                locks.enter_context(_run_lock(run))  # the file is another one now
        if data.skipped:
            say(console, f"{counted(len(data.skipped), 'files')} skipped, all listed in {run.skipped}")
            for line in skipped_lines(data.skipped):
                say(console, line)
        for concern, sentence in warnings.items():
            log.write("warning", trainer.iteration, concern=concern, sentence=sentence)
    with log:
        trainer.train(run, log, Display(trainer.statuses(), config.optim.iterations, trainer.iteration, console))
        with together():
            if is_main():
                try:
                    _finish(trainer, run, log, console)
                except KeyboardInterrupt:
                    again = f"unshuffle pretrain --out {shlex.quote(str(run.folder))} --resume"
                    text = (
                        f"stopped after the last iteration, before all results were written. Write them with: {again}"
                    )
                    raise Stopped(signal.SIGINT, text, trainer.iteration) from None
    return run


def _checked(config: Config, resumed: Run | None, locks: ExitStack) -> tuple[Config, list[str]]:
    """Return the config to train with and remarks on it, after all checks that need no data; lock a resumed run."""
    if resumed is not None:
        config = with_stored_length(config, resumed.config)
    check(config)
    config, remarks = fit_crop_sizes(with_registered_sections(config))
    _check_divisible(config, config.data.val_size)
    if is_main():
        check_loggers(config.log.to)
        _check_out(config, resumed)
        _check_addresses(config, resumed=resumed is not None)
        if resumed is not None:
            locks.enter_context(_run_lock(resumed))
            with suppress(OSError):  # not there, as a rule
                (resumed.folder / STARTING).rmdir()
    return config, remarks


def fit_batches(config: Config, samples: Mapping[str, int]) -> tuple[Config, list[str]]:
    """Return the config with batches of tasks that compare samples no larger than their samples, and what changed."""
    changes, sentences = {}, []
    processes = distributed.size()
    for name in config.task_names:
        most = max(processes, samples[name] // processes * processes)
        given = config.batch_size(name)
        if TASKS[name].compares_samples and given > most:
            changes[name] = {"batch_size": most}
            sentences.append(f"{name}.batch_size is {most} instead of {given}: there are no more samples to train on")
    return merge_sections(config, changes), sentences


def notes_on(config: Config) -> list[str]:
    """Return what a user may not expect: data that no task takes, and a backbone without the weights of its preset."""
    sentences = []
    media = {TASKS[name].medium for name in config.task_names}
    tasks = "+".join(symbol for symbol, name in TASK_SYMBOLS.items() if name in config.task_names)
    if config.videos is not None and config.images is not None and "videos" not in media:
        sentences.append(f"note: the videos are not used: --tasks {tasks} trains on images only; add T to use them")
    preset = preset_config(config.preset)
    if preset.init is not None and config.init is None:
        sentences.append(f"note: {config.model.backbone} starts untrained: give --init to start from weights")
    return sentences


def _warn_of_cpu(config: Config, console: Console) -> None:
    """Print how long the training would take without a GPU, if it is made for one, and what to choose instead."""
    backbone, usual = config.model.backbone, preset_config(config.preset).model.backbone
    if config.preset not in GPU_PRESETS and backbone in ("tiny", usual):
        return
    choice = f"--preset {config.preset}" if config.preset in GPU_PRESETS else f"the backbone {backbone}"
    seconds, optim = estimate_step(config), config.optim
    time_left = (
        f"each iteration takes about {duration(seconds)}"
        if optim.epochs is not None
        else f"{counted(optim.iterations, 'iterations')} take about {duration(seconds * optim.iterations)}"
    )
    advice = f"--preset {CPU_PRESET}" if config.preset in GPU_PRESETS else f"--backbone {usual}"
    say(console, f"warning: {choice} is made for a GPU; on this CPU {time_left}. Use {advice} instead")


def estimate_step(config: Config) -> float:
    """Return about how many seconds a training step takes on the CPU, by two steps with few random samples."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    sections = {name: config.section(name) for name in config.task_names}
    permutations = {
        name: rng.permuted(np.tile(np.arange(section.parts), (section.permutations, 1)), axis=1)
        for name, section in sections.items()
        if isinstance(section, OrderingConfig)
    }
    tasks = build_tasks(config, sections, permutations=permutations)
    network = Network(initial_backbone(config), tasks)
    weights = {name: section.loss_weight for name, section in sections.items()}
    device = torch.device("cpu")
    precision = choose_precision(config.optim.precision, device)
    choose_layout(network, precision, device)
    step = Step(network, weights, Optimisers(network, config), precision)

    def seconds(name: str, samples: int) -> float:
        task = tasks[name]
        crops = torch.rand(samples, task.parts, 3, task.settings.crop_size, task.settings.crop_size)
        inputs = {name: Inputs(crops, task.targets(samples, generator, WHOLE))}
        begin = time.perf_counter()
        step(inputs, 0)
        return time.perf_counter() - begin

    total = 0.0
    for name in tasks:
        seconds(name, 2)  # the first step also allocates
        few, more = seconds(name, 2), seconds(name, 6)
        each = (more - few) / 4 if more > few else more / 6
        total += few + each * max(0, config.batch_size(name) // distributed.size() - 2)
    return total


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
        changed = [name for name in changed_options(resumed.config, config) if name not in LENGTH]
        if changed:
            raise UserError(
                f"a resumed run keeps its config, but {', '.join(_as_given(changed))} would change: for other options, "
                f"start another run from its weights with --init {shlex.quote(str(resumed.folder))}"
            )
        _check_length(config, resumed)
        return
    if config.out is not None and Run(config.out).config_file.exists():
        raise UserError(f"{config.out} already holds a run: continue it with --resume, or choose another --out")
    if config.out is not None and config.out.is_dir() and not _can_start(config.out):
        raise UserError(f"{config.out} is not empty: choose another --out")
    check_folder(config.out or Path("runs"), "--out")


def _check_addresses(config: Config, *, resumed: bool) -> None:
    """Raise a UserError if data that is given does not exist, before any of it is packed."""
    for option in DATA:
        for address in addresses(attrgetter(option)(config)):
            if not address_exists(address):
                again = f"if the run's data was moved, give --{option} again"
                raise UserError(f"{address} does not exist: {again if resumed else f'check the path (--{option})'}")


def changed_options(before: Config, after: Config) -> list[str]:
    """Return the options that decide a run and in which two configs differ, wherever the data lies."""
    names = differences(with_absolute_paths(before), with_absolute_paths(with_stored_length(after, before)))
    return [name for name in names if not name.startswith(CHANGEABLE_ON_RESUME)]


def _as_given(names: Sequence[str]) -> list[str]:
    """Return the names of changed options without those that only follow from --lr and --batch-size."""
    followers = {"optim.backbone.lr": ".optimiser.lr", "optim.batch_size": ".batch_size"}
    ends = [end for leader, end in followers.items() if leader in names]
    return [name for name in names if name in followers or not any(name.endswith(end) for end in ends)]


def with_stored_length(config: Config, stored: Config) -> Config:
    """Return a config with the iterations that the same number of epochs became when a run was started."""
    if config.optim.epochs is None or config.optim.epochs != stored.optim.epochs:
        return config
    optim, known = config.optim, stored.optim
    lengths = {"iterations": known.iterations, "warmup": known.warmup, "milestones": known.milestones}
    return replace(config, optim=replace(optim, **lengths))  # type: ignore[arg-type]


def _check_length(config: Config, resumed: Run) -> None:
    """Raise a UserError if a resumed run would be shorter than it was, or not the same up to where it is."""
    before, after = resumed.config.optim, config.optim
    if after.epochs not in (None, before.epochs) and after.iterations == before.iterations:
        return  # not known before the data
    if after.iterations < before.iterations:
        raise UserError(
            f"{resumed.folder} has {before.iterations} iterations and cannot become shorter: give more than that "
            f"instead of {after.iterations}, or leave it out"
        )
    if after.iterations > before.iterations and len(config.stages) > 1:
        raise UserError(
            f"tasks {config.tasks} divides the iterations among its stages, so a run of it cannot become longer: start "
            f"another one with --init {shlex.quote(str(resumed.folder))}"
        )
    reached = max(checkpoint_iterations(resumed.checkpoints), default=0)
    past = [{milestone for milestone in optim.milestones if milestone < reached} for optim in (before, after)]
    if past[0] != past[1]:
        raise UserError(
            f"{resumed.folder} is at iteration {reached}, and optim.milestones before that cannot change; they are "
            f"{', '.join(map(str, sorted(past[0]))) or 'none'}"
        )


def _extend(trainer: Trainer, before: Config, log: RunLog, console: Console) -> None:
    """State what more iterations, or other milestones, do to the learning rates of a resumed run from here on."""
    optim, iteration = trainer.config.optim, trainer.iteration
    if (optim.iterations, optim.milestones) == (before.optim.iterations, before.optim.milestones):
        return
    trainer.owes_rollouts = iteration == before.optim.iterations < optim.iterations
    log.write("extended", iteration, before=before.optim.iterations, iterations=optim.iterations)
    old, new = (100 * lr_factor(version, iteration) for version in (before, trainer.config))
    percent = f"{new:.3g} % of their peak values"
    if optim.schedule == "cosine":
        before_that = "" if f"{old:.3g}" == f"{new:.3g}" else f" instead of {old:.3g} %"
        schedule = f"the cosine now ends there, so the learning rates continue at {percent}{before_that}"
    else:
        milestones = ", ".join(map(str, optim.milestones)) or "none"
        schedule = (
            f"warm-up and milestones ({milestones}) stay at their iterations, so the learning rates continue at "
            f"{percent}; --optim.milestones sets further drops"
        )
    say(console, f"{optim.iterations} iterations instead of {before.optim.iterations}: {schedule}")


def _can_start(folder: Path) -> bool:
    """Return whether a folder is empty, or holds only what a run left that was refused or killed as it began."""
    names = {path.name for path in folder.iterdir()} - {Run(folder).skipped.name}
    return not names or (STARTING in names and names <= {STARTING, Run(folder).permutations.name})


def _is_finished(run: Run, config: Config) -> bool:
    """Return whether nothing is left to do; a run may also have been interrupted before its report was written."""
    if config.optim.epochs not in (None, run.config.optim.epochs):
        return False
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


def _start_folder(run: Run, trainer: Trainer, config: Config) -> None:
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
        write_config(config, started.config_file)
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
        "precision": _other_precision(trainer, run),
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


def _other_precision(trainer: Trainer, run: Run) -> str | None:
    """Return a sentence if `optim.precision auto` means something else here than where the run began."""
    before = next((entry.get("precision") for entry in run.metrics("start")), None)
    if before in (None, trainer.precision):
        return None
    return (
        f"the run began in {before} and continues in {trainer.precision}, which optim.precision auto means here, "
        "so its results will differ from those of an uninterrupted run"
    )


def describe(trainer: Trainer, run: Run, console: Console) -> None:
    """Print what is about to be trained."""
    config = trainer.config
    sets = {name: f" (|Ψ| = {len(rows)})" for name, rows in trainer.permutations.items()}
    tasks = ", ".join(f"{name}{sets.get(name, '')}" for name in trainer.tasks)
    weights = sum(parameter.numel() for parameter in trainer.network.backbone.parameters())
    processes = trainer.part.world_size
    device = str(trainer.device) if processes == 1 else f"{trainer.device.type}, {processes} processes"
    start = "" if config.init is None else f", starting from {config.init}"
    say(
        console,
        f"preset {config.preset}: {config.model.backbone} ({weights / 1e6:.2f} million weights{start}) on {device}; "
        f"{tasks}; iterations {trainer.iteration} to {config.optim.iterations}; into {run.folder}",
    )
    # what may be unintended when only the number of iterations was changed
    optim = config.optim
    late = [milestone for milestone in optim.milestones if milestone >= optim.iterations]
    if optim.milestones and optim.schedule == "cosine":
        say(console, "note: optim.milestones have no effect with optim.schedule cosine")
    if late and optim.schedule == "steps":
        say(console, f"note: optim.milestones {late} lie beyond the last iteration and have no effect")
    if optim.warmup > optim.iterations / 2:
        say(
            console,
            f"note: the learning rate rises during the first {counted(optim.warmup, 'iterations')}, of "
            f"{optim.iterations} in all: give more iterations, or a smaller --optim.warmup",
        )


def _open_log(trainer: Trainer, run: Run) -> RunLog:
    write_skipped(run.skipped, trainer.data.skipped)
    if trainer.config.log.pictures:
        save_held_out(run.held_out, hold_out(trainer))
    log = RunLog(run, trainer.iteration, trainer.config)
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
        precision=trainer.precision,
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


def _finish(trainer: Trainer, run: Run, log: RunLog, console: Console) -> None:
    config = trainer.config
    save_backbone(
        trainer.network.backbone,
        run.weights,
        crop_sizes={name: task.settings.crop_size for name, task in trainer.tasks.items()},
        permutations={name: rows.cpu().numpy() for name, rows in trainer.permutations.items()},
        iterations=trainer.iteration,
    )
    pages = _draw(trainer, run, log, console) if config.log.pictures else []
    console.print(error_table(run))
    if _retrieval(trainer) is not None:
        console.print("", retrieval_table(run), sep="\n")
    if (verdict := judge_features(run)) is not None:
        console.print("", own_data_table(run), "", sep="\n")
        for sentence in verdict.sentences:
            say(console, sentence)
    else:
        say(console, "\nThere are too few held-out samples to tell whether the features got better: give more data.")
    if trainer.skipped_steps.total:
        say(console, skipped_sentence(trainer.skipped_steps.total, trainer.iteration))
    say(console, "\nResults:")
    for path in (*pages, run.weights, run.metrics_file):
        say(console, f"  {path}")


def _draw(trainer: Trainer, run: Run, log: RunLog, console: Console) -> list[Path]:
    """Write the report and the pictures, and return the files."""
    snapshot = Snapshot.of(trainer, hold_out(trainer))
    pictures = draw_pictures(snapshot, _retrieval(trainer), run)
    log.write_pictures(trainer.iteration, pictures)
    try:
        stored = replace(snapshot, held_out=load_held_out(run.held_out))  # as `unshuffle report` will show it
        write_report(find_runs([run.folder]), run.report, snapshots={run.folder: stored})
    except Exception as error:  # the training is done, and the page can be written again
        again = f"unshuffle report {shlex.quote(str(run.folder))}"
        problem = os_error_sentence(error) if isinstance(error, OSError) else error
        say(console, f"no report was written ({problem}); try again with: {again}")
        return pictures
    return [run.report, *pictures]
