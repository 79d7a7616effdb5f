"""Comparison of recipes: short trainings that differ in a few options, and their errors on data of other scenes.

    python benchmarks/recipes.py STUDY [--images FOLDER --videos FOLDER --val_images FOLDER --val_videos FOLDER]
                                 [--sibling_pattern PATTERN] [--init WEIGHTS] [--variants A B] [--iterations N]
                                 [--seeds 1] [--out FILE] [--device cuda]

STUDY is one of `STUDIES`; without folders it trains on the synthetic world. All trainings of a study see the same data
and the same validation samples, at most 434 of --val_images and --val_videos: the number of test clips of 31 classes of
UCF-101. Permutations are sampled uniformly. A row for each validation goes to results/recipes_STUDY.csv, or
recipes_STUDY_N.csv if --iterations is given; `left_chance` is the first iteration at which the error was below 0.98.
"""

import argparse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from comparison import ordering_preset
from table import write_table

from unshuffle.config import Config, small
from unshuffle.data.batches import Prefetcher, on_device
from unshuffle.options import merge
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import Tally, build_trainer

LEFT_CHANCE = 0.98
CONCAT = {"temporal": {"head": {"kind": "concat", "fc6": 512, "hidden": 1024}}}
SMALL_LSTM = {"temporal": {"head": {"kind": "lstm", "hidden": 128}}}
NOT_CENTRED = {"spatial": {"head": {"centre": False}}, "temporal": {"head": {"centre": False}}}
HFLIP = {"augmentation": {"hflip": 0.5}}
HFLIP_REVERSE = {**HFLIP, "temporal": {"reverse": True}}
ONE_CROP = {"temporal": {"shared_crop": True, "colour_jitter": False}}
ONE = {"permutations": {"per_sample": 1}}
EIGHT = {"permutations": {"per_sample": 8}}
VARIED = {"temporal": {"colour_jitter": True, "crop_fraction": 0.7}, "permutations": {"per_sample": 32}}
ADAMW_BACKBONE = {"optim": {"backbone": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.05}}}
SGD_BACKBONE = {"optim": {"backbone": {"kind": "sgd", "lr": 0.01, "weight_decay": 5e-4}}}
ADAMW_HEAD = {"temporal": {"optimiser": {"kind": "adamw", "lr": 5e-4, "weight_decay": 0.01}}}
SPAN_48 = {"temporal": {"frame_span": 48}}
DROPOUT = {"spatial": {"head": {"dropout": 0.5}}, "temporal": {"head": {"dropout": 0.5}}}
CENTRED = {"spatial": {"head": {"centre": True}}, "temporal": {"head": {"centre": True}}}


def optimised(**options: Any) -> dict[str, Any]:
    """Return options of the optimisers of the backbone and of both heads."""
    head = {"optimiser": options}
    return {"optim": {"backbone": options}, "spatial": head, "temporal": head}


MOMENTUM = optimised(momentum=0.9, weight_decay=5e-4)
HIGH_LR = optimised(lr=0.01)
ADAMW = optimised(kind="adamw", lr=5e-4, momentum=0.9, weight_decay=0.01)
ADAMW_LSTM = {"temporal": ADAMW["temporal"]}

PLAIN = {
    "tasks": "T",
    "temporal": {"permutations": 100, **ONE_CROP["temporal"], **ADAMW_HEAD["temporal"]},
    "permutations": {"per_sample": 8},
    "optim": {"warmup": 500, "backbone": {"lr": 0.01}},
}

Changes = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """The options that all trainings of a study share, and the changes of each variant."""

    preset: str
    shared: Changes
    variants: dict[str, list[Changes]]
    iterations: int
    every: int
    drop: float = 0.8
    """The learning rates drop after this fraction of the iterations; 1: never."""
    val_size: int = 434
    needs_init: bool = False
    """Whether the study starts from a trained backbone, --init."""


def demo_study(tasks: str, variants: dict[str, list[Changes]]) -> Study:
    """Return a study of the preset `demo`, short enough for a CPU."""
    return Study("demo", {"tasks": tasks}, variants, iterations=300, every=100, drop=0.75, val_size=100)


