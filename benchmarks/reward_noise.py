"""Signal-to-noise ratio of the reward: episodes from one checkpoint, repeated with other samples.

    python benchmarks/reward_noise.py [--images FOLDER --videos FOLDER --init RUN] [--preset small] [--warmup 500]
                                      [--episodes 25,100] [--repeats 8] [--val_sizes 100,300,1000] [--ends plain]
                                      [--tasks auto] [--permutations 1000,100] [--per_sample 8] [--batch_size 64]
                                      [--sibling_pattern PATTERN] [--out FILE] [--device cuda]

A network is trained for --warmup iterations with uniform sampling; every episode starts from there. Its sampler is
uniform, or prefers the hard or the easy groups (`hard-first`, `easy-first`) of permutations or of pairs. An episode is
validated as it is (`plain`), with batch-norm statistics estimated again (`bn`), or after as many further iterations of
uniform sampling with learning rates that fall to zero (`cooled`). For each of these, for each length of an episode and
size of X_val, the table has

- the mean error of each sampler;
- `between`: standard deviation of the mean error between the three samplers, and `within`: between repeats of one;
  `snr` is their ratio squared: the signal-to-noise ratio of the paper's reward, E_BL − E, as E_BL is the same for all;
- `paired`: as `within`, of the differences to uniform sampling on the same batches; `paired_snr` with it;
- `reward_std`: std of the rewards r = 2 E_t − E_(t−1) − E_(t+1) of consecutive episodes of uniform sampling;
- `slope`: how much the error falls when the mean rank of what is sampled, from 1 (the hardest group) to −1 (the
  easiest), rises by 1; and from it the signal-to-noise ratio of one episode's reward, std of the signal over std of the
  rewards, when the episode's action is one mixture (`mixture`) or one group for each batch (`batch`).
  `benchmarks/policy_toy.py` shows what a policy learns at such a ratio.

Results go to results/reward_noise_DEVICE.csv.
"""

import argparse
import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from comparison import ordering_preset
from table import write_table
from torch import nn

from unshuffle.config import Config, PolicyConfig
from unshuffle.options import merge
from unshuffle.policy import build_sampler
from unshuffle.policy.groups import GroupSampler
from unshuffle.policy.sampler import SampleCounts, Sampler
from unshuffle.policy.state import PermutationValidation
from unshuffle.policy.uniform import Uniform
from unshuffle.tasks.prepare import prepare
from unshuffle.training.trainer import Tally, Trainer, build_trainer

Validations = dict[str, PermutationValidation]

SAMPLERS = ("uniform", "hard-first", "easy-first")
GROUPINGS = ("permutations", "pairs")
ENDS = ("plain", "bn", "cooled")
BN_BATCHES = 20
CONSECUTIVE = 22  # episodes of uniform sampling, which give 20 rewards
APART = 1_000_000  # iterations between repeats, so that no two see the same samples


