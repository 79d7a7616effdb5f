"""The main job, from a config to a run folder: the one place where data, network, samplers and monitor meet."""

import csv
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

import unshuffle
from unshuffle.config import PRESETS, Config, Preset, check, with_out
from unshuffle.config_file import differences, merge, write_config
from unshuffle.data.prepare import Data, prepare
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation.labelled import from_folder, from_synthetic
from unshuffle.evaluation.retrieval import RetrievalMonitor
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.ordering import OrderingNetwork, trunk_features
from unshuffle.models.weights import load_into, save_backbone
from unshuffle.permutations import load_permutations, permutation_set, save_permutations
from unshuffle.policy.samplers import build_sampler
from unshuffle.randomness import seed_everything, stream_seed
from unshuffle.report.pictures import draw_pictures
from unshuffle.run import Run
from unshuffle.training.checkpoint import list_checkpoints, load_checkpoint
from unshuffle.training.console import Display
from unshuffle.training.log import RunLog
from unshuffle.training.trainer import Trainer

CHANGEABLE_ON_RESUME = ("device", "log.", "data.workers", "data.cache", "out", "images", "videos")


def pretrain(
    images: str | Path | None = None,
    videos: str | Path | None = None,
    out: str | Path | None = None,
    *,
    preset: Preset = "demo",
    resume: bool = False,
    **options: Any,
) -> Run:
    """Learn features from a folder of images, of videos, or both; with neither, from the synthetic world.

    Options are the fields of `unshuffle.config.Config`; sections are given as dicts, such as
    `optim={"iterations": 1000}`. The run folder that comes back holds the backbone, the metrics and pictures.
    """
    given = {"images": images, "videos": videos, "out": out}
    paths = {name: str(path) for name, path in given.items() if path is not None}
    base = PRESETS[preset]()
    if resume:
        if out is None:
            raise UserError("resume needs the run folder: give out")
        base = Run.open(Path(out)).config
    return run_pretraining(merge(base, {**paths, **options}), resume=resume)


def run_pretraining(config: Config, resume: bool = False, console: Console | None = None) -> Run:
    """Train from a config, or go on with the run that lies in its folder."""
    check(config)
    config = with_out(config)
    assert config.out is not None
    run = Run(config.out)
    console = console or Console()
    _claim(run, config, resume)
    choose_device(config.device)
    build_trunk(config)  # what is misspelt should be found before the data is read
    data = prepare(config)
    for sentence in data.found:
        console.print(sentence, highlight=False)
    _start_folder(run, config, data)
    trainer = build_trainer(config, data, run)
    if resume:
        _restore(trainer, run, console)
    describe(trainer, console)
    with RunLog(run, trainer.iteration) as log:
        if trainer.iteration == 0:
            _log_start(trainer, log)
        trainer.train(run, log, Display(trainer.statuses(), config.optim.iterations, trainer.iteration, console))
    _finish(trainer, run, console)
    return run


def build_trainer(config: Config, data: Data, run: Run | None = None) -> Trainer:
    """Network, permutation sets, samplers and monitor for a config and its data."""
    device = choose_device(config.device)
    seed_everything(config.seed)
    permutations = _permutation_sets(config, list(data.training), run)
    trunk = build_trunk(config)
    features = trunk_features(trunk, config.shuffle.crop_size)
    heads = {
        task: build_head(features, rows.shape[1], len(rows), getattr(config.model, task))
        for task, rows in permutations.items()
    }
    return Trainer(
        config,
        data,
        OrderingNetwork(trunk, heads),
        {task: torch.from_numpy(rows) for task, rows in permutations.items()},
        {task: build_sampler(config.policy, len(rows)) for task, rows in permutations.items()},
        device,
        build_monitor(config, trunk.eval_size, device),
    )


def build_trunk(config: Config) -> Backbone:
    """A new trunk, with the given weights if there are some."""
    trunk = build_backbone(config.model.backbone)
    if config.init is not None:
        load_into(trunk, config.model.backbone, config.init.expanduser())
    return trunk


