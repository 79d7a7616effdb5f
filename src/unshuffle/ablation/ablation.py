"""Run an ablation: train and evaluate arms × seeds, and write their table (Tab. 5 of the paper)."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from unshuffle.ablation.arms import KIND, PAPER_ARMS, Values, find_arms, find_evaluations, plain
from unshuffle.ablation.launcher import (
    Failures,
    Launcher,
    job_environments,
    run_in_process,
    run_processes,
    run_slurm,
)
from unshuffle.ablation.plan import LOGS, Job, Plan
from unshuffle.ablation.table import Cell, Table
from unshuffle.accelerator import choose_device
from unshuffle.analysis.analysis import Row, flat_numbers, write_rows
from unshuffle.config import TASK_SYMBOLS, Config, OrderingConfig, preset_config, with_options
from unshuffle.console import ResilientConsole, say
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import published
from unshuffle.pretraining import try_backbone
from unshuffle.runs.folders import PUBLISHED
from unshuffle.runs.history import error_kind, error_label, has_acted, tasks_of
from unshuffle.tasks.prepare import prepare

__all__ = ["PAPER_ARMS", "Ablation", "ablate", "make_plan", "run_ablation"]

START = "iteration 0"
"""Row of the figures before any training."""
HEADLINES = {
    "retrieval": ("top1", "top5"),
    "linear": ("pool5.top1",),
    "nonlinear": ("top1",),
    "finetune": ("top1",),
    "action": ("mean_class_accuracy",),
    "rankme": ("rankme",),
    "voc-classification": ("mAP_area",),
    "voc-detection": ("mAP_11_point",),
    "voc-segmentation": ("mIoU",),
}
"""Metrics of each evaluation that are columns of the table by default."""
IN_TABLE_5 = {"voc-classification": "classification", "action": "UCF-101"}
"""Evaluations of the paper's own ablation, and their names there."""


@dataclass(frozen=True)
class Ablation:
    """The results of an ablation."""

    plan: Plan
    table: Table
    figures: dict[str, dict[int, dict[str, float]]]
    """All metrics of the finished runs, by arm and seed."""
    failures: Failures
    """A sentence per job that failed, by "ARM, seed N"."""

    @property
    def protocol(self) -> str:
        """Arms, seeds and evaluations, in one line."""
        arms, seeds = ", ".join(self.plan.arms), ", ".join(map(str, self.plan.seeds))
        return "; ".join([f"arms {arms}", f"seeds {seeds}", *self.table.notes[1:]])

    @property
    def metrics(self) -> dict[str, Any]:
        """Mean, std and the value of each seed, by arm and metric."""
        return {
            arm: {
                name: {
                    "mean": cell.mean,
                    "std": cell.std,
                    "seeds": {str(seed): figures[name] for seed, figures in by_seed.items() if name in figures},
                }
                for name, cell in _cells(by_seed.values()).items()
            }
            for arm, by_seed in self.figures.items()
        }

    @property
    def rows(self) -> list[Row]:
        """One row per arm, seed and metric."""
        return [
            {"arm": arm, "seed": seed, "metric": name, "value": value}
            for arm, by_seed in self.figures.items()
            for seed, figures in by_seed.items()
            for name, value in figures.items()
        ]


def ablate(
    out: str | Path,
    *,
    arms: Sequence[str] | Mapping[str, Values] = (),
    seeds: int | Sequence[int] = 1,
    evaluations: Sequence[str] | Mapping[str, Values] = (),
    columns: Sequence[str] = (),
    preset: str = "demo",
    jobs: int = 1,
    launcher: Launcher = "local",
    slurm: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **options: Any,
) -> Ablation:
    """Train every arm with every seed, evaluate all runs, and write the table into `out`.

    Arms are tasks joined as in `tasks`, with +P at the end for the policy, such as `["S+T+R", "S+T+P"]`, or changes of
    the config by name, such as `{"long": {"optim": {"iterations": 9000}}}`; both can be combined,
    `{**find_arms(["S+T+P"], config), "mine": ...}`. By default they are the paper's. Evaluations are names, or options
    by name. Further options are the fields of `unshuffle.config.Config`, as for `unshuffle.pretrain`. With `jobs=1` all
    jobs run in this process. Jobs that are finished in `out` are not repeated; a job that fails is listed in `failures`
    and does not stop the others.
    """
    config = with_options(preset_config(preset), plain(options))
    plan = make_plan(
        Path(out),
        config,
        arms if isinstance(arms, Mapping) else find_arms(arms, config),
        seeds,
        evaluations if isinstance(evaluations, Mapping) else find_evaluations(evaluations, {}),
    )
    return run_ablation(plan, jobs=jobs, launcher=launcher, slurm=slurm, columns=columns, console=console)


