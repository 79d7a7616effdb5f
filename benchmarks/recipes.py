"""Which recipe learns: short trainings that differ in a few options, and their errors on data of other scenes.

    python benchmarks/recipes.py STUDY [--images FOLDER --videos FOLDER --val_images FOLDER --val_videos FOLDER]
                                 [--init WEIGHTS] [--variants A B] [--iterations N] [--seeds 1] [--device cuda]

STUDY is one of `STUDIES`; without folders it is the synthetic world that is learned. All trainings of a study see the
same data and the same validation samples, at most 434 of --val_images and --val_videos: as many as UCF-101 has test
clips in 31 classes. Permutations are drawn uniformly. A line for each validation goes to results/recipes_STUDY.csv, or
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
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import Data, prepare

from unshuffle.config import Config, preset_config
from unshuffle.data.batches import Prefetcher, ahead
from unshuffle.options import merge
from unshuffle.policy.sampler import Proposal
from unshuffle.policy.uniform import Uniform
from unshuffle.training.trainer import Tally, Trainer

LEFT = 0.98
CONCAT = {"model": {"temporal": {"kind": "concat", "fc6": 512, "hidden": 1024}}}
SMALL_LSTM = {"model": {"temporal": {"kind": "lstm", "hidden": 128}}}
NOT_CENTRED = {"model": {"spatial": {"centre": False}, "temporal": {"centre": False}}}
TURNED = {"shuffle": {"mirror": True, "reverse": True}}
ONE_CROP = {"shuffle": {"shared_crop": True, "frame_jitter": False}}
ONE = {"permutations": {"per_sample": 1}}
SIXTEEN = {"permutations": {"per_sample": 16}}
VARIED = {"shuffle": {"frame_jitter": True, "frame_share": 0.7}, "permutations": {"per_sample": 32}}
ADAMW_TRUNK = {"optim": {"backbone": {"optimiser": "adamw", "lr": 1e-3, "weight_decay": 0.05}}}
SGD_TRUNK = {"optim": {"backbone": {"optimiser": "sgd", "lr": 0.01, "weight_decay": 5e-4}}}
ADAMW = {"optim": {"temporal": {"optimiser": "adamw", "lr": 5e-4, "weight_decay": 0.01}}}

PLAIN = {
    "tasks": "T",
    "permutations": {"temporal": 100, "per_sample": 8},
    **ONE_CROP,
    "optim": {"warmup": 500, "backbone": {"lr": 0.01}, **ADAMW["optim"]},
}

Changes = dict[str, Any]
Preparation = Callable[[Trainer], None]
"""What no option says, done to a new trainer."""


def normal_weights(trainer: Trainer) -> None:
    """First weights are normal, of deviation 0.01, biases zero; an LSTM's stay as they are."""
    _begin_with(trainer, lambda weight: nn.init.normal_(weight, std=0.01))


