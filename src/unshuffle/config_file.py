"""Configs as YAML: what a run folder writes, `--config` reads back, and nothing misspelt gets through."""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from unshuffle.config import Config, preset_config
from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.wording import did_you_mean

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain values that YAML and JSON can hold."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def write_config(config: Config, path: Path) -> None:
    """Write the whole config."""
    write_yaml(path, to_dict(config))


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    """Write plain values; a kill leaves the old file or the new one, never half of one."""
    with atomic_write(path) as draft:
        draft.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_config(path: Path) -> Config:
    """Read a config that `write_config` wrote or a person did; missing keys take the preset's values."""
    values = read_yaml(path, "config")
    try:
        return merge(preset_config(values.get("preset", "demo")), values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Keys and values of a file that a person may have written; `what` it is, to name it if it is not there."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {what} file {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values")
    return values


def merge(config: T, values: dict[str, Any], where: str = "") -> T:
    """The dataclass with the given values in place of its own, each checked against its field's type."""
    hints = typing.get_type_hints(type(config))
    changes = {}
    for key, value in values.items():
        if key not in hints:
            raise UserError(f"unknown key {where}{key}{did_you_mean(str(key), hints, where)}")
        changes[key] = _typed(value, hints[key], getattr(config, key), f"{where}{key}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _typed(value: Any, hint: Any, current: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{where} must hold keys and values")
        return merge(current, value, f"{where}.")
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (hint,) = [option for option in get_args(hint) if option is not type(None)]
        return _typed(value, hint, current, where)
    if origin is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} is {value!r}, but must be one of {', '.join(map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} is {value!r}, but must be a list")
        return tuple(_typed(entry, get_args(hint)[0], None, where) for entry in value)
    return _scalar(value, hint, where)


def _scalar(value: Any, hint: type, where: str) -> Any:
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML reads 5e-4 as a string
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    raise UserError(f"{where} is {value!r}, but must be {names[hint]}")


def differences(before: Config, after: Config) -> list[str]:
    """Dotted names of the fields in which two configs differ."""

    def compare(one: dict[str, Any], other: dict[str, Any], where: str) -> list[str]:
        names = []
        for key, value in one.items():
            if isinstance(value, dict):
                names += compare(value, other[key], f"{where}{key}.")
            elif value != other[key]:
                names.append(f"{where}{key}")
        return names

    return compare(to_dict(before), to_dict(after), "")
