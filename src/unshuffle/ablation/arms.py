"""What an ablation compares: arms (changes of the config) and evaluations (their options)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unshuffle.config import Config, OrderingConfig
from unshuffle.data.dataset import address_exists
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import DATA_OPTIONS, Evaluation, find_evaluation, with_preset
from unshuffle.options import merge, read_yaml

Values = dict[str, Any]
"""Keys and values as in a YAML file; sections are dicts."""
DATA = sorted(DATA_OPTIONS - {"weights"})
"""Options that name the data of an evaluation."""
KIND = "evaluation"
"""Key that names the evaluation which the options belong to, where the entry has another name."""


POLICY = "+P"
"""Ending of arms with a policy; the others sample uniformly."""
POLICY_SAMPLER = "rollouts"
"""Sampler of the arms with a policy where the config that all arms share samples uniformly."""
PAPER_ARMS = ("S", "S+P", "T", "T+P", "S&T", "S+T", "S+T+P")
"""The columns of Tab. 5 of the paper."""


def find_arms(names: Sequence[str], config: Config) -> dict[str, Values]:
    """Return the arms of those names, such as S+T+R or S+T+P, and all in each name that is a YAML file.

    By default they are the paper's. `config` is what they share; its sampler is the policy of arms with +P.
    """
    arms: dict[str, Values] = {}
    for name in names or PAPER_ARMS:
        if _is_file(name):
            arms |= _read_file(name, "arms")
        else:
            arms[name] = _task_arm(name, config)
    return arms


def _task_arm(name: str, shared: Config) -> Values:
    """Return an arm by its tasks, with a policy or with uniform sampling."""
    tasks = name.removesuffix(POLICY)
    config = Config(tasks=tasks)
    try:
        ordering = [task for task in config.task_names if isinstance(config.section(task), OrderingConfig)]
    except UserError:
        raise UserError(
            f"there is no arm '{name}': join tasks by + or &, with {POLICY} at the end for the policy, as in "
            f"{', '.join(PAPER_ARMS)}; or give a .yaml file of arms"
        ) from None
    if not name.endswith(POLICY):
        return {"tasks": tasks, "policy": {"sampler": "uniform"}}
    if not ordering:
        raise UserError(
            f"arm '{name}' has no ordering task, so there is nothing for the policy to sample: drop {POLICY}"
        )
    if shared.policy.sampler == "uniform":
        return {"tasks": tasks, "policy": {"sampler": POLICY_SAMPLER}}
    return {"tasks": tasks}


def find_evaluations(names: Sequence[str], common: Mapping[str, Any]) -> dict[str, Values]:
    """Return the evaluations of those names, and all in each name that is a YAML file, with their options.

    Each takes the common options that it has; common data only if it names none itself. Where an evaluation takes both
    class folders and a VOC devkit, and both are given, it uses the class folders.
    """
    chosen: dict[str, Values] = {}
    for name in names:
        chosen |= _read_file(name, "evaluations") if _is_file(name) else {name: {}}
    return {name: {**_usable(common, name, values), **values} for name, values in chosen.items()}


def _usable(common: Mapping[str, Any], name: str, values: Values) -> Values:
    fields = find_evaluation(values.get(KIND, name)).__dataclass_fields__
    usable = {key: value for key, value in common.items() if key in fields}
    for key in DATA:
        if values.keys() & set(DATA) or (key == "voc" and "train" in usable):
            usable.pop(key, None)
    return usable


def build_evaluation(name: str, values: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation of that name with these options."""
    options = dict(values)
    kind = find_evaluation(options.pop(KIND, name))
    try:
        return merge(with_preset(kind, {"preset": "paper", **options})[0], options)
    except UserError as error:
        raise UserError(f"evaluation {name}: {error}") from None


def check_data(name: str, evaluation: Evaluation) -> None:
    """Raise a UserError, before any training, if an evaluation has no data."""
    known = [key for key in DATA if key in type(evaluation).__dataclass_fields__]
    given = [getattr(evaluation, key) for key in known if getattr(evaluation, key) is not None]
    if not given:
        raise UserError(f"evaluation {name} has no data: give {' or '.join(known)}")
    for path in given:
        if not address_exists(path):
            raise UserError(f"evaluation {name}: {path} does not exist")


def plain(values: Mapping[str, Any]) -> Values:
    """Return a copy with paths as text and tuples as lists, as in a file."""
    copy: Values = json.loads(json.dumps(values, default=str))
    return copy


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def _read_file(name: str, kind: str) -> dict[str, Values]:
    path = Path(name).expanduser()
    entries = {str(key): {} if values is None else values for key, values in read_yaml(path, kind).items()}
    for key, values in entries.items():
        if not isinstance(values, dict):
            raise UserError(f"{path}: {key} must hold keys and values")
    return entries