def make_plan(
    out: Path,
    config: Config,
    arms: Mapping[str, Values],
    seeds: int | Sequence[int],
    evaluations: Mapping[str, Values],
) -> Plan:
    """Return the plan of an ablation; a number of seeds counts from the config's seed."""
    seeds = range(config.seed, config.seed + seeds) if isinstance(seeds, int) else seeds
    return Plan(out.expanduser(), replace(config, out=None), plain(arms), tuple(seeds), plain(evaluations))


def run_ablation(
    plan: Plan,
    *,
    jobs: int = 0,
    launcher: Launcher = "local",
    slurm: Mapping[str, Any] | None = None,
    columns: Sequence[str] = (),
    console: Console | None = None,
) -> Ablation:
    """Run the unfinished jobs of a plan, then write its table; `jobs` run at a time, 0 means one per GPU."""
    console = console or ResilientConsole()
    if jobs < 0:
        raise UserError(f"jobs is {jobs}, but must not be negative")
    plan.check()
    unfinished = [job for job in plan.jobs if not job.is_done]
    _check_arms(plan.config, unfinished, on_this_machine=launcher == "local")
    plan.write()
    failures = _launch(plan, unfinished, launcher, jobs, slurm or {}, console)
    ablation = _collect(plan, failures, columns)
    ablation.table.write(plan.out)
    write_rows(plan.out / "results.csv", ablation.rows)
    say(console, f"\n{ablation.table.text().rstrip()}")
    return ablation


def _check_arms(config: Config, jobs: Sequence[Job], *, on_this_machine: bool) -> None:
    """Raise a UserError for a mistake in an arm before the first job; pack folders once, before many jobs need them."""
    if jobs and on_this_machine and config.device != "auto":
        choose_device(config.device)
    prepared: list[Any] = []
    for arm, job in {job.arm: job for job in jobs}.items():
        arm_config, data = job.config, _data_options(job.config)
        try:
            try_backbone(arm_config)
            reads_files = arm_config.images is not None or arm_config.videos is not None
            if reads_files and data not in prepared:
                prepare(arm_config)
                prepared.append(data)
        except UserError as error:
            raise UserError(f"arm {arm}: {error}") from None


def _data_options(config: Config) -> tuple[Any, ...]:
    """Return the options that decide which files are read, and how."""
    sections = [config.section(name) for name in TASK_SYMBOLS.values()]
    return config.images, config.videos, config.tasks, config.data, sections


def _launch(
    plan: Plan, unfinished: Sequence[Job], launcher: Launcher, jobs: int, slurm: Mapping[str, Any], console: Console
) -> Failures:
    local = launcher == "local"
    environments = job_environments(jobs, plan.config.device, len(unfinished)) if local else []
    how = f"{len(environments)} at a time" if local else "on the cluster"
    say(
        console,
        f"jobs: {len(plan.jobs)} (arms {len(plan.arms)} × seeds {len(plan.seeds)}), "
        f"{len(plan.jobs) - len(unfinished)} finished before"
        + (f", {how}; logs in {plan.out / LOGS}" if unfinished else ""),
    )
    width = max(len(str(job)) for job in plan.jobs)

    def notify(job: Job, status: str) -> None:
        say(console, f"{time.strftime('%H:%M:%S')}  {str(job).ljust(width)}  {status}")

    if not local:
        return run_slurm(unfinished, notify, slurm)
    if len(environments) == 1:
        return run_in_process(unfinished, notify)
    return run_processes(unfinished, notify, environments)


def _collect(plan: Plan, failures: Failures, columns: Sequence[str]) -> Ablation:
    finished, planned = [job for job in plan.jobs if job.is_trained], len(plan.seeds)
    figures: dict[str, dict[int, dict[str, float]]] = {arm: {} for arm in plan.arms}
    for job in finished:
        figures[job.arm][job.seed] = _figures(job)
    rows = {arm: _cells(by_seed.values()) for arm, by_seed in figures.items()}
    columns = list(columns) or _default_columns(plan, rows)
    table = Table(
        columns=columns,
        rows={**rows, START: _cells(_initial_figures(finished))},
        seeds={
            arm: str(planned) if len(by_seed) == planned else f"{len(by_seed)}/{planned}"
            for arm, by_seed in figures.items()
        },
        published={
            column: {arm: row[IN_TABLE_5[kind]] for arm, row in published("5").items()}
            for name, kind in _kinds(plan).items()
            for column in columns
            if kind in IN_TABLE_5 and column in _headlines(name, kind)
        },
        notes=_notes(plan, finished, columns),
        remarks=_remarks(finished),
    )
    return Ablation(plan, table, figures, failures)


