"""Dataclass trees as options: plain values, YAML files, types and ranges of fields, differences."""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.wording import counted, did_you_mean, os_error_sentence

T = TypeVar("T")
_LIMITS = {
    Ge: (operator.ge, "{} or more"),
    Gt: (operator.gt, "above {}"),
    Le: (operator.le, "at most {}"),
    Lt: (operator.lt, "below {}"),
    MinLen: (operator.ge, "{} or more"),
    MaxLen: (operator.le, "at most {}"),
}
"""The annotations that bound a number or the length of a tuple."""
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def field_types(options: Any) -> dict[str, Any]:
    """Return the type hint of each field of a dataclass or of its instance, with its annotations."""
    hints = typing.get_type_hints(options if isinstance(options, type) else type(options), include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(options)}


def plain_type(hint: Any) -> tuple[Any, bool]:
    """Return a type hint without annotations and without `| None`, and whether None was allowed.

    Of `T | tuple[T, ...]` it returns the tuple: see `takes_one_or_several`.
    """
    optional = False
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif get_origin(hint) in (Union, types.UnionType):
            *_, several = members = [member for member in get_args(hint) if member is not type(None)]
            optional = optional or len(members) < len(get_args(hint))
            hint = several
        else:
            return hint, optional


def takes_one_or_several(hint: Any) -> bool:
    """Return whether a hint is `T | tuple[T, ...]`: one value stays as it is, several are a tuple."""
    members = [plain_type(member)[0] for member in get_args(hint) if member is not type(None)]
    return len(members) == 2 and get_origin(members[1]) is tuple


def to_dict(options: Any) -> dict[str, Any]:
    """Return a dataclass as plain values that YAML and JSON can hold."""
    return {field.name: _plain(getattr(options, field.name)) for field in dataclasses.fields(options)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Return the dotted names of the fields in which two trees of the same class differ.

    A mapping holds sections that are options under their own names, without that of its field.
    """
    names = []
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(old):
            names += differences(old, new, f"{where}{field.name}.")
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            names += sorted(f"{where}{name}" for name in old.keys() ^ new.keys())
            for name in sorted(old.keys() & new.keys()):
                names += differences(old[name], new[name], f"{where}{name}.")
        elif _plain(old) != _plain(new):
            names.append(f"{where}{field.name}")
    return names


def write_config(config: Any, path: Path) -> None:
    """Write a dataclass tree as YAML, with every field."""
    write_yaml(path, to_dict(config))


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice, as `read_yaml` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """Refuses aliases: a few of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {event.start_mark.line + 1} refers to the alias *{event.anchor}: write it out")
        return super().compose_node(parent, index)


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    """Write plain values as YAML; an interruption leaves the old file or the new one, never half of one."""
    with atomic_write(path) as draft:
        text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        draft.write_text(text, encoding="utf-8")


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """Read the keys and values of a YAML file; `kind` names it in the error if it does not exist."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a safe loader)
    except FileNotFoundError:
        raise UserError(f"there is no {kind} file {path}") from None
    except RecursionError:
        raise UserError(f"{path} cannot be read as YAML: it is nested too deeply") from None
    except OSError as error:
        raise UserError(os_error_sentence(error, "read")) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or no such date
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values")
    return values


def merge(options: T, values: dict[str, Any], where: str = "") -> T:
    """Return the dataclass with the given values in place of its own, each checked against its field's type."""
    hints = field_types(options)
    changes = {}
    for key, value in values.items():
        if key not in hints:
            raise UserError(f"unknown key {where}{key}{did_you_mean(str(key), hints, where)}")
        changes[key] = typed(value, hints[key], f"{where}{key}", getattr(options, key))
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]


def typed(value: Any, hint: Any, name: str, current: Any = None) -> Any:
    """Return a value of YAML as a field's type wants it, or raise a UserError that names the field.

    `current` is the field's present value, into which the values of a section are merged.
    """
    one_or_several = takes_one_or_several(hint)
    hint, optional = plain_type(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{name} must hold keys and values")
        return merge(current, value, f"{name}.")
    if value is None and optional:
        return None
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{name} is {value!r}, but must be one of {', '.join(map(str, get_args(hint)))}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            if one_or_several:
                return typed(value, get_args(hint)[0], name)
            raise UserError(f"{name} is {value!r}, but must be a list")
        entries = tuple(typed(entry, get_args(hint)[0], name) for entry in value)
        return entries[0] if one_or_several and len(entries) == 1 else entries
    return _scalar(value, hint, name)


def _scalar(value: Any, hint: type, name: str) -> Any:
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):  # YAML reads 5e-4 as a string
        with suppress(ValueError):
            return float(value)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise UserError(f"{name} is {value!r}, but must be {_TYPE_NAMES[hint]}")


def check_bounds(options: Any, where: str = "") -> None:
    """Raise a UserError for the first field outside the range that it is annotated with, such as `Ge(1)`."""
    for name, hint in field_types(options).items():
        _check_field(getattr(options, name), hint, f"{where}{name}")


def _check_field(value: Any, hint: Any, name: str) -> None:
    if dataclasses.is_dataclass(value):
        check_bounds(value, f"{name}.")
    elif isinstance(value, tuple):
        _check_range(len(value), f"has {counted(len(value), 'values')}", "have", _bounds(hint), name)
        for entry in value:
            _check_field(entry, get_args(plain_type(hint)[0])[0], name)
    elif value is not None:
        _check_range(value, f"is {value}", "be", _bounds(hint), name)


def _check_range(number: Any, shown: str, verb: str, bounds: list[Any], name: str) -> None:
    if bounds and isinstance(number, float) and not math.isfinite(number):
        raise UserError(f"{name} {shown}, but must {verb} a finite number")
    limits = [(*_LIMITS[type(bound)], *dataclasses.astuple(bound)) for bound in bounds]
    if not all(holds(number, limit) for holds, _, limit in limits):
        allowed = " and ".join(text.format(limit) for _, text, limit in limits)
        raise UserError(f"{name} {shown}, but must {verb} {allowed}")


def _bounds(hint: Any) -> list[Any]:
    """Return the bounds that a hint is annotated with, outside and inside of `| None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return [bound for member in get_args(hint) for bound in _bounds(member)]
    if get_origin(hint) is not Annotated:
        return []
    inner, *annotations = get_args(hint)
    groups = [annotation if isinstance(annotation, GroupedMetadata) else [annotation] for annotation in annotations]
    return [bound for group in groups for bound in group if type(bound) in _LIMITS] + _bounds(inner)