STUDIES = {
    # how the temporal task generalises; 100 permutations
    "temporal": Study(
        "paper",
        PLAIN,
        {
            "lstm": [],
            "concat": [CONCAT],
            "concat, mirrored": [CONCAT, HFLIP],
            "concat, mirrored and reversed": [CONCAT, HFLIP_REVERSE],
            "lstm, mirrored and reversed": [HFLIP_REVERSE],
            "and colours": [CONCAT, HFLIP_REVERSE, {"temporal": {"colour_jitter": True}}],
            "and 32 permutations a clip": [CONCAT, HFLIP_REVERSE, {"permutations": {"per_sample": 32}}],
            "and within 48 frames": [CONCAT, HFLIP_REVERSE, SPAN_48],
            "and smaller crops": [CONCAT, HFLIP_REVERSE, {"temporal": {"crop_fraction": 0.6}}],
            "and a backbone by AdamW": [CONCAT, HFLIP_REVERSE, ADAMW_BACKBONE],
            "all of these": [CONCAT, HFLIP_REVERSE, VARIED],
            "all, within 48 frames": [CONCAT, HFLIP_REVERSE, VARIED, SPAN_48],
            "all, backbone by AdamW": [CONCAT, HFLIP_REVERSE, VARIED, ADAMW_BACKBONE],
            "all, smaller head": [CONCAT, HFLIP_REVERSE, VARIED, {"temporal": {"head": {"fc6": 128, "hidden": 512}}}],
            "all, lstm": [HFLIP_REVERSE, VARIED],
        },
        iterations=1600,
        every=400,
    ),
    # what keeps the backbone of the long run from memorising its images and clips
    "overfit-spatial": Study(
        "small",
        {"tasks": "S", "spatial": {"permutations": 1000, "image_fraction": 0.85}, **SGD_BACKBONE},
        {
            "as the long run": [],
            "squares of 0.7": [{"spatial": {"image_fraction": 0.7}}],
            "dropout 0.5": [DROPOUT],
            "smaller head": [{"spatial": {"head": {"fc6": 256, "hidden": 2048}}}],
        },
        iterations=3000,
        every=500,
        needs_init=True,
    ),
    "overfit-temporal": Study(
        "small",
        {"tasks": "T", **SGD_BACKBONE},
        {
            "as the long run": [],
            "dropout 0.5": [DROPOUT],
        },
        iterations=2500,
        every=500,
        needs_init=True,
    ),
    # the effect of each component, left out or changed alone, on the synthetic world
    "demo-temporal": demo_study(
        "T",
        {
            "demo": [],
            "not centred": [NOT_CENTRED],
            "lstm": [SMALL_LSTM],
            "lstm, not centred": [SMALL_LSTM, NOT_CENTRED],
            "one crop for all frames": [{"temporal": {"shared_crop": True}}],
            "colours for each frame": [{"temporal": {"colour_jitter": True}}],
            "1 permutation a clip": [ONE],
        },
    ),
    "demo-spatial": demo_study(
        "S",
        {
            "demo": [],
            "not centred": [NOT_CENTRED],
            "dropout 0.5": [DROPOUT],
            "1 permutation an image": [ONE],
        },
    ),
    # what makes both tasks of the paper leave chance, with its 1000 permutations each
    "leave-paper": Study(
        "paper-literal",
        {"tasks": "S+T"},
        {
            "paper-literal": [],
            "momentum": [MOMENTUM],
            "momentum, centred": [MOMENTUM, CENTRED],
            "momentum, centred, 8 permutations": [MOMENTUM, CENTRED, EIGHT],
            "lr 0.01, centred": [MOMENTUM, CENTRED, HIGH_LR],
            "frames by AdamW": [MOMENTUM, CENTRED, ADAMW_LSTM],
            "frames by AdamW, not centred": [MOMENTUM, ADAMW_LSTM],
            "frames by AdamW, 8 permutations": [MOMENTUM, CENTRED, ADAMW_LSTM, EIGHT],
            "frames by AdamW, lr 0.01": [MOMENTUM, CENTRED, HIGH_LR, ADAMW_LSTM],
            "all by AdamW": [CENTRED, ADAMW],
            "all by AdamW, 8 permutations": [CENTRED, ADAMW, EIGHT],
            "all by AdamW, 8 permutations, not centred": [ADAMW, EIGHT],
        },
        iterations=3000,
        every=250,
        drop=1.0,
        val_size=100,
    ),
    # the same for the preset `small`
    "leave-small": Study(
        "small",
        {"spatial": {"permutations": 1000}, "temporal": {"permutations": 1000}},
        {
            "tiles": [{"tasks": "S"}],
            "frames": [{"tasks": "T"}],
        },
        iterations=3000,
        every=250,
        drop=1.0,
    ),
}