def _figures(job: Job) -> dict[str, float]:
    """Return the last figures that the run has logged, and those of its evaluations."""
    figures = _logged(job.run.metrics())
    missing = list(job.missing_evaluations())
    for name in job.plan.evaluations:
        document = job.read_evaluation(name)
        if document is not None and name not in missing:
            figures |= flat_numbers({name: document["metrics"]})
    return figures


def _logged(log: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the last error of each task, on X_val only if it has no test set, and the monitor's last figures."""
    entries = list(log)
    figures: dict[str, float] = {}
    for kind in ("validation", "test"):
        figures |= {f"error.{entry['task']}": entry["error"] for entry in entries if entry["kind"] == kind}
    for entry in entries:
        if entry["kind"] == "monitor":
            scores = {key: value for key, value in entry.items() if key not in ("iteration", "kind", "seconds")}
            figures |= flat_numbers({"monitor": scores})
    return figures


def _initial_figures(jobs: Sequence[Job]) -> list[dict[str, float]]:
    """Return the figures at iteration 0 of each seed, averaged over the arms."""
    by_seed: dict[int, list[dict[str, float]]] = {}
    for job in jobs:
        initial = _logged(entry for entry in job.run.metrics() if entry["iteration"] == 0)
        by_seed.setdefault(job.seed, []).append(initial)
    return [{name: cell.mean for name, cell in _cells(figures).items()} for figures in by_seed.values()]


def _cells(figures: Collection[Mapping[str, float]]) -> dict[str, Cell]:
    names = dict.fromkeys(name for by_name in figures for name in by_name)
    return {name: Cell(tuple(by_name[name] for by_name in figures if name in by_name)) for name in names}


def _default_columns(plan: Plan, rows: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    metrics = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    columns = [f"error.{task}" for task in TASK_SYMBOLS.values() if f"error.{task}" in metrics]
    columns += [name for name in metrics if name == "monitor.top1"]
    headlines = [headline for name, kind in _kinds(plan).items() for headline in _headlines(name, kind)]
    return columns + [name for name in headlines if name in metrics]


def _kinds(plan: Plan) -> dict[str, str]:
    return {name: values.get(KIND, name) for name, values in plan.evaluations.items()}


def _headlines(name: str, kind: str) -> list[str]:
    return [f"{name}.{metric}" for metric in HEADLINES.get(kind, ())]


def _error_note(finished: Sequence[Job]) -> str:
    pairs = "for ordering tasks over all (permutation, sample) pairs"
    label = error_label(error_kind(job.run, task) for job in finished for task in tasks_of(job.run))
    if label == "error":
        return f"error: test error, or validation error where there is no pretext test set, {pairs}"
    return f"error: {label}, {pairs}"


def _remarks(finished: Sequence[Job]) -> dict[str, str]:
    """Return a sentence for each arm with a policy that never sampled anything but uniformly, with its seeds."""
    seeds: dict[str, list[int]] = {}
    for job in finished:
        config = job.config
        ordering = [task for task in config.task_names if isinstance(config.section(task), OrderingConfig)]
        has_policy = config.policy.sampler != "uniform" and bool(ordering)
        if has_policy and not any(has_acted(job.run, task) for task in ordering):
            seeds.setdefault(job.arm, []).append(job.seed)
    reason = "no error fell below policy.start_below of chance in time"
    return {
        arm: f"the policy never started (seeds {', '.join(map(str, idle))}), so sampling was uniform: {reason}"
        for arm, idle in seeds.items()
    }


def _notes(plan: Plan, finished: Sequence[Job], columns: Sequence[str]) -> list[str]:
    notes = [f"mean ± std (ddof 1) over the seeds {', '.join(map(str, plan.seeds))}"]
    if len(plan.seeds) == 1:
        notes = [f"one seed, {plan.seeds[0]}"]
    if any(column.startswith("error.") for column in columns):
        notes.append(_error_note(finished))
    for name in plan.evaluations:
        documents = [document for job in finished if (document := job.read_evaluation(name)) is not None]
        if documents:
            protocol = documents[0]["protocol"]
            label = protocol if protocol.startswith(name) else f"{name}: {protocol}"
            notes.append(f"{label} (preset {documents[0]['config']['preset']})")
    if any(kind in IN_TABLE_5 for kind in _kinds(plan).values()):
        notes.append(f"{PUBLISHED}: Tab. 5 of the paper, with its networks and its data")
    return notes