def choose_device(name: str) -> torch.device:
    """The device that the config names; auto is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def build_monitor(config: Config, side: int, device: torch.device) -> RetrievalMonitor | None:
    """Retrieval on the given labelled folders, on the synthetic world when that is trained on, or none."""
    folders = config.monitor
    if folders.gallery is not None and folders.queries is not None:
        gallery = from_folder(folders.gallery, side, folders.limit)
        return RetrievalMonitor(gallery, from_folder(folders.queries, side, folders.limit, gallery.classes), device)
    if config.images is not None or config.videos is not None:
        return None
    gallery, queries = (
        from_synthetic(synthetic_images(count, config.synthetic.image_size, _monitor_seed(config, name)))
        for name, count in (("gallery", config.synthetic.gallery), ("queries", config.synthetic.queries))
    )
    return RetrievalMonitor(gallery, queries, device)


def _monitor_seed(config: Config, name: str) -> int:
    return int(stream_seed(config.seed, "monitor", name).generate_state(1)[0])


def _permutation_sets(config: Config, tasks: list[str], run: Run | None) -> dict[str, npt.NDArray[np.int64]]:
    """Ψ of each task: read from the run folder when it is there, so that a resumed run cannot get another."""
    sets = {}
    parts = {"spatial": config.shuffle.tiles, "temporal": config.shuffle.frames}
    for task in tasks:
        path = run.permutations / f"{task}.npy" if run else None
        if path and path.exists():
            sets[task] = load_permutations(path)
            continue
        sets[task] = permutation_set(
            parts[task],
            getattr(config.permutations, task),
            criterion=config.permutations.criterion,
            include_identity=config.permutations.include_identity,
            seed=config.seed,
        )
        if path:
            path.parent.mkdir(exist_ok=True)
            save_permutations(path, sets[task])
    return sets


def _claim(run: Run, config: Config, resume: bool) -> None:
    """Refuse a folder that holds something else, or a run that does not fit."""
    if not resume:
        if run.config_file.exists():
            raise UserError(f"{run.folder} already holds a run: --resume goes on with it, another --out starts afresh")
        if run.folder.is_dir() and any(run.folder.iterdir()):
            raise UserError(f"{run.folder} is not empty: choose another --out")
        if run.folder.exists() and not run.folder.is_dir():
            raise UserError(f"{run.folder} is a file: choose another --out")
        return
    changed = [
        name for name in differences(Run.open(run.folder).config, config) if not name.startswith(CHANGEABLE_ON_RESUME)
    ]
    if changed:
        raise UserError(f"a resumed run keeps its config, but {', '.join(changed)} would change")


def _start_folder(run: Run, config: Config, data: Data) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    write_config(replace(config, out=run.folder), run.config_file)
    with (run.folder / "skipped.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "reason"))
        writer.writerows(data.skipped)


def _restore(trainer: Trainer, run: Run, console: Console) -> None:
    checkpoints = list_checkpoints(run.checkpoints)
    if not checkpoints:
        console.print("no checkpoint yet: starting from the beginning", highlight=False)
        return
    trainer.load_state_dict(load_checkpoint(checkpoints[-1]))


def describe(trainer: Trainer, console: Console) -> None:
    """Say what is about to be trained."""
    config = trainer.config
    sets = ", ".join(f"{task} |Ψ| = {len(rows)}" for task, rows in trainer.permutations.items())
    weights = sum(parameter.numel() for parameter in trainer.network.trunk.parameters())
    console.print(
        f"{config.model.backbone} ({weights / 1e6:.2f} million weights) on {trainer.device}; {sets}; "
        f"iterations {trainer.iteration} to {config.optim.iterations}; into {config.out}",
        highlight=False,
        soft_wrap=True,
    )


def _log_start(trainer: Trainer, log: RunLog) -> None:
    versions = {
        "unshuffle": unshuffle.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else platform.machine()
    log.write("start", 0, versions=versions, device=device, cpus=os.cpu_count(), threads=torch.get_num_threads())
    if isinstance(trainer.monitor, RetrievalMonitor):
        for name, scores in trainer.monitor.baselines().items():
            log.write("baseline", 0, name=name, **scores)


def _finish(trainer: Trainer, run: Run, console: Console) -> None:
    config = trainer.config
    save_backbone(
        trainer.network.trunk,
        config.model.backbone,
        run.weights,
        crop_size=config.shuffle.crop_size,
        permutations={task: rows.cpu().numpy() for task, rows in trainer.permutations.items()},
    )
    pictures = draw_pictures(trainer, run) if config.log.pictures else []
    console.print(_errors(run))
    if trainer.monitor is not None:
        console.print("", _retrieval(run), sep="\n")
    console.print("\nOpen these:", highlight=False)
    for path in (*pictures, run.weights, run.metrics_file):
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def _errors(run: Run) -> Table:
    """Validation errors before and after, beside those of blind guessing."""
    table = _table("validation error", "untrained", "trained", "guessing")
    entries = list(run.metrics("validation"))
    for task in dict.fromkeys(entry["task"] for entry in entries):
        errors = [entry for entry in entries if entry["task"] == task]
        table.add_row(
            task, *(f"{value:.3f}" for value in (errors[0]["error"], errors[-1]["error"], errors[0]["chance"]))
        )
    return table


def _retrieval(run: Run) -> Table:
    """Retrieval of the trained network, of the same one untrained, and of features that nobody had to learn."""
    monitors = list(run.metrics("monitor"))
    rows = {"this network": monitors[-1], "untrained network": monitors[0]}
    rows |= {entry["name"]: entry for entry in run.metrics("baseline")}
    columns = [key for key in monitors[0] if key.startswith("top")]
    table = _table("retrieval [%]", *(key.replace("top", "top ") for key in columns))
    for name, scores in rows.items():
        table.add_row(name, *(f"{scores[key]:.1f}" for key in columns))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
