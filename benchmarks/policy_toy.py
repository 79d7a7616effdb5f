"""What the policy learns on a toy: one group is better, and the reward tells it with noise.

    python benchmarks/policy_toy.py [--seeds 20] [--processes 2] [--signal results/reward_noise_cuda.csv] [--redraw]

The reward of an episode is gain · (fraction of samples from the better group − its size) + noise of std 1. Gains are
given as the signal-to-noise ratio of an episode whose action is a mixture of an untrained policy: the std of the signal
over such mixtures, over that of the noise. With one group for each batch the same gain makes a weaker signal, as the
fraction of a group varies less over 100 batches.

Policies: `paper` and `paper-literal` (10 groups of permutations), and `pairs` of benchmarks/comparison.py (REINFORCE
with 4 groups of pairs, and a higher learning rate). Results, means over the seeds: results/policy_toy.csv with the
probability of the better group after some numbers of episodes, and the largest distance of any group's probability from
its size; policy_toy.svg, in which the ratios that `benchmarks/reward_noise.py` has measured on real data are marked.
With --redraw the figure is drawn from the table, and nothing runs.
"""

import argparse
import csv
import itertools
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from comparison import policies
from matplotlib.figure import Figure
from table import RESULTS, write_table

from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, panels, save_figure, styled
from unshuffle.config import PolicyConfig, paper, paper_literal
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import Episode, ErrorHistory, Reinforce
from unshuffle.policy.sampler import SampleCounts

POLICIES: dict[str, PolicyConfig] = {
    "paper": paper().policy,
    "paper-literal": paper_literal().policy,
    "pairs": policies(iterations=6000)["pairs"],
}
RATIOS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
EPISODES = (60, 120, 240, 480, 960)
BATCHES = 100
PERMUTATIONS = 1000
REWARD_STD = 0.01  # of the noise, as on real data; far above policy.min_reward_std


def main() -> None:
    """Run all policies at all ratios, write the table and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--signal", type=Path, default=RESULTS / "reward_noise_cuda.csv")
    parser.add_argument("--redraw", action="store_true", help="draw the figure from the table, without running")
    args = parser.parse_args()
    if args.redraw:
        save_figure(
            draw(read_rows(RESULTS / "policy_toy.csv"), read_signals(args.signal)), [RESULTS / "policy_toy.svg"]
        )
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # the policy's network is tiny
    jobs = list(itertools.product(POLICIES, RATIOS))
    with ProcessPoolExecutor(args.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = [row for rows in pool.map(run, jobs, itertools.repeat(args.seeds)) for row in rows]
    write_table("policy_toy", rows)
    save_figure(draw(rows, read_signals(args.signal)), [RESULTS / "policy_toy.svg"])


def run(job: tuple[str, float], seeds: int) -> list[dict[str, Any]]:
    """Return a row for each number of episodes, with means over the seeds."""
    name, ratio = job
    learned = [learn(POLICIES[name], ratio, seed) for seed in range(seeds)]
    rows = []
    for index, episodes in enumerate(EPISODES):
        better, distances = zip(*(points[index] for points in learned), strict=True)
        rows.append(
            {
                "policy": name,
                "groups": POLICIES[name].num_groups,
                "ratio": ratio,
                "episodes": episodes,
                "better": round(fmean(better), 3),
                "lowest": round(min(better), 3),
                "distance": round(fmean(distances), 3),
                "largest_distance": round(max(distances), 3),
            }
        )
    return rows


def learn(config: PolicyConfig, ratio: float, seed: int) -> list[tuple[float, float]]:
    """Return the better group's probability, and the largest distance from the sizes, after each number of episodes."""
    count, generator = config.num_groups, torch.Generator().manual_seed(seed)
    groups = equal_groups(count)
    policy, better = Reinforce(config, PERMUTATIONS, seed, ErrorHistory()), seed % count
    policy.groups = groups
    gain = ratio / fraction_std(config)
    points = []
    for episode in range(1, max(EPISODES) + 1):
        policy.act()
        policy.vary(groups, episode)
        sampled = sample(policy, generator)
        fractions = sampled.permutations.view(count, -1).sum(dim=1) / sampled.permutations.sum()
        reward = gain * (float(fractions[better]) - 1 / count) + float(torch.randn((), generator=generator))
        policy.learn(
            Episode(
                groups=groups,
                preferred=policy.preferred,
                behaviour=policy.behaviour,
                counts=sampled.permutations,
                action=policy.action(groups, sampled),
                iteration=episode,
                error=0.0,
                baseline=REWARD_STD * reward,
            )
        )
        if episode in EPISODES:
            probabilities = policy.probabilities(groups)
            points.append((float(probabilities[better]), float((probabilities - 1 / count).abs().max())))
    return points


