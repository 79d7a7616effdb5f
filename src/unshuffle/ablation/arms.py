"""What an ablation compares: arms (changes of the config) and evaluations (their options)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unshuffle.config import Tasks
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import PLACES, Evaluation, find_evaluation
from unshuffle.options import merge, read_yaml

Values = dict[str, Any]
"""Keys and values as in a YAML file; sections are dicts."""
DATA = sorted(PLACES - {"weights"})
"""Options that name the data of an evaluation."""
KIND = "evaluation"
"""Key that names the evaluation which the options belong to, where the entry has another name."""


def _arm(tasks: Tasks, *, policy: bool) -> Values:
    """Return an arm with the sampler of the preset, or with uniform sampling."""
    return {"tasks": tasks} if policy else {"tasks": tasks, "policy": {"sampler": "uniform"}}


PAPER_ARMS: dict[str, Values] = {
    "S": _arm("S", policy=False),
    "S+P": _arm("S", policy=True),
    "T": _arm("T", policy=False),
    "T+P": _arm("T", policy=True),
    "S&T": _arm("S&T", policy=False),
    "S+T": _arm("S+T", policy=False),
    "S+T+P": _arm("S+T", policy=True),
}
"""The columns of Tab. 5 of the paper."""


def find_arms(names: Sequence[str]) -> dict[str, Values]:
    """Return the paper's arms of those names, and all arms in each name that is a YAML file; by default the paper's."""
    arms: dict[str, Values] = {}
    for name in names or PAPER_ARMS:
        if _is_file(name):
            arms |= _read_file(name, "arms")
        elif name in PAPER_ARMS:
            arms[name] = PAPER_ARMS[name]
        else:
            raise UserError(
                f"there is no arm '{name}': choose among {', '.join(PAPER_ARMS)}, or give a .yaml file of arms"
            )
    return arms


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
        return merge(kind.quick() if options.get("preset") == "quick" else kind(), options)
    except UserError as error:
        raise UserError(f"evaluation {name}: {error}") from None


def check_data(name: str, evaluation: Evaluation) -> None:
    """Raise a UserError, before any training, if an evaluation has no data."""
    known = [key for key in DATA if key in type(evaluation).__dataclass_fields__]
    given = [getattr(evaluation, key) for key in known if getattr(evaluation, key) is not None]
    if not given:
        raise UserError(f"evaluation {name} has no data: give {' or '.join(known)}")
    for path in given:
        if not Path(path).expanduser().exists():
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
