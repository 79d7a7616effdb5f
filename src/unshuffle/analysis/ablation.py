"""The ablation: arms × seeds, each trained and evaluated, and the table of them (Tab. 5 of the paper)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from unshuffle.accelerator import choose_device
from unshuffle.analysis.arms import KIND, PAPER_ARMS, Values, find_arms, find_evaluations, plain
from unshuffle.analysis.launcher import Failures, Launcher, places, run_here, run_processes, run_slurm
from unshuffle.analysis.plan import LOGS, Job, Plan
from unshuffle.analysis.result import Row, write_rows
from unshuffle.analysis.table import PUBLISHED, Cell, Table, numbers
from unshuffle.config import Config, preset_config
from unshuffle.config_file import merge
from unshuffle.console import ResilientConsole
from unshuffle.data.prepare import prepare
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import published
from unshuffle.pretraining import try_backbone

__all__ = ["PAPER_ARMS", "Ablation", "ablate", "make_plan", "run_ablation"]

START = "iteration 0"
"""The row of what all arms begin with."""
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
"""The metrics of each evaluation that have a column of the table unless others are asked for."""
IN_TABLE_5 = {"voc-classification": "classification", "action": "UCF-101"}
"""The evaluations that the paper's own ablation has, and their names there."""


@dataclass(frozen=True)
class Ablation:
    """What an ablation found."""

    plan: Plan
    table: Table
    figures: dict[str, dict[int, dict[str, float]]]
    """Every metric of every finished run, by arm and seed."""
    failures: Failures
    """A sentence for each job that failed, by "ARM, seed N"."""

    @property
    def protocol(self) -> str:
        """What was compared, in a line."""
        arms, seeds = ", ".join(self.plan.arms), ", ".join(map(str, self.plan.seeds))
        return "; ".join([f"arms {arms}", f"seeds {seeds}", *self.table.notes[1:]])

    @property
    def metrics(self) -> dict[str, Any]:
        """All figures by arm and metric: their mean, standard deviation and the value of each seed."""
        return {arm: _summary(by_seed) for arm, by_seed in self.figures.items()}

    @property
    def rows(self) -> list[Row]:
        """A line for each figure."""
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
    """Train every arm with every seed, evaluate them all, and write the table into `out`.

    Arms are names of the paper's, or changes of the config by name: `{"inverse": {"policy": {"sampler": "inverse"}}}`;
    the two can be joined, `{**PAPER_ARMS, "mine": ...}`. Evaluations are names, or options by name. Further options are
    the fields of `unshuffle.config.Config`, as for `unshuffle.pretrain`. With `jobs=1` all is done in this process.
    What is finished in `out` is not done again; a job that fails is listed in `failures` and does not stop the others.
    """
    plan = make_plan(
        Path(out),
        merge(preset_config(preset), plain(options)),
        arms if isinstance(arms, Mapping) else find_arms(arms),
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
    """A plan in plain values; a number of seeds counts from the config's own."""
    chosen = range(config.seed, config.seed + seeds) if isinstance(seeds, int) else seeds
    return Plan(out.expanduser(), replace(config, out=None), plain(arms), tuple(chosen), plain(evaluations))


def run_ablation(
    plan: Plan,
    *,
    jobs: int = 0,
    launcher: Launcher = "local",
    slurm: Mapping[str, Any] | None = None,
    columns: Sequence[str] = (),
    console: Console | None = None,
) -> Ablation:
    """Do what is left of a plan, then write its table; `jobs` is how many run at a time, 0 one for each GPU."""
    console = console or ResilientConsole()
    if jobs < 0:
        raise UserError(f"jobs is {jobs}, but must not be negative")
    plan.check()
    left = [job for job in plan.jobs if not job.is_done]
    _try_arms(plan.config, left, on_this_machine=launcher == "local")
    plan.write()
    failures = _launch(plan, left, launcher, jobs, slurm or {}, console)
    found = _collect(plan, failures, columns)
    found.table.write(plan.out)
    write_rows(plan.out / "results.csv", found.rows)
    console.print("", found.table.text(), sep="\n", highlight=False, soft_wrap=True, markup=False, end="")
    return found


def _try_arms(config: Config, jobs: Sequence[Job], *, on_this_machine: bool) -> None:
    """Find what is misspelt before the first job; pack folders here and once, before many jobs want to."""
    if jobs and on_this_machine and config.device != "auto":
        choose_device(config.device)
    prepared: list[Config] = []
    for arm, job in {job.arm: job for job in jobs}.items():
        one = job.config
        try:
            try_backbone(one)
            reads_files = one.images is not None or one.videos is not None
            if reads_files and not any(_same_data(one, other) for other in prepared):
                prepare(one)
                prepared.append(one)
        except UserError as error:
            raise UserError(f"arm {arm}: {error}") from None


def _same_data(one: Config, other: Config) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("images", "videos", "tasks", "data", "shuffle"))