def equal_groups(count: int) -> Groups:
    """Return groups of equal size; only their order tells them apart."""
    members = torch.arange(count).repeat_interleave(PERMUTATIONS // count)
    return Groups(members, torch.full((count,), 1 / count), torch.linspace(0.6, 1.8, count), torch.arange(count))


def sample(policy: Reinforce, generator: torch.Generator) -> SampleCounts:
    """Return the counts of an episode: exactly those of its mixture, or those of one group for each batch."""
    count = len(policy.behaviour)
    sampled = SampleCounts(PERMUTATIONS, count)
    sampled.batches = BATCHES
    fractions = policy.behaviour
    if policy.one_group_per_batch:
        chosen = torch.multinomial(policy.behaviour, BATCHES, replacement=True, generator=generator)
        fractions = torch.bincount(chosen, minlength=count) / BATCHES
    sampled.permutations = fractions.repeat_interleave(PERMUTATIONS // count)
    return sampled


def fraction_std(config: PolicyConfig) -> float:
    """Return the std of a group's fraction over the mixtures of an untrained policy."""
    noise = torch.randn(100_000, config.num_groups, generator=torch.Generator().manual_seed(0))
    mixtures = torch.softmax(config.mixture_noise * noise, dim=1)
    return (1 - config.exploration) * float(mixtures[:, 0].std())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def read_signals(path: Path) -> list[dict[str, str]]:
    """Return the rows of reward_noise.py with the most validation samples."""
    if not path.is_file():
        return []
    rows = read_rows(path)
    largest = max(int(row["val_size"]) for row in rows)
    return [row for row in rows if int(row["val_size"]) == largest]


@styled
def draw(rows: Sequence[dict[str, Any]], signals: Sequence[dict[str, str]]) -> Figure:
    """Draw the better group's probability over the ratio, a column for each policy, below the ratios on real data."""
    figure, axes = panels(2, len(POLICIES), width=4.6, height=2.7, sharex="col", height_ratios=(1, 3.4))
    for column, name in enumerate(POLICIES):
        above, axis = axes[:, column]
        own = [row for row in rows if row["policy"] == name]
        for episodes, colour in zip(EPISODES, COLOURS, strict=False):
            points = [(float(row["ratio"]), float(row["better"])) for row in own if int(row["episodes"]) == episodes]
            axis.plot(*zip(*points, strict=True), "o-", color=colour, markersize=3, label=f"{episodes} episodes")
        count = int(own[0]["groups"])
        axis.axhline(1 / count, color=QUIET, linewidth=1, linestyle=":", label="uniform sampling")
        axis.set_xscale("symlog", linthresh=0.05)
        axis.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        axis.minorticks_off()
        axis.set_ylim(0, 1.02)
        marked = [row for row in signals if row["grouped"] == POLICIES[name].grouping]
        for height, row in enumerate(marked):
            above.plot(float(row["mixture"]), height, marker="v", color=QUIET, markersize=7)
        labels = [f"{row['task']}, {row['iterations']} iterations" for row in marked]
        above.set_yticks(range(len(marked)), labels if column == 0 else [""] * len(marked), fontsize=9)
        above.set_ylim(len(marked) - 0.4, -0.6)
        above.tick_params(axis="x", labelbottom=False, length=0)
        name_axes(above, f"{name}: {count} groups of {POLICIES[name].grouping}", "", "")
        name_axes(axis, "", "signal-to-noise ratio of a mixture's reward", "")
    axes[0, 0].set_ylabel("measured on\nreal data")
    axes[1, 0].set_ylabel("probability of the better group")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(EPISODES) + 1)
    return figure


if __name__ == "__main__":
    main()
