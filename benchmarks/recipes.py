"""Comparison of recipes: short trainings that differ in a few options, and their errors on data of other scenes.

    python benchmarks/recipes.py STUDY [--images FOLDER --videos FOLDER --val_images FOLDER --val_videos FOLDER]
                                 [--init WEIGHTS] [--variants A B] [--iterations N] [--seeds 1] [--device cuda]

STUDY is one of `STUDIES`; without folders it trains on the synthetic world. All trainings of a study see the same data
and the same validation samples, at most 434 of --val_images and --val_videos: the number of test clips of 31 classes of
UCF-101. Permutations are sampled uniformly. A row for each validation goes to results/recipes_STUDY.csv, or
recipes_STUDY_N.csv if --iterations is given; `left_chance` is the first iteration at which the error was below 0.98.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from table import write_table
from torch import nn

from unshuffle.config import Config, preset_config
from unshuffle.data.batches import Prefetcher, on_device
from unshuffle.options import merge
from unshuffle.policy.sampler import Proposal
from unshuffle.policy.uniform import Uniform
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import Tally, Trainer, build_trainer

LEFT_CHANCE = 0.98
CONCAT = {"temporal": {"head": {"kind": "concat", "fc6": 512, "hidden": 1024}}}
SMALL_LSTM = {"temporal": {"head": {"kind": "lstm", "hidden": 128}}}
NOT_CENTRED = {"spatial": {"head": {"centre": False}}, "temporal": {"head": {"centre": False}}}
HFLIP = {"augmentation": {"hflip": 0.5}}
HFLIP_REVERSE = {**HFLIP, "temporal": {"reverse": True}}
ONE_CROP = {"temporal": {"shared_crop": True, "colour_jitter": False}}
ONE = {"permutations": {"per_sample": 1}}
SIXTEEN = {"permutations": {"per_sample": 16}}
VARIED = {"temporal": {"colour_jitter": True, "crop_fraction": 0.7}, "permutations": {"per_sample": 32}}
ADAMW_BACKBONE = {"optim": {"backbone": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.05}}}
SGD_BACKBONE = {"optim": {"backbone": {"kind": "sgd", "lr": 0.01, "weight_decay": 5e-4}}}
ADAMW_HEAD = {"temporal": {"optimiser": {"kind": "adamw", "lr": 5e-4, "weight_decay": 0.01}}}
SPAN_48 = {"temporal": {"frame_span": 48}}
DROPOUT = {"spatial": {"head": {"dropout": 0.5}}, "temporal": {"head": {"dropout": 0.5}}}
HIGH_LR = {"optim": {"backbone": {"lr": 0.01}}, "spatial": {"optimiser": {"lr": 0.01}}}

PLAIN = {
    "tasks": "T",
    "temporal": {"permutations": 100, **ONE_CROP["temporal"], **ADAMW_HEAD["temporal"]},
    "permutations": {"per_sample": 8},
    "optim": {"warmup": 500, "backbone": {"lr": 0.01}},
}

Changes = dict[str, Any]
Preparation = Callable[[Trainer], None]
"""A change of a new trainer that no option makes."""


def normal_weights(trainer: Trainer) -> None:
    """Initialise weights from a normal distribution with std 0.01 and biases with zero, except those of an LSTM."""
    _initialise(trainer, lambda weight: nn.init.normal_(weight, std=0.01))


def he_weights(trainer: Trainer) -> None:
    """Initialise weights as He et al., which keeps the variance through ReLUs; torch's default has a sixth of it."""
    _initialise(trainer, lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"))


def _initialise(trainer: Trainer, fill: Callable[[torch.Tensor], Any]) -> None:
    """Initialise all layers, also those with weights from --init."""
    for layer in trainer.network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fill(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


class FewFirst(Uniform):
    """A curriculum: for 500 batches uniform sampling from the first 100 permutations of the set, later from all."""

    def __init__(self, num_permutations: int) -> None:
        super().__init__(num_permutations)
        self.few, self.batches_left = Uniform(100), 500

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return uniform samples of the permutations that are in use by now."""
        self.batches_left -= 1
        if self.batches_left >= 0:
            return self.few.propose(samples, per_sample, generator)
        return super().propose(samples, per_sample, generator)


def curriculum(trainer: Trainer) -> None:
    """Let every ordering task start with few permutations."""
    for task in trainer.ordering_tasks.values():
        task.sampler = FewFirst(len(task.permutations))


def momentum(value: float) -> Changes:
    """Return options with the same momentum for backbone and heads."""
    head = {"optimiser": {"momentum": value}}
    return {"optim": {"backbone": {"momentum": value}}, "spatial": head, "temporal": head}


@dataclass(frozen=True)
class Study:
    """The options that all trainings of a study share, and the changes of each variant."""

    preset: str
    shared: Changes
    variants: dict[str, list[Changes | Preparation]]
    iterations: int
    every: int
    drop: float = 0.8
    """The learning rates drop after this fraction of the iterations; 1: never."""
    val_size: int = 434
    needs_init: bool = False
    """Whether the study starts from a trained backbone, --init."""


def demo_study(tasks: str, variants: dict[str, list[Changes | Preparation]]) -> Study:
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
    "by-heart-spatial": Study(
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
    "by-heart-temporal": Study(
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
    # how soon the spatial task with 1000 permutations leaves chance
    "leave-spatial": Study(
        "paper",
        {"tasks": "S"},
        {
            "paper": [],
            "paper, dropout 0.5": [DROPOUT],
            "paper, not centred": [NOT_CENTRED],
            "paper, 16 permutations an image": [SIXTEEN],
            "paper, 16 permutations, momentum 0.98": [SIXTEEN, momentum(0.98)],
            "paper, rate 0.01": [HIGH_LR],
            "paper, rate 0.01, warm-up": [HIGH_LR, {"optim": {"warmup": 500}}],
            "paper, normal first weights": [normal_weights],
            "paper, He's first weights": [he_weights],
            "paper, 100 permutations first": [curriculum],
        },
        iterations=2000,
        every=250,
        drop=1.0,
    ),
    # how soon the temporal task with 1000 permutations leaves chance
    "leave-temporal": Study(
        "paper",
        {"tasks": "T"},
        {
            "paper": [],
            "paper, 16 permutations a clip": [SIXTEEN],
            "paper, 16 permutations, momentum 0.98": [SIXTEEN, momentum(0.98)],
            "paper, 16 permutations, momentum 0.99": [SIXTEEN, momentum(0.99)],
            "paper, one crop, 16 permutations": [ONE_CROP, SIXTEEN],
            "the same, momentum 0.98": [ONE_CROP, SIXTEEN, momentum(0.98)],
            "the same, head by AdamW": [ONE_CROP, SIXTEEN, ADAMW_HEAD],
            "the same, rate 0.01": [ONE_CROP, SIXTEEN, ADAMW_HEAD, {"optim": {"backbone": {"lr": 0.01}}}],
        },
        iterations=3000,
        every=500,
        drop=1.0,
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
    base = preset_config(study.preset)
    for changes in (study.shared, given(args, study), schedule(study, iterations)):
        base = merge(base, changes)
    names = args.variants or list(study.variants)
    opened: dict[Any, Data] = {}
    rows = []
    for name in names:
        for seed in range(args.seeds):
            config, preparations = varied(merge(base, {"seed": seed}), study.variants[name])
            points = train(config, data_of(config, opened), study, preparations)
            curve = [{"variant": name, "seed": seed, **point} for point in points]
            print(name, seed, [(point["iteration"], point["error"]) for point in curve], flush=True)
            rows += with_departure(curve)
    length = f"_{args.iterations}" if args.iterations else ""
    write_table(f"recipes_{args.study}{length}", rows, args.device)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--images")
    parser.add_argument("--videos")
    parser.add_argument("--val_images")
    parser.add_argument("--val_videos")
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
        "data": {"val_images": args.val_images, "val_videos": args.val_videos, "val_size": study.val_size},
        "policy": {"sampler": "uniform"},
    }


def schedule(study: Study, iterations: int) -> Changes:
    """Return the options of the length of the training and of its learning-rate drop."""
    milestones = [round(study.drop * iterations)] if study.drop < 1 else []
    return {"optim": {"iterations": iterations, "milestones": milestones}}


def varied(config: Config, variant: Sequence[Changes | Preparation]) -> tuple[Config, list[Preparation]]:
    """Return the config with a variant's options, and the changes to make to its trainer."""
    preparations = []
    for change in variant:
        if isinstance(change, dict):
            config = merge(config, change)
        else:
            preparations.append(change)
    return config, preparations


def data_of(config: Config, opened: dict[Any, Data]) -> Data:
    """Return the data of a config, opened once for all variants with the same samples."""
    clips = (config.temporal.reverse, config.temporal.frame_span)
    key = (config.data, config.tasks, config.spatial.image_fraction, clips, config.seed)
    if key not in opened:
        opened[key] = prepare(config)
    return opened[key]


def train(config: Config, data: Data, study: Study, preparations: Sequence[Preparation]) -> Iterator[dict[str, Any]]:
    """Train without a run folder, and yield error and training accuracy at every validation."""
    trainer = build_trainer(config, data)
    for prepare_trainer in preparations:
        prepare_trainer(trainer)
    iterations = config.optim.iterations
    (task,) = trainer.tasks
    tally = Tally()
    with closing(on_device(Prefetcher(trainer.load, 0, iterations, config.data.workers), trainer.device)) as batches:
        for batch in batches:
            trainer.step(batch, tally)
            if trainer.iteration % study.every == 0 or trainer.iteration == iterations:
                accuracy = float(tally.accuracies[task]) / tally.steps[task]
                error = trainer.validate(task).error
                yield {
                    "iteration": trainer.iteration,
                    "error": round(error, 4),
                    "training_accuracy": round(accuracy, 4),
                }
                tally = Tally()


def with_departure(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a training, each with the iteration at which it had left chance."""
    left = next((point["iteration"] for point in curve if point["error"] < LEFT_CHANCE), "")
    return [{**point, "left_chance": left} for point in curve]


if __name__ == "__main__":
    main()
