"""How well a reward tells good draws from bad ones: episodes from one checkpoint, repeated with other samples.

    python benchmarks/reward_noise.py --images FOLDER --videos FOLDER --init RUN [--preset small] [--warmup 500]
                                      [--episodes 25,100] [--repeats 8] [--val_sizes 100,300,1000] [--device cuda]

The trunk of a run is trained on for --warmup iterations with uniform draws; from there every episode begins. Its draws
are uniform, or prefer the hard or the easy groups (`hard-first`, `easy-first`). For each length of an episode, size of
X_val, and with or without BN's statistics estimated anew before the validation, the table has

- the mean error after each way to draw;
- `between`: deviation of the mean error between the three ways to draw, and `within`: deviation between repeats of one;
  their ratio squared is the signal-to-noise ratio of the paper's reward, E_BL − E, as E_BL is the same for all;
- `value_hard` and `value_noise`: worth of a draw of the hardest group in the uniform episodes (`reward: progress`),
  mean and deviation between repeats; `value_snr` is their distance from 1 squared over the noise squared.

Results go to results/reward_noise_DEVICE.csv.
"""

import argparse
import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from table import write_table
from torch import Tensor, nn

from unshuffle.assembly import build_trainer
from unshuffle.config import Config, preset_config
from unshuffle.config_file import merge
from unshuffle.data.prepare import prepare
from unshuffle.policy.groups import Groups, group_permutations
from unshuffle.policy.progress import draw_values
from unshuffle.policy.samplers import GroupSampler, Ranked, Sampler, UniformSampler
from unshuffle.policy.state import Validation
from unshuffle.training.trainer import Tally, Trainer

WAYS = ("uniform", "hard-first", "easy-first")
BN_BATCHES = 20
APART = 1_000_000  # iterations between repeats, so that none sees the samples of another


def main() -> None:
    """Train to the checkpoint, repeat the episodes, write the table."""
    args = arguments()
    changes: dict[str, Any] = {"images": args.images, "videos": args.videos, "init": args.init, "device": args.device}
    sizes = [int(size) for size in args.val_sizes.split(",")]
    changes |= {"data": {"val_size": max(sizes)}, "policy": {"sampler": "uniform"}}
    changes |= {"optim": {"iterations": 10 * APART * args.repeats, "milestones": []}}
    config = merge(preset_config(args.preset), changes)
    trainer = build_trainer(config, prepare(config))
    steps(trainer, 0, args.warmup)
    start = copy.deepcopy(trainer.state_dict())
    before = {task: trainer.validate(task) for task in trainer.permutations}
    print("errors at the checkpoint", {task: round(one.error, 4) for task, one in before.items()}, flush=True)
    rows = []
    for length in [int(length) for length in args.episodes.split(",")]:
        for anew in (False, True):
            found = {way: [episode(trainer, start, before, way, length, repeat, anew) for repeat in range(args.repeats)]
                     for way in WAYS}  # fmt: skip
            for task, size in itertools.product(trainer.permutations, sizes):
                rows.append({"task": task, "iterations": length, "val_size": size, "bn_anew": anew}
                            | figures(before[task], {way: [one[task] for one in some] for way, some in found.items()},
                                      size, config))  # fmt: skip
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
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def steps(trainer: Trainer, first: int, count: int) -> None:
    """Train on the batches of some iterations; they are made here, as there are few."""
    trainer.iteration, tally = first, Tally()
    for iteration in range(first, first + count):
        batch = trainer.load(iteration)
        trainer.step({task: some.to(trainer.device) for task, some in batch.items()}, tally)


def episode(
    trainer: Trainer,
    start: dict[str, Any],
    before: dict[str, Validation],
    way: str,
    length: int,
    repeat: int,
    anew: bool,
) -> dict[str, tuple[Validation, Tensor]]:
    """An episode from the checkpoint: the validation at its end and the draws, of each task."""
    trainer.network.load_state_dict(start["network"])
    trainer.optimisers.load_state_dict(copy.deepcopy(start["optimisers"]))
    trainer.samplers = {task: drawing(way, one, trainer.config, task) for task, one in before.items()}
    first = APART * (repeat + 1)
    steps(trainer, first, length)
    draws = {task: sampler.state_dict()["draws"] for task, sampler in trainer.samplers.items()}
    with statistics_anew(trainer, first + length) if anew else unchanged():
        return {task: (trainer.validate(task), draws[task]) for task in trainer.permutations}


def drawing(way: str, before: Validation, config: Config, task: str) -> Sampler:
    """A sampler that draws one way, in the groups of the checkpoint."""
    if way == "uniform":
        return UniformSampler(len(before.state))
    policy = merge(config, {"policy": {"sampler": way, "start_below": 2.0}}).policy
    sampler = GroupSampler(policy, Ranked(way == "hard-first"), len(before.state), config.seed)
    sampler.observe(before, 0, ends=False, begins=True)
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
            trainer.network.trunk(torch.cat([some.float().flatten(0, 1) for some in crops.values()]))
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing is done about them."""
    yield


def figures(
    before: Validation, found: dict[str, list[tuple[Validation, Tensor]]], size: int, config: Config
) -> dict[str, Any]:
    """Signal and noise of both rewards, with the first `size` samples of X_val."""
    errors = np.array([[error_of(one, size).mean() for one, _ in found[way]] for way in WAYS])
    between, within = errors.mean(axis=1).std(ddof=1), np.sqrt(errors.var(axis=1, ddof=1).mean())
    groups: Groups = group_permutations(before.state[:, :size], config.policy.groups, config.seed)
    first = error_of(before, size)
    values = [
        float(draw_values(first, error_of(one, size), draws, groups.members, config.policy.groups)[0])
        for one, draws in found["uniform"]
    ]
    noise = float(np.std(values, ddof=1))
    return {
        **{way: round(float(mean), 4) for way, mean in zip(WAYS, errors.mean(axis=1), strict=True)},
        "between": round(float(between), 5),
        "within": round(float(within), 5),
        "snr": round(float((between / within) ** 2), 3),
        "value_hard": round(float(np.mean(values)), 3),
        "value_noise": round(noise, 3),
        "value_snr": round(((np.mean(values) - 1) / noise) ** 2, 3) if noise else "",
    }


def error_of(validation: Validation, size: int) -> Tensor:
    """(|Ψ|,) errors on the first samples alone: a permutation is recognised where its ratio is above 1."""
    return 1 - (validation.state[:, :size] > 1).double().mean(dim=1)


if __name__ == "__main__":
    main()