def main() -> None:
    """Train to the checkpoint, repeat the episodes and write the table."""
    args = arguments()
    changes: dict[str, Any] = {"images": args.images, "videos": args.videos, "init": args.init, "device": args.device}
    sizes = [int(size) for size in args.val_sizes.split(",")]
    changes |= {"data": {"val_size": max(sizes), "test_size": 0, "sibling_pattern": args.sibling_pattern}}
    changes |= {"policy": {"sampler": "uniform"}}
    changes |= {"tasks": args.tasks, "permutations": given(args, "per_sample")}
    counts = zip(("spatial", "temporal"), args.permutations.split(","), strict=True)
    changes |= {name: {"permutations": int(count)} for name, count in counts}
    changes |= {"optim": {"iterations": 10 * APART * args.repeats, "milestones": [], **given(args, "batch_size")}}
    config = merge(ordering_preset(args.preset), changes)
    trainer = build_trainer(config, prepare(config))
    train(trainer, 0, args.warmup)
    start = copy.deepcopy(trainer.state_dict())
    before = {name: trainer.validate(name) for name in trainer.ordering_tasks}
    errors_before = {name: round(validation.error, 4) for name, validation in before.items()}
    print("errors at the checkpoint", errors_before, flush=True)
    rows = []
    lengths = [int(length) for length in args.episodes.split(",")]
    rewards = {length: reward_stds(trainer, start, length, sizes) for length in lengths}
    for grouping, length, end in itertools.product(GROUPINGS, lengths, args.ends.split(",")):
        ranks = {task: mean_ranks(before[task], grouping, config) for task in trainer.ordering_tasks}
        results = [
            [episode(trainer, start, before, (name, grouping), length, repeat, end) for repeat in range(args.repeats)]
            for name in SAMPLERS
        ]
        for task, size in itertools.product(trainer.ordering_tasks, sizes):
            errors = np.array([[error_of(result[task], size) for result in repeats] for repeats in results])
            condition = {"task": task, "grouped": grouping, "iterations": length, "end": end, "val_size": size}
            noise = rewards[length][task, size]
            rows.append(condition | figures(errors) | signal(errors, ranks[task], noise, length, config.policy))
            print(rows[-1], flush=True)
    note = f"errors at the checkpoint {errors_before}"
    write_table(f"reward_noise_{trainer.device.type}", rows, args.device, note, args.out)


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
    parser.add_argument("--ends", default="plain")
    parser.add_argument("--tasks", default="auto")
    parser.add_argument("--permutations", default="1000,100")
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--per_sample", type=int)
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def given(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return an option if it was given; otherwise the preset's value stays."""
    value = getattr(args, name)
    return {} if value is None else {name: value}


def train(trainer: Trainer, first: int, count: int, *, cooling: bool = False) -> None:
    """Train on the batches of some iterations, with learning rates that fall to zero if `cooling`."""
    trainer.iteration = first
    if not cooling:
        trainer.train_iterations(count)
        return
    base_lrs = trainer.optimisers.base_lrs
    for done in range(count):
        trainer.optimisers.base_lrs = {name: (1 - done / count) * lr for name, lr in base_lrs.items()}
        trainer.step(trainer.load(trainer.iteration), Tally())
    trainer.optimisers.base_lrs = base_lrs


def episode(
    trainer: Trainer,
    start: dict[str, Any],
    before: Validations,
    sampling: tuple[str, str],
    length: int,
    repeat: int,
    end: str,
) -> Validations:
    """Train an episode from the checkpoint, and return the validation of each task at its end."""
    trainer.network.load_state_dict(start["network"])
    trainer.optimisers.load_state_dict(copy.deepcopy(start["optimisers"]))
    set_samplers(trainer, before, *sampling)
    first = APART * (repeat + 1)
    train(trainer, first, length)
    if end == "cooled":
        set_samplers(trainer, before, "uniform")
        train(trainer, first + length, length, cooling=True)
    with estimated_statistics(trainer, first + 2 * length) if end == "bn" else nullcontext():
        return {name: trainer.validate(name) for name in trainer.ordering_tasks}


def set_samplers(trainer: Trainer, before: Validations, name: str, grouping: str = "permutations") -> None:
    """Give every ordering task a sampler with the groups of the checkpoint."""
    for task_name, task in trainer.ordering_tasks.items():
        task.sampler = sampler_of(name, grouping, before[task_name], trainer.config)


def sampler_of(name: str, grouping: str, before: PermutationValidation, config: Config) -> Sampler:
    """Return a sampler that has observed the checkpoint."""
    changes = {"sampler": name, "start_below": 2.0, "grouping": grouping, "prior_correction": grouping != "pairs"}
    policy, count = merge(config, {"policy": changes}).policy, len(before.state)
    sampler = build_sampler(policy, count, config.seed)
    sampler.observe(before, SampleCounts(count, policy.num_groups), 0, ends=False, begins=True)
    return sampler


@contextmanager
def estimated_statistics(trainer: Trainer, iteration: int) -> Iterator[None]:
    """Replace the moving averages of batch normalisation by the mean over some batches."""
    norms = [module for module in trainer.network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        for offset in range(BN_BATCHES):
            inputs = trainer.inputs(trainer.load(iteration + offset))
            trainer.network.features({name: task_inputs.crops.float() for name, task_inputs in inputs.items()})
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def figures(errors: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return signal and noise of the (3, repeats) errors of the samplers."""
    between, within = errors.mean(axis=1).std(ddof=1), np.sqrt(errors.var(axis=1, ddof=1).mean())
    paired = np.sqrt((errors[1:] - errors[0]).var(axis=1, ddof=1).mean() / 2)  # a difference has the noise of two
    return {
        **{name: round(float(mean), 4) for name, mean in zip(SAMPLERS, errors.mean(axis=1), strict=True)},
        "between": round(float(between), 5),
        "within": round(float(within), 5),
        "snr": round(float((between / within) ** 2), 2),
        "paired": round(float(paired), 5),
        "paired_snr": round(float((between / paired) ** 2), 2),
    }


def reward_stds(
    trainer: Trainer, start: dict[str, Any], length: int, sizes: Sequence[int]
) -> dict[tuple[str, int], float]:
    """Return the std of the rewards of consecutive episodes of uniform sampling, by task and size of X_val."""
    trainer.load_state_dict(copy.deepcopy(start))
    for task in trainer.ordering_tasks.values():
        task.sampler = Uniform(len(task.permutations))
    errors: dict[tuple[str, int], list[float]] = {}
    for _ in range(CONSECUTIVE):
        trainer.train_iterations(length)
        for name in trainer.ordering_tasks:
            validation = trainer.validate(name)
            for size in sizes:
                errors.setdefault((name, size), []).append(error_of(validation, size))
    return {key: float(np.diff(values, 2).std(ddof=1)) for key, values in errors.items()}


def mean_ranks(before: PermutationValidation, grouping: str, config: Config) -> dict[str, Any]:
    """Return the ranks of the groups, their sizes, and the mean rank that each fixed preference samples."""
    ranked = {}
    for name in SAMPLERS[1:]:
        sampler = sampler_of(name, grouping, before, config)
        assert isinstance(sampler, GroupSampler) and sampler.groups is not None
        present = sampler.groups.sizes > 0
        sizes = sampler.groups.sizes[present]
        ranks = torch.linspace(1, -1, len(sizes))
        ranked[name] = float(((sampler.behaviour[present] - sizes) * ranks).sum())
    return {"ranks": ranks, "sizes": sizes, "sampled": np.array(list(ranked.values()))}


def signal(
    errors: npt.NDArray[np.float64], ranked: dict[str, Any], reward_std: float, length: int, policy: PolicyConfig
) -> dict[str, float]:
    """Return the effect of sampling harder groups, and what it makes of a reward's signal with each kind of action."""
    falls = errors[0].mean() - errors[1:].mean(axis=1)
    slope = float(falls @ ranked["sampled"] / (ranked["sampled"] ** 2).sum())
    ranks, sizes = ranked["ranks"], ranked["sizes"]
    noise = torch.randn(10_000, len(sizes), generator=torch.Generator().manual_seed(0))
    mixtures = torch.softmax(sizes.log() + policy.mixture_noise * noise, dim=1)
    std = {
        "mixture": (1 - policy.exploration) * float((mixtures @ ranks).std()),
        "batch": float(((sizes * ranks**2).sum() - (sizes * ranks).sum() ** 2).sqrt()) / length**0.5,
    }
    ratios = {action: round(abs(slope) * value / reward_std, 3) for action, value in std.items()}
    return {"reward_std": round(reward_std, 5), "slope": round(slope, 5), **ratios}


def error_of(validation: PermutationValidation, size: int) -> float:
    """Return the error on the first samples of X_val: a permutation is recognised where its ratio is above 1."""
    return 1 - float((validation.state[:, :size] > 1).double().mean())


if __name__ == "__main__":
    main()