def he_weights(trainer: Trainer) -> None:
    """He's first weights: they keep the variance through ReLUs; torch's own have a sixth of theirs."""
    _begin_with(trainer, lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"))


def _begin_with(trainer: Trainer, fill: Callable[[torch.Tensor], Any]) -> None:
    """New weights for all layers, also for those that --init has given some."""
    for layer in trainer.network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fill(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


class FewFirst(Uniform):
    """A curriculum: for 500 batches uniform draws from the first 100 permutations of the set, later from all."""

    def __init__(self, num_permutations: int) -> None:
        super().__init__(num_permutations)
        self.few, self.left = Uniform(100), 500

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Independent uniform draws from those that take part by now."""
        self.left -= 1
        if self.left >= 0:
            return self.few.propose(samples, per_sample, generator)
        return super().propose(samples, per_sample, generator)


def curriculum(trainer: Trainer) -> None:
    """Few permutations first."""
    trainer.samplers = {task: FewFirst(len(rows)) for task, rows in trainer.permutations.items()}


def momentum(value: float) -> Changes:
    """The same momentum for all weights."""
    return {"optim": {group: {"momentum": value} for group in ("backbone", "spatial", "temporal")}}


@dataclass(frozen=True)
class Study:
    """One question: what all trainings share, and what each changes."""

    preset: str
    shared: Changes
    variants: dict[str, list[Changes | Preparation]]
    iterations: int
    every: int
    drop: float = 0.8
    """The rates drop after this share of the iterations."""
    val_size: int = 434
    learned: bool = False
    """It asks about a backbone that has learned already: --init."""


def on_the_demo(tasks: str, variants: dict[str, list[Changes | Preparation]]) -> Study:
    """A study of the preset `demo`, short enough for a CPU."""
    return Study("demo", {"tasks": tasks}, variants, iterations=300, every=100, drop=0.75, val_size=100)


STUDIES = {
    # how the temporal task generalises; 100 permutations
    "temporal": Study(
        "paper",
        PLAIN,
        {
            "lstm": [],
            "concat": [CONCAT],
            "concat, mirrored": [CONCAT, {"shuffle": {"mirror": True}}],
            "concat, mirrored and reversed": [CONCAT, TURNED],
            "lstm, mirrored and reversed": [TURNED],
            "and colours": [CONCAT, TURNED, {"shuffle": {"frame_jitter": True}}],
            "and 32 permutations a clip": [CONCAT, TURNED, {"permutations": {"per_sample": 32}}],
            "and within 48 frames": [CONCAT, TURNED, {"data": {"frame_span": 48}}],
            "and smaller crops": [CONCAT, TURNED, {"shuffle": {"frame_share": 0.6}}],
            "and a backbone by AdamW": [CONCAT, TURNED, ADAMW_TRUNK],
            "all of these": [CONCAT, TURNED, VARIED],
            "all, within 48 frames": [CONCAT, TURNED, VARIED, {"data": {"frame_span": 48}}],
            "all, backbone by AdamW": [CONCAT, TURNED, VARIED, ADAMW_TRUNK],
            "all, smaller head": [CONCAT, TURNED, VARIED, {"model": {"temporal": {"fc6": 128, "hidden": 512}}}],
            "all, lstm": [TURNED, VARIED],
        },
        iterations=1600,
        every=400,
    ),
    # what keeps the backbone of the long run from learning its images and clips by heart
    "by-heart-spatial": Study(
        "small",
        {"tasks": "S", "permutations": {"spatial": 1000}, "shuffle": {"image_share": 0.85}, **SGD_TRUNK},
        {
            "as the long run": [],
            "squares of 0.7": [{"shuffle": {"image_share": 0.7}}],
            "dropout 0.5": [{"model": {"spatial": {"dropout": 0.5}}}],
            "smaller head": [{"model": {"spatial": {"fc6": 256, "hidden": 2048}}}],
        },
        iterations=3000,
        every=500,
        learned=True,
    ),
    "by-heart-temporal": Study(
        "small",
        {"tasks": "T", **SGD_TRUNK},
        {
            "as the long run": [],
            "dropout 0.5": [{"model": {"temporal": {"dropout": 0.5}}}],
        },
        iterations=2500,
        every=500,
        learned=True,
    ),
    # what the pieces are worth, each left out or changed alone, on the synthetic world
    "demo-temporal": on_the_demo(
        "T",
        {
            "demo": [],
            "not centred": [NOT_CENTRED],
            "lstm": [SMALL_LSTM],
            "lstm, not centred": [SMALL_LSTM, NOT_CENTRED],
            "one crop for all frames": [{"shuffle": {"shared_crop": True}}],
            "colours for each frame": [{"shuffle": {"frame_jitter": True}}],
            "1 permutation a clip": [ONE],
        },
    ),
    "demo-spatial": on_the_demo(
        "S",
        {
            "demo": [],
            "not centred": [NOT_CENTRED],
            "dropout 0.5": [{"model": {"spatial": {"dropout": 0.5}}}],
            "1 permutation an image": [ONE],
        },
    ),
    # how soon 1000 permutations of tiles are told from chance
    "leave-spatial": Study(
        "paper",
        {"tasks": "S"},
        {
            "paper": [],
            "paper, dropout 0.5": [{"model": {"spatial": {"dropout": 0.5}}}],
            "paper, not centred": [{"model": {"spatial": {"centre": False}}}],
            "paper, 16 permutations an image": [SIXTEEN],
            "paper, 16 permutations, momentum 0.98": [SIXTEEN, momentum(0.98)],
            "paper, rate 0.01": [{"optim": {"backbone": {"lr": 0.01}, "spatial": {"lr": 0.01}}}],
            "paper, rate 0.01, warm-up": [
                {"optim": {"backbone": {"lr": 0.01}, "spatial": {"lr": 0.01}, "warmup": 500}}
            ],
            "paper, normal first weights": [normal_weights],
            "paper, He's first weights": [he_weights],
            "paper, 100 permutations first": [curriculum],
        },
        iterations=2000,
        every=250,
        drop=1.0,
    ),
    # how soon 1000 permutations of frames are
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
            "the same, head by AdamW": [ONE_CROP, SIXTEEN, ADAMW],
            "the same, rate 0.01": [ONE_CROP, SIXTEEN, ADAMW, {"optim": {"backbone": {"lr": 0.01}}}],
        },
        iterations=3000,
        every=500,
        drop=1.0,
    ),
    # the same for the preset `small`
    "leave-small": Study(
        "small",
        {"permutations": {"spatial": 1000, "temporal": 1000}},
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
    parser.add_argument("--init", help="weights that all backbones begin with")
    parser.add_argument("--variants", nargs="+", help="some of the study's; all unless given")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if STUDIES[args.study].learned and args.init is None:
        parser.error(f"{args.study} asks about a backbone that has learned already: give --init")
    return args


def given(args: argparse.Namespace, study: Study) -> Changes:
    """Data and device, as options."""
    return {
        "images": args.images,
        "videos": args.videos,
        "init": args.init,
        "device": args.device,
        "data": {"val_images": args.val_images, "val_videos": args.val_videos, "val_size": study.val_size},
        "policy": {"sampler": "uniform"},
    }


def schedule(study: Study, iterations: int) -> Changes:
    """The length of the training, and its drop if it has one."""
    milestones = [round(study.drop * iterations)] if study.drop < 1 else []
    return {"optim": {"iterations": iterations, "milestones": milestones}}


def varied(config: Config, variant: Sequence[Changes | Preparation]) -> tuple[Config, list[Preparation]]:
    """The config with a variant's options, and what is left to do to its trainer."""
    preparations = []
    for change in variant:
        if isinstance(change, dict):
            config = merge(config, change)
        else:
            preparations.append(change)
    return config, preparations


def data_of(config: Config, opened: dict[Any, Data]) -> Data:
    """The data of a config; what the samples do not depend on is opened once."""
    key = (config.data, config.tasks, config.shuffle.reverse, config.shuffle.image_share, config.seed)
    if key not in opened:
        opened[key] = prepare(config)
    return opened[key]


def train(config: Config, data: Data, study: Study, preparations: Sequence[Preparation]) -> Iterator[dict[str, Any]]:
    """One training, without a run folder: error and training accuracy now and then."""
    trainer = build_trainer(config, data)
    for prepare_trainer in preparations:
        prepare_trainer(trainer)
    iterations = config.optim.iterations
    (task,) = trainer.permutations
    tally = Tally()
    with closing(ahead(Prefetcher(trainer.load, 0, iterations, config.data.workers), trainer.device)) as coming:
        for batch in coming:
            trainer.step(batch, tally)
            if trainer.iteration % study.every == 0 or trainer.iteration == iterations:
                accuracy = float(tally.hits[task]) / tally.steps[task]
                error = trainer.validate(task).error
                yield {
                    "iteration": trainer.iteration,
                    "error": round(error, 4),
                    "training_accuracy": round(accuracy, 4),
                }
                tally = Tally()


def with_departure(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of a training, each with the iteration at which it had left chance."""
    left = next((point["iteration"] for point in curve if point["error"] < LEFT), "")
    return [{**point, "left_chance": left} for point in curve]


if __name__ == "__main__":
    main()
