"""What an ablation compares: arms, which are changes of a config, and evaluations, which are options of one."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unshuffle.config import Tasks
from unshuffle.config_file import merge, read_yaml
from unshuffle.data.dataset import address_exists
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import DATA_OPTIONS, Evaluation, find_evaluation

Values = dict[str, Any]
"""Keys and values as a YAML file has them; sections are dicts."""
DATA = sorted(DATA_OPTIONS - {"weights"})
"""Options that name what an evaluation measures on."""
PLAN = "ablation.yaml"
"""The file of an ablation's folder that names its arms."""
KIND = "evaluation"
"""The key that says which evaluation the options are of, where its own name does not."""


def _arm(tasks: Tasks, sampler: str) -> Values:
    return {"tasks": tasks, "policy": {"sampler": sampler}}


PAPER_ARMS: dict[str, Values] = {
    "S": _arm("S", "uniform"),
    "S+P": _arm("S", "policy"),
    "T": _arm("T", "uniform"),
    "T+P": _arm("T", "policy"),
    "S&T": _arm("S&T", "uniform"),
    "S+T": _arm("S+T", "uniform"),
    "S+T+P": _arm("S+T", "policy"),
}
"""The columns of the paper's Tab. 5."""


def find_arms(names: Sequence[str]) -> dict[str, Values]:
    """The paper's arms by name, and all arms of each name that is a YAML file; without names all of the paper's."""
    arms: dict[str, Values] = {}
    for name in names or PAPER_ARMS:
        if _is_file(name):
            arms |= _read(name, "arms")
        elif name in PAPER_ARMS:
            arms[name] = PAPER_ARMS[name]
        else:
            raise UserError(f"there is no arm '{name}'; there are {', '.join(PAPER_ARMS)}, and yours in a .yaml file")
    return arms


def find_evaluations(names: Sequence[str], common: Mapping[str, Any]) -> dict[str, Values]:
    """Evaluations by name, and all of each name that is a YAML file, with the common options that they can use.

    Data is common only to those that do not name their own; what can use folders by class and a VOC devkit, and is
    given both, uses the folders.
    """
    chosen: dict[str, Values] = {}
    for name in names:
        chosen |= _read(name, "evaluations") if _is_file(name) else {name: {}}
    return {name: {**_usable(common, name, values), **values} for name, values in chosen.items()}


def _usable(common: Mapping[str, Any], name: str, values: Values) -> Values:
    fields = find_evaluation(values.get(KIND, name)).__dataclass_fields__
    usable = {key: value for key, value in common.items() if key in fields}
    for key in DATA:
        if values.keys() & set(DATA) or (key == "voc" and "train" in usable):
            usable.pop(key, None)
    return usable


def build_evaluation(name: str, values: Mapping[str, Any]) -> Evaluation:
    """The evaluation of that name and options."""
    options = dict(values)
    kind = find_evaluation(options.pop(KIND, name))
    try:
        return merge(kind.quick() if options.get("preset") == "quick" else kind(), options)
    except UserError as error:
        raise UserError(f"evaluation {name}: {error}") from None


def check_data(name: str, evaluation: Evaluation) -> None:
    """Find out before the training, not after it, that an evaluation has nothing to measure on."""
    known = [key for key in DATA if key in type(evaluation).__dataclass_fields__]
    given = [getattr(evaluation, key) for key in known if getattr(evaluation, key) is not None]
    if not given:
        raise UserError(f"evaluation {name}: say what to measure on: give {' or '.join(known)}")
    for path in given:
        if not address_exists(path):
            raise UserError(f"evaluation {name}: {path} does not exist")


def plain(values: Mapping[str, Any]) -> Values:
    """The same with paths as text and tuples as lists, as a file would hold it."""
    copy: Values = json.loads(json.dumps(values, default=str))
    return copy


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def _read(name: str, what: str) -> dict[str, Values]:
    path = Path(name).expanduser()
    found = {str(key): {} if values is None else values for key, values in read_yaml(path, what).items()}
    for key, values in found.items():
        if not isinstance(values, dict):
            raise UserError(f"{path}: {key} must hold keys and values")
    return found


def folder_name(name: str) -> str:
    """A name that every file system and shell takes as it is: S&T becomes S-and-T."""
    safe = re.sub(r"[^A-Za-z0-9.+_-]", "_", name.replace("&", "-and-"))
    if not safe.strip("._-") or safe.startswith((".", "-")):
        raise UserError(f"'{name}' is no name for an arm or an evaluation: begin it with a letter or a digit")
    return safe


def arms_in(folder: Path) -> dict[str, str]:
    """The arms of an ablation's folder in their order, by the names of their own folders; none if it is no ablation."""
    file = folder / PLAN
    arms = read_yaml(file, "ablation").get("arms") if file.is_file() else None
    return {folder_name(name): name for name in arms or {}}
