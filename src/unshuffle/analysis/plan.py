"""The plan of an ablation, and what the disk says about how far each job of it has come."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.analysis.arms import KIND, PLAN, Values, build_evaluation, check_data, folder_name, plain
from unshuffle.config import Config, check, preset_config
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import Evaluation, Result
from unshuffle.files import atomic_write, check_folder, write_measurement
from unshuffle.options import differences, merge, read_yaml, to_dict, write_yaml
from unshuffle.pretraining import CHANGEABLE_ON_RESUME
from unshuffle.run import Run
from unshuffle.training.checkpoint import list_checkpoints

LOGS = "logs"


@dataclass(frozen=True)
class Plan:
    """Which arms are trained with which seeds from which config, and how they are evaluated."""

    out: Path
    config: Config
    """What all arms share."""
    arms: dict[str, Values]
    """The changes that make each arm."""
    seeds: tuple[int, ...]
    evaluations: dict[str, Values]
    """The options of each evaluation."""

    @property
    def jobs(self) -> list["Job"]:
        """One for each arm and seed; all arms of one seed come before the next seed."""
        return [Job(self, arm, seed) for seed in self.seeds for arm in self.arms]

    def to_dict(self) -> Values:
        """The plan as plain values."""
        return {
            "config": to_dict(self.config),
            "arms": self.arms,
            "seeds": list(self.seeds),
            "evaluations": self.evaluations,
        }

    def write(self) -> None:
        """Write the plan into its folder, for jobs in other processes and for readers."""
        (self.out / LOGS).mkdir(parents=True, exist_ok=True)
        write_yaml(self.out / PLAN, self.to_dict())

    @classmethod
    def read(cls, out: Path) -> "Plan":
        """The plan of an ablation's folder."""
        values = read_yaml(out / PLAN, "ablation")
        config = merge(preset_config(values["config"]["preset"]), values["config"])
        return cls(out, config, values["arms"], tuple(values["seeds"]), values["evaluations"])

    def check(self) -> None:
        """Refuse what cannot work before anything is done."""
        if not (self.arms and self.seeds):
            raise UserError("an ablation needs one arm and one seed at least")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"a seed is named twice: {', '.join(map(str, self.seeds))}")
        self._check_folder()
        _check_names(self.arms, taken={LOGS: LOGS})
        _check_names(self.evaluations, taken={"error": "error", "monitor": "monitor"})  # metrics that runs have
        for name, values in self.evaluations.items():
            check_data(name, build_evaluation(name, values))
        for job in self.jobs:
            job.check()

    def _check_folder(self) -> None:
        check_folder(self.out, "--out")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / PLAN).exists():
            raise UserError(f"{self.out} holds other things and no ablation: choose another --out")


def _check_names(names: Iterable[str], taken: dict[str, str]) -> None:
    for name in names:
        folder = folder_name(name).casefold()  # some file systems take s and S for the same
        if folder in taken:
            raise UserError(f"'{name}' and '{taken[folder]}' would share a place: rename one")
        taken[folder] = name


@dataclass(frozen=True)
class Job:
    """One arm with one seed: a run, and its evaluations."""

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
        """What the job has printed."""
        return self.plan.out / LOGS / f"{folder_name(self.arm)}-seed-{self.seed}.log"

    @property
    def run(self) -> Run:
        """The run, begun or not."""
        return Run(self.folder)

    @cached_property
    def config(self) -> Config:
        """The config of the run."""
        changes = self.plan.arms[self.arm]
        for key in ("seed", "out"):
            if key in changes:
                raise UserError(f"arm {self.arm}: {key} is not for an arm to choose")
        try:
            config = replace(merge(self.plan.config, changes), seed=self.seed, out=self.folder)
            check(config)
        except UserError as error:
            raise UserError(f"arm {self.arm}: {error}") from None
        return config

    def check(self) -> None:
        """Refuse a config that cannot work, or that is not the one that the run was begun with."""
        wanted = self.config
        if not self.run.config_file.exists():
            return
        changed = [name for name in differences(self.run.config, wanted) if not name.startswith(CHANGEABLE_ON_RESUME)]
        if changed:
            raise UserError(f"{self.folder} was begun with another {', '.join(changed)}: choose another --out")

    @property
    def is_trained(self) -> bool:
        """Whether the run has ended; its weights are written last, and whole."""
        return self.run.weights.is_file()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_trained and not list(self.missing_evaluations())

    @property
    def iteration(self) -> int:
        """Where the training would go on."""
        newest = list_checkpoints(self.run.checkpoints)[-1:]
        return int(newest[0].stem) if newest else 0

    def evaluation(self, name: str) -> Evaluation:
        """The evaluation of that name, of this job's weights and with its seed."""
        values = self.plan.evaluations[name]
        evaluation = build_evaluation(name, {"device": self.config.device, "seed": self.seed, **values})
        digest = hashlib.sha256(json.dumps(_identity(evaluation)).encode()).hexdigest()[:8]
        # a folder of their own for these options: what others have left would not fit
        work = self.folder / "evaluations" / f"{folder_name(name)}-{digest}"
        return replace(evaluation, weights=str(self.folder), out=work, json=self._evaluation_file(name))

    def missing_evaluations(self) -> Iterator[str]:
        """Names of the evaluations that have not been made, or not with these options."""
        for name in self.plan.evaluations:
            done, wanted = self.evaluated(name), _identity(self.evaluation(name))
            if done is None or any(done["config"].get(key) != value for key, value in wanted.items()):
                yield name

    def evaluated(self, name: str) -> dict[str, Any] | None:
        """The document that an evaluation has left, if there is one."""
        file = self._evaluation_file(name)
        document: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
        return document

    def keep(self, name: str, evaluation: Evaluation, result: Result) -> None:
        """Write the document of an evaluation, whole or not at all."""
        kind, file = self.plan.evaluations[name].get(KIND, name), self._evaluation_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft:
            write_measurement(draft, f"evaluate {kind}", result.protocol, to_dict(evaluation), result.metrics)

    def _evaluation_file(self, name: str) -> Path:
        return self.folder / "evaluations" / f"{folder_name(name)}.json"


def _identity(evaluation: Evaluation) -> Values:
    """The options that decide the figures of this job's weights, as a JSON file would give them back."""
    ignored = evaluation.incidental | {"weights"}
    return {key: value for key, value in plain(to_dict(evaluation)).items() if key not in ignored}
