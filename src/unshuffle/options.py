"""What the command line adds to tyro: plain names of optional values, a short help, complaints of one sentence."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from unshuffle.wording import did_you_mean

OPTIONAL = ConstructorRegistry()
"""Writes `PATH` where tyro would write `{None}|PATH`."""
_METAVARS: dict[type, str] = {str: "STR", int: "INT", Path: "PATH"}


@OPTIONAL.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kind = next((kind for kind in _METAVARS if info.type == kind | None), None)
    if kind is None:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=_METAVARS[kind],
        instance_from_str=lambda words: None if words[0] in ("none", "None") else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def main_options(command: Any) -> Any:
    """The same values in a class whose help leaves the sections out."""
    hidden = [
        (name, Annotated[section, tyro.conf.Suppress], dataclasses.field(default=getattr(command, name)))
        for name, section in _sections(type(command)).items()
    ]
    kind = type(command)
    namespace = {"__doc__": kind.__doc__}
    return dataclasses.make_dataclass(kind.__name__, hidden, bases=(kind,), namespace=namespace, frozen=True)(
        **vars(command)
    )


def describe_sections(command: type) -> str:
    """What the short help has left out."""
    lines = [f"  --{name + '.*':16}{section.__doc__}" for name, section in _sections(command).items()]
    return "\n".join(["More options, all of them listed by --help_all:", "", *lines])


def _sections(command: type) -> dict[str, Any]:
    hints = typing.get_type_hints(command)
    return {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}


def _names(command: type) -> Iterator[str]:
    """Every option by its full name."""
    for name, hint in typing.get_type_hints(command).items():
        if dataclasses.is_dataclass(hint):
            yield from (f"{name}.{inner}" for inner in _names(typing.cast(type, hint)))
        else:
            yield from (name, f"no_{name}") if hint is bool else (name,)


# tyro's words and ours; what is not here is said in tyro's
_SENTENCES = (
    (r"Missing value for argument [('\"]*([\w.-]+).*", r"\1 needs a value"),
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 is \2, but must be a whole number"),
    (r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 is \2, but must be a number"),
    (r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]", r"\1 cannot be \2"),
    (r"[Ii]nvalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", r"\2 is '\1', but must be one of \3"),
    (r"Unrecognized options: ([^-].*)", r"'\1' belongs to no option"),
)


def complaint(box: str, command: type) -> str:
    """What tyro complains of in a box, as one sentence.

    The box has paragraphs between lines; its title stands in the frame, or in plain ASCII is the first paragraph.
    """
    rows = [line.strip().strip("│").strip() for line in box.splitlines()]
    rows = [row for row in rows if row and not row.startswith(("╭", "╰"))]
    paragraphs: list[list[str]] = [[]]
    for row in rows:
        if set(row) <= set("─-"):
            paragraphs.append([])
        else:
            paragraphs[-1].append(row)
    first = (paragraphs if "╭" in box else paragraphs[1:])[:1]
    if not first or not first[0]:
        return "the options cannot be read"
    if first[0][0].startswith("Missing from"):
        return f"still missing: {', '.join(_required(first[0][1:]))}"
    sentence = " ".join(first[0]).rstrip(". ")
    unknown = re.match(r"Unrecognized options: --([^\s,=]+)", sentence)
    if unknown:
        return f"there is no option --{unknown[1]}{_nearest(unknown[1], command)}"
    for theirs, ours in _SENTENCES:
        if re.fullmatch(theirs, sentence):
            return re.sub(theirs, ours, sentence)
    return sentence


def _required(rows: list[str]) -> Iterator[str]:
    """Each missing argument with its help, which ends with `(required)` and may take several rows."""
    entry: list[str] = []
    for row in rows:
        entry.append(row)
        if row.endswith("(required)"):
            words = " ".join(entry[1:]).removesuffix("(required)").strip().rstrip(".")
            yield f"{entry[0]} ({words[:1].lower()}{words[1:]})"
            entry = []


def _nearest(option: str, command: type) -> str:
    """The option that may be meant; its section can be left out."""
    full = {name: name for name in _names(command)}
    short = {name.rpartition(".")[2]: name for name in full}
    names = {**short, **full}
    wanted = option.replace("-", "_")
    if wanted in full:  # it is known to the class, but not offered
        return ""
    return f" (did you mean --{names[wanted]}?)" if wanted in names else did_you_mean(wanted, full, "--")
