"""The plan of an ablation, its jobs, and how far each has come by the files in its folder."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.ablation.arms import KIND, Values, build_evaluation, check_data, plain
from unshuffle.config import Config, check, merge_sections, preset_config
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import Evaluation, Result
from unshuffle.files import atomic_write, check_folder, write_measurement
from unshuffle.options import read_yaml, to_dict, write_yaml
from unshuffle.pretraining import changed_options
from unshuffle.runs.checkpoints import checkpoint_iterations
from unshuffle.runs.folders import PLAN_NAME, folder_name
from unshuffle.runs.run import Run

LOGS = "logs"


@dataclass(frozen=True)
class Plan:
    """Arms, seeds, the config that they share, and evaluations."""

    out: Path
    config: Config
    """The config that all arms share."""
    arms: dict[str, Values]
    """Changes of the config, by arm."""
    seeds: tuple[int, ...]
    evaluations: dict[str, Values]
    """Options, by evaluation."""

    @property
    def jobs(self) -> list["Job"]:
        """One job per arm and seed; all arms of a seed come before the next seed."""
        return [Job(self, arm, seed) for seed in self.seeds for arm in self.arms]

    def to_dict(self) -> Values:
        """Return the plan as plain values."""
        return {
            "config": to_dict(self.config),
            "arms": self.arms,
            "seeds": list(self.seeds),
            "evaluations": self.evaluations,
        }

    def write(self) -> None:
        """Write the plan into its folder, where jobs in other processes and the report read it."""
        (self.out / LOGS).mkdir(parents=True, exist_ok=True)
        write_yaml(self.out / PLAN_NAME, self.to_dict())

    @classmethod
    def read(cls, out: Path) -> "Plan":
        """Return the plan in an ablation's folder."""
        values = read_yaml(out / PLAN_NAME, "ablation")
        config = merge_sections(preset_config(values["config"]["preset"]), values["config"])
        return cls(out, config, values["arms"], tuple(values["seeds"]), values["evaluations"])

    def check(self) -> None:
        """Raise a UserError for what cannot work, before anything is trained."""
        if not (self.arms and self.seeds):
            raise UserError("an ablation needs at least one arm and one seed")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"a seed is given twice: {', '.join(map(str, self.seeds))}")
        check_folder(self.out, "--out")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / PLAN_NAME).exists():
            raise UserError(f"{self.out} holds other files and no ablation: choose another --out")
        _check_names(self.arms, LOGS)
        _check_names(self.evaluations, "error", "monitor")  # names of metrics that every run has
        for name, values in self.evaluations.items():
            check_data(name, build_evaluation(name, values))
        for job in self.jobs:
            job.check()


def _check_names(names: Iterable[str], *reserved: str) -> None:
    taken = dict(zip(reserved, reserved, strict=True))
    for name in names:
        folder = folder_name(name).casefold()  # some file systems do not distinguish s and S
        if folder in taken:
            raise UserError(f"'{name}' and '{taken[folder]}' would share a folder: rename one of them")
        taken[folder] = name


@dataclass(frozen=True)
class Job:
    """One arm with one seed: a run and its evaluations."""

    plan: Plan
    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.plan.out / folder_name(self.arm) / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        """File of what the job prints."""
        return self.plan.out / LOGS / f"{folder_name(self.arm)}-seed-{self.seed}.log"

    @property
    def run(self) -> Run:
        """The run, which need not exist yet."""
        return Run(self.folder)

    @cached_property
    def config(self) -> Config:
        """The config of the run."""
        changes = self.plan.arms[self.arm]
        for key in ("seed", "out"):
            if key in changes:
                raise UserError(f"arm {self.arm}: {key} cannot be changed by an arm")
        try:
            config = replace(merge_sections(self.plan.config, changes), seed=self.seed, out=self.folder)
            check(config)
        except UserError as error:
            raise UserError(f"arm {self.arm}: {error}") from None
        return config

    def check(self) -> None:
        """Raise a UserError if the config cannot work, or if the run was started with another."""
        config = self.config
        if not self.run.config_file.exists():
            return
        changed = changed_options(self.run.config, config)
        if changed:
            raise UserError(f"{self.folder} was started with another {', '.join(changed)}: choose another --out")

    @property
    def is_trained(self) -> bool:
        """Whether the run is finished; its weights are written last."""
        return self.run.weights.is_file()

    @property
    def is_done(self) -> bool:
        """Whether the run is trained and all evaluations are made."""
        return self.is_trained and not list(self.missing_evaluations())

    @property
    def iteration(self) -> int:
        """Iteration from which the training would continue."""
        return max(checkpoint_iterations(self.run.checkpoints), default=0)

    def evaluation(self, name: str) -> Evaluation:
        """Return the evaluation of that name, with this job's weights and seed."""
        values = self.plan.evaluations[name]
        evaluation = build_evaluation(name, {"device": self.config.device, "seed": self.seed, **values})
        digest = hashlib.sha256(json.dumps(_identity(evaluation)).encode()).hexdigest()[:8]
        # one folder per set of options: the intermediate files of another set would not fit
        work = self.folder / "evaluations" / f"{folder_name(name)}-{digest}"
        return replace(evaluation, weights=str(self.folder), out=work, json=self._evaluation_file(name))

    def missing_evaluations(self) -> Iterator[str]:
        """Yield the evaluations that have not been made, or not with these options."""
        for name in self.plan.evaluations:
            document, options = self.read_evaluation(name), _identity(self.evaluation(name))
            if document is None or any(document["config"].get(key) != value for key, value in options.items()):
                yield name

    def read_evaluation(self, name: str) -> dict[str, Any] | None:
        """Return the JSON document of an evaluation; None if it has not been made, or its file is damaged."""
        file = self._evaluation_file(name)
        try:
            document = json.loads(file.read_bytes()) if file.is_file() else None
        except ValueError:
            return None
        complete = isinstance(document, dict) and {"protocol", "config", "metrics"} <= document.keys()
        return document if complete else None

    def write_evaluation(self, name: str, evaluation: Evaluation, result: Result) -> None:
        """Write the JSON document of an evaluation."""
        kind, file = self.plan.evaluations[name].get(KIND, name), self._evaluation_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft:
            write_measurement(draft, f"evaluate {kind}", result.protocol, to_dict(evaluation), result.metrics)

    def _evaluation_file(self, name: str) -> Path:
        return self.folder / "evaluations" / f"{folder_name(name)}.json"


def _identity(evaluation: Evaluation) -> Values:
    """Return the options that decide the figures of this job's weights, as read back from JSON."""
    ignored = evaluation.incidental | {"weights"}
    return {key: value for key, value in plain(to_dict(evaluation)).items() if key not in ignored}