def _launch(
    plan: Plan, left: Sequence[Job], launcher: Launcher, jobs: int, slurm: Mapping[str, Any], console: Console
) -> Failures:
    where = places(jobs, plan.config.device, len(left)) if launcher == "local" else []
    how = f"{len(where)} at a time" if launcher == "local" else "on the cluster"
    done = len(plan.jobs) - len(left)
    console.print(
        f"jobs: {len(plan.jobs)} (arms {len(plan.arms)} × seeds {len(plan.seeds)}), {done} done before"
        + (f", {how}; logs in {plan.out / LOGS}" if left else ""),
        highlight=False,
        soft_wrap=True,
    )
    width = max(len(str(job)) for job in plan.jobs)

    def tell(job: Job, state: str) -> None:
        line = f"{time.strftime('%H:%M:%S')}  {str(job).ljust(width)}  {state}"
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    if launcher == "slurm":
        return run_slurm(left, tell, slurm)
    return run_here(left, tell) if len(where) == 1 else run_processes(left, tell, where)


def _collect(plan: Plan, failures: Failures, columns: Sequence[str]) -> Ablation:
    finished = [job for job in plan.jobs if job.is_trained]
    figures: dict[str, dict[int, dict[str, float]]] = {arm: {} for arm in plan.arms}
    for job in finished:
        figures[job.arm][job.seed] = _figures(job)
    rows = {arm: _cells(by_seed) for arm, by_seed in figures.items()}
    chosen = list(columns) or _default_columns(plan, rows)
    table = Table(
        columns=chosen,
        rows={**rows, START: _cells(_beginnings(finished))},
        seeds={arm: _count(len(by_seed), len(plan.seeds)) for arm, by_seed in figures.items()},
        published={
            column: {arm: row[IN_TABLE_5[kind]] for arm, row in published("5").items()}
            for name, kind in _kinds(plan).items()
            for column in chosen
            if kind in IN_TABLE_5 and column in _headlines(name, kind)
        },
        notes=_notes(plan, finished, chosen),
    )
    return Ablation(plan, table, figures, failures)


def _count(found: int, wanted: int) -> str:
    return str(wanted) if found == wanted else f"{found}/{wanted}"


def _figures(job: Job) -> dict[str, float]:
    """The last figures that the run has logged, and those of its evaluations."""
    figures = {f"error.{entry['task']}": entry["error"] for entry in job.run.metrics("validation")}
    for entry in job.run.metrics("monitor"):
        figures |= _monitored(entry)
    missing = list(job.missing_evaluations())
    for name in job.plan.evaluations:
        document = job.evaluated(name)
        if document is not None and name not in missing:
            figures |= numbers({name: document["metrics"]})
    return figures


def _monitored(entry: dict[str, Any]) -> dict[str, float]:
    return numbers({"monitor": {key: value for key, value in entry.items() if key not in ("iteration", "kind")}})


def _beginnings(jobs: Sequence[Job]) -> dict[int, dict[str, float]]:
    """The figures at iteration 0 by seed, the mean over the arms that have them."""
    found: dict[int, dict[str, list[float]]] = {}
    for job in jobs:
        by_name = found.setdefault(job.seed, {})
        for entry in job.run.metrics():
            if entry["iteration"] == 0 and entry["kind"] == "validation":
                by_name.setdefault(f"error.{entry['task']}", []).append(entry["error"])
            elif entry["iteration"] == 0 and entry["kind"] == "monitor":
                for name, value in _monitored(entry).items():
                    by_name.setdefault(name, []).append(value)
    return {seed: {name: fmean(values) for name, values in by_name.items()} for seed, by_name in found.items()}


def _cells(by_seed: Mapping[int, Mapping[str, float]]) -> dict[str, Cell]:
    names = dict.fromkeys(name for figures in by_seed.values() for name in figures)
    return {name: Cell(tuple(figures[name] for figures in by_seed.values() if name in figures)) for name in names}


def _summary(by_seed: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    return {
        name: {
            "mean": cell.mean,
            "std": cell.std,
            "seeds": {str(seed): figures[name] for seed, figures in by_seed.items() if name in figures},
        }
        for name, cell in _cells(by_seed).items()
    }


def _default_columns(plan: Plan, rows: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    wanted = ["error.spatial", "error.temporal", "monitor.top1"]
    for name, kind in _kinds(plan).items():
        wanted += _headlines(name, kind)
    return [name for name in wanted if any(name in cells for cells in rows.values())]


def _kinds(plan: Plan) -> dict[str, str]:
    return {name: values.get(KIND, name) for name, values in plan.evaluations.items()}


def _headlines(name: str, kind: str) -> list[str]:
    return [f"{name}.{metric}" for metric in HEADLINES.get(kind, ())]


def _notes(plan: Plan, finished: Sequence[Job], columns: Sequence[str]) -> list[str]:
    notes = [f"mean ± standard deviation (ddof 1) over the seeds {', '.join(map(str, plan.seeds))}"]
    if len(plan.seeds) == 1:
        notes = [f"one seed, {plan.seeds[0]}"]
    if any(column.startswith("error.") for column in columns):
        notes.append("error: share of all (permutation, sample) pairs of Ψ × X_val that were not recognised")
    for name in plan.evaluations:
        documents = [document for job in finished if (document := job.evaluated(name)) is not None]
        if documents:
            protocol = documents[0]["protocol"]
            named = protocol if protocol.startswith(name) else f"{name}: {protocol}"
            notes.append(f"{named} (preset {documents[0]['config']['preset']})")
    if any(kind in IN_TABLE_5 for kind in _kinds(plan).values()):
        notes.append(f"{PUBLISHED}: Tab. 5 of the paper, of its networks and its data")
    return notes
