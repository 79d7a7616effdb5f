"""How well a reward tells good draws from bad ones: episodes from one checkpoint, repeated with other samples.

    python benchmarks/reward_noise.py [--images FOLDER --videos FOLDER --init RUN] [--preset small] [--warmup 500]
                                      [--episodes 25,100] [--repeats 8] [--val_sizes 100,300,1000]
                                      [--tasks auto] [--permutations 700] [--per_sample 8] [--batch_size 64]
                                      [--device cuda]

A network is trained for --warmup iterations with uniform draws; from there every episode begins. Its draws are uniform,
or prefer the hard or the easy groups (`hard-first`, `easy-first`), which are groups of permutations or of pairs. An
episode ends as it is (`plain`), with BN's statistics estimated anew (`bn`), or after as many iterations again with
uniform draws at rates that fall to zero (`cooled`). For each of these, for each length of an episode
and size of X_val, the table has

- the mean error after each way to draw;
- `between`: deviation of the mean error between the three ways to draw, and `within`: deviation between repeats of one;
  `snr` is their ratio squared: the signal-to-noise ratio of the paper's reward, E_BL − E, as E_BL is the same for all;
- `paired`: the same deviation of the differences to uniform draws, when all see the same batches; `paired_snr` with it.

Results go to results/reward_noise_DEVICE.csv.
"""

import argparse
import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from table import write_table
from torch import nn
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import prepare

from unshuffle.config import Config, preset_config
from unshuffle.options import merge
from unshuffle.policy.sampler import SampleCounts, Sampler, build_sampler
from unshuffle.policy.state import Validation
from unshuffle.training.trainer import Tally, Trainer

WAYS = ("uniform", "hard-first", "easy-first")
GROUPED = ("permutations", "pairs")
ENDS = ("plain", "bn", "cooled")
BN_BATCHES = 20
APART = 1_000_000  # iterations between repeats, so that none sees the samples of another


def main() -> None:
    """Train to the checkpoint, repeat the episodes, write the table."""
    args = arguments()
    changes: dict[str, Any] = {"images": args.images, "videos": args.videos, "init": args.init, "device": args.device}
    sizes = [int(size) for size in args.val_sizes.split(",")]
    changes |= {"data": {"val_size": max(sizes)}, "policy": {"sampler": "uniform"}}
    counts = {"spatial": args.permutations, "temporal": args.permutations, **given(args, "per_sample")}
    changes |= {"tasks": args.tasks, "permutations": counts}
    changes |= {"optim": {"iterations": 10 * APART * args.repeats, "milestones": [], **given(args, "batch_size")}}
    config = merge(preset_config(args.preset), changes)
    trainer = build_trainer(config, prepare(config))
    steps(trainer, 0, args.warmup)
    start = copy.deepcopy(trainer.state_dict())
    before = {task: trainer.validate(task) for task in trainer.permutations}
    print("errors at the checkpoint", {task: round(one.error, 4) for task, one in before.items()}, flush=True)
    rows = []
    lengths = [int(length) for length in args.episodes.split(",")]
    for grouped, length, end in itertools.product(GROUPED, lengths, ENDS):
        found = {
            way: [
                episode(trainer, start, before, (way, grouped), length, repeat, end) for repeat in range(args.repeats)
            ]
            for way in WAYS
        }
        for task, size in itertools.product(trainer.permutations, sizes):
            errors = np.array([[error_of(one[task], size) for one in found[way]] for way in WAYS])
            what = {"task": task, "grouped": grouped, "iterations": length, "end": end, "val_size": size}
            rows.append(what | figures(errors))
            print(rows[-1], flush=True)
    write_table(f"reward_noise_{trainer.device.type}", rows, args.device)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images")
    parser.add_argument("--videos")
    parser.add_argument("--init")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--episodes", default="25,100")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--val_sizes", default="100,300,1000")
    parser.add_argument("--tasks", default="auto")
    parser.add_argument("--permutations", type=int, default=700)
    parser.add_argument("--per_sample", type=int)
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def given(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """An option, if it was given: the preset has its own."""
    value = getattr(args, name)
    return {} if value is None else {name: value}


def steps(trainer: Trainer, first: int, count: int, *, cooling: bool = False) -> None:
    """Train on the batches of some iterations; they are made here, as there are few."""
    trainer.iteration, tally, rates = first, Tally(), trainer.optimisers.rates
    for done, iteration in enumerate(range(first, first + count)):
        factor = 1 - done / count if cooling else 1.0
        trainer.optimisers.rates = {name: factor * rate for name, rate in rates.items()}
        batch = trainer.load(iteration)
        trainer.step({task: some.to(trainer.device) for task, some in batch.items()}, tally)
    trainer.optimisers.rates = rates


def episode(
    trainer: Trainer,
    start: dict[str, Any],
    before: dict[str, Validation],
    how: tuple[str, str],
    length: int,
    repeat: int,
    end: str,
) -> dict[str, Validation]:
    """An episode from the checkpoint: the validation at its end, of each task."""
    trainer.network.load_state_dict(start["network"])
    trainer.optimisers.load_state_dict(copy.deepcopy(start["optimisers"]))
    trainer.samplers = {task: drawing(*how, one, trainer.config) for task, one in before.items()}
    first = APART * (repeat + 1)
    steps(trainer, first, length)
    if end == "cooled":
        trainer.samplers = {task: drawing("uniform", "", one, trainer.config) for task, one in before.items()}
        steps(trainer, first + length, length, cooling=True)
    with statistics_anew(trainer, first + 2 * length) if end == "bn" else nullcontext():
        return {task: trainer.validate(task) for task in trainer.permutations}


def drawing(way: str, grouped: str, before: Validation, config: Config) -> Sampler:
    """A sampler that draws one way, in the groups of the checkpoint."""
    changes = {"sampler": way, "start_below": 2.0, **({"grouping": grouped} if grouped else {})}
    policy, count = merge(config, {"policy": changes}).policy, len(before.state)
    sampler = build_sampler(policy, count, config.seed)
    sampler.observe(before, SampleCounts(count, policy.num_groups), 0, ends=False, begins=True)
    return sampler


@contextmanager
def statistics_anew(trainer: Trainer, iteration: int) -> Iterator[None]:
    """BN's running statistics as the plain mean over some batches, instead of the moving one."""
    norms = [module for module in trainer.network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        for more in range(BN_BATCHES):
            batch = {task: some.to(trainer.device) for task, some in trainer.load(iteration + more).items()}
            crops, _ = trainer.shuffle(batch)
            trainer.network.backbone(torch.cat([some.float().flatten(0, 1) for some in crops.values()]))
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def figures(errors: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Signal and noise of (3, repeats) errors, by the way to draw."""
    between, within = errors.mean(axis=1).std(ddof=1), np.sqrt(errors.var(axis=1, ddof=1).mean())
    paired = np.sqrt((errors[1:] - errors[0]).var(axis=1, ddof=1).mean() / 2)  # a difference has the noise of two
    return {
        **{way: round(float(mean), 4) for way, mean in zip(WAYS, errors.mean(axis=1), strict=True)},
        "between": round(float(between), 5),
        "within": round(float(within), 5),
        "snr": round(float((between / within) ** 2), 2),
        "paired": round(float(paired), 5),
        "paired_snr": round(float((between / paired) ** 2), 2),
    }


def error_of(validation: Validation, size: int) -> float:
    """The error on the first samples alone: a permutation is recognised where its ratio is above 1."""
    return 1 - float((validation.state[:, :size] > 1).double().mean())


if __name__ == "__main__":
    main()