def main() -> None:
    """Train every variant, and write a row for each validation."""
    args = arguments()
    study = STUDIES[args.study]
    iterations = args.iterations or study.iterations
    base = ordering_preset(study.preset)
    for changes in (study.shared, given(args, study), schedule(study, iterations)):
        base = merge(base, changes)
    names = args.variants or list(study.variants)
    opened: dict[Any, Data] = {}
    rows = []
    for name in names:
        for seed in range(args.seeds):
            config = merge(base, {"seed": seed})
            for changes in study.variants[name]:
                config = merge(config, changes)
            points = list(train(config, data_of(config, opened), study))
            for task in config.task_names:
                curve = [{"variant": name, "seed": seed, **point} for point in points if point["task"] == task]
                print(name, seed, task, [(point["iteration"], point["error"]) for point in curve], flush=True)
                rows += with_departure(curve)
    length = f"_{args.iterations}" if args.iterations else ""
    write_table(f"recipes_{args.study}{length}", rows, args.device, out=args.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--images")
    parser.add_argument("--videos")
    parser.add_argument("--val_images")
    parser.add_argument("--val_videos")
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--out", type=Path, help="the table; default results/recipes_STUDY.csv")
    parser.add_argument("--init", help="weights that all backbones are initialised from")
    parser.add_argument("--variants", nargs="+", help="variants of the study to train; default all")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if STUDIES[args.study].needs_init and args.init is None:
        parser.error(f"{args.study} starts from a trained backbone: give --init")
    return args


def given(args: argparse.Namespace, study: Study) -> Changes:
    """Return the options of data and device."""
    return {
        "images": args.images,
        "videos": args.videos,
        "init": args.init,
        "device": args.device,
        "data": {
            "val_images": args.val_images,
            "val_videos": args.val_videos,
            "val_size": study.val_size,
            "sibling_pattern": args.sibling_pattern,
        },
        "policy": {"sampler": "uniform"},
    }


def schedule(study: Study, iterations: int) -> Changes:
    """Return the options of the length of the training and of its learning-rate drop."""
    milestones = [round(study.drop * iterations)] if study.drop < 1 else []
    return {"optim": {"iterations": iterations, "milestones": milestones}}


def data_of(config: Config, opened: dict[Any, Data]) -> Data:
    """Return the data of a config, opened once for all variants with the same samples."""
    # heads and their optimisers do not change the samples
    clips = replace(config.temporal, head=small().temporal.head, optimiser=small().temporal.optimiser)
    key = (config.data, config.tasks, config.spatial.image_fraction, clips, config.seed)
    if key not in opened:
        opened[key] = prepare(config)
    return opened[key]


def train(config: Config, data: Data, study: Study) -> Iterator[dict[str, Any]]:
    """Train without a run folder, and yield error and training accuracy of each task at every validation."""
    trainer = build_trainer(config, data)
    iterations = config.optim.iterations
    tally = Tally()
    with closing(on_device(Prefetcher(trainer.load, 0, iterations, config.data.workers), trainer.device)) as batches:
        for batch in batches:
            trainer.step(batch, tally)
            if trainer.iteration % study.every == 0 or trainer.iteration == iterations:
                for task in trainer.tasks:
                    yield {
                        "task": task,
                        "iteration": trainer.iteration,
                        "error": round(trainer.validate(task).error, 4),
                        "training_accuracy": round(float(tally.accuracies[task]) / int(tally.steps[task]), 4),
                    }
                tally = Tally()


def with_departure(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a training, each with the iteration at which it had left chance."""
    left = next((point["iteration"] for point in curve if point["error"] < LEFT_CHANCE), "")
    return [{**point, "left_chance": left} for point in curve]


if __name__ == "__main__":
    main()
