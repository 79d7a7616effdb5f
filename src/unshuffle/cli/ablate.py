"""`unshuffle ablate`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from unshuffle.cli.parsing import ConfigCommand, parse_config_command, write_json
from unshuffle.options import read_yaml
from unshuffle.stopping import Stopped, stopping_at_once
from unshuffle.wording import printable


@dataclass(frozen=True)
class AblateCommand(ConfigCommand):
    """Train and evaluate several arms with several seeds, and print their table; started again, it resumes."""

    out: Path | None = None
    """Folder of the ablation; by default runs/ablation."""
    arms: tuple[str, ...] = ()
    """Tasks joined as in --tasks, with +P at the end for a policy instead of uniform sampling (--policy.sampler, or
    rollouts if that is uniform), such as S+T+R or S+T+P; by default S, S+P, T, T+P, S&T, S+T and S+T+P. A .yaml file
    adds arms: NAME: {policy: {sampler: exp3}}."""
    seeds: tuple[int, ...] = (1,)
    """One number: how many seeds, counted from --seed. Several numbers: the seeds themselves."""
    evaluations: tuple[str, ...] = ()
    """Names as in `unshuffle evaluate`, or .yaml files with options: NAME: {evaluation: retrieval, train: ...}."""
    evaluation_preset: Literal["quick", "paper"] = "quick"
    """Preset of the evaluations. quick: minutes each; paper: the full schedules."""
    train: str | None = None
    """--train of the evaluations that have it."""
    test: str | None = None
    """--test of the evaluations that have it."""
    voc: Path | None = None
    """--voc of the evaluations that have it."""
    columns: tuple[str, ...] = ()
    """Metrics to show in the table, such as linear.conv5.top1; results.csv lists all names."""
    jobs: Annotated[int, Ge(0)] = 0
    """Runs trained at the same time; 0: one per GPU, or one per 4 CPU cores."""
    launcher: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: a job array, submitted with submitit."""
    slurm: Path | None = None
    """YAML file with submitit's parameters, such as slurm_partition, timeout_min, cpus_per_task."""
    json: Path | None = None
    """Write the figures to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Run the ablation; the exit code is 1 if an arm fails."""
    command = parse_config_command(AblateCommand, "ablate", args)
    from unshuffle.ablation.ablation import make_plan, run_ablation
    from unshuffle.ablation.arms import find_arms, find_evaluations

    data = {"train": command.train, "test": command.test, "voc": command.voc}
    common = {"preset": command.evaluation_preset, **{key: path for key, path in data.items() if path is not None}}
    config = command.run_config()
    plan = make_plan(
        command.out or Path("runs", "ablation"),
        config,
        find_arms(command.arms, config),
        command.seeds if len(command.seeds) != 1 else command.seeds[0],
        find_evaluations(command.evaluations, common),
    )
    slurm = read_yaml(command.slurm.expanduser(), "slurm") if command.slurm is not None else {}
    try:
        with stopping_at_once():
            outcome = run_ablation(
                plan, jobs=command.jobs, launcher=command.launcher, slurm=slurm, columns=command.columns
            )
    except Stopped as stop:
        print("interrupted; finished work is saved, and the same command continues", file=sys.stderr)
        return 128 + stop.signum
    write_json(command.json, "ablate", outcome.protocol, plan.to_dict(), outcome.metrics)
    for warning in filter(None, (job.run.metrics_warning for job in plan.jobs)):
        print(f"warning: {warning}", file=sys.stderr)
    for job, problem in outcome.failures.items():
        print(f"unshuffle: {printable(f'{job} failed: {problem}')}", file=sys.stderr)
    return 1 if outcome.failures else 0
