"""From the words of a command line to the dataclass of a command.

The dataclasses of `config.py` and of the commands are the options: types, ranges and help texts stand on their fields.
An error is one sentence, worded as for config files, with the option that may be meant.
"""

import argparse
import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin

from unshuffle.config import (
    REGISTERED,
    SHORT_NAMES,
    Config,
    data_preset,
    load_registered_tasks,
    preset_config,
    read_config,
    with_options,
)
from unshuffle.errors import UserError
from unshuffle.files import check_file, check_folder, write_measurement
from unshuffle.options import check_bounds, field_types, merge, plain_type, takes_one_or_several, typed
from unshuffle.wording import did_you_mean, listed

T = TypeVar("T")
HELP = ("-h", "--help")
HELP_ALL = ("--help_all", "--help-all")
POSITIONAL, HIDDEN = "positional", "hidden"
"""Annotations of fields that are given without their name, or that are no option of the command."""
REQUIRED: Any = object()
"""Stands in a default for what must be given."""
_BOOLS = {"true": True, "false": False}
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_rate", "base_lr"), ("lr",)),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "max_iterations"), ("iterations",)),
    **dict.fromkeys(("max_epochs", "num_epochs"), ("epochs",)),
    **dict.fromkeys(("model", "arch", "architecture", "network"), ("backbone",)),
    **dict.fromkeys(("weights", "pretrained", "checkpoint"), ("weights", "init")),
    **dict.fromkeys(("bs", "batch"), ("batch_size",)),
    **dict.fromkeys(("gpu", "gpus", "accelerator"), ("device",)),
    **dict.fromkeys(("data", "data_dir", "dataset", "input", "path", "folder"), ("images", "videos", "data", "src")),
    **dict.fromkeys(("images", "videos"), ("data", "src", "train", "test")),
    **dict.fromkeys(("run", "run_dir"), ("runs", "weights")),
    **dict.fromkeys(("output", "output_dir", "save_dir"), ("out",)),
    **dict.fromkeys(("num_workers", "workers"), ("workers", "data.workers")),
}
"""What other programs call options, with the names here."""
_METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}


def overview(usage: str, summary: str, entries: Mapping[str, str | None]) -> str:
    """Return the help that lists commands, evaluations or analyses, each with its summary."""
    width = max(map(len, entries)) + 2
    lines = [f"  {name:{width}}{text}" for name, text in entries.items()]
    command = usage.partition(" [")[0].partition(" --")[0].removesuffix(" ...")
    return "\n".join([f"usage: {usage}", "", summary, "", *lines, "", f"{command} --help lists the options."])


@dataclass(frozen=True)
class ConfigCommand(Config):
    """Options of the commands that work with the config of a run."""

    config: Path | None = None
    """YAML file to start from, such as the config.yaml of another run; options of the command line override it."""

    def run_config(self) -> Config:
        """Return the config alone, without the options that only the command has."""
        return Config(**{name: getattr(self, name) for name in Config.__dataclass_fields__})


C = TypeVar("C", bound=ConfigCommand)


def parse(
    command: type[T],
    name: str,
    args: Sequence[str],
    defaults: Callable[[dict[str, Any]], T] | None = None,
    *,
    positional: bool = False,
) -> T:
    """Return the command that the words describe, or print the help and exit.

    `defaults` returns the command as it is without further words, given the values of the words that can decide about
    defaults, such as a preset; `REQUIRED` in it marks what must be given. By default the class itself has the
    defaults. `positional`: fields without a default are given without their name.
    """
    if issubclass(command, Config) and not _sections(args) <= Config.__dataclass_fields__.keys():
        load_registered_tasks()
    arguments = _named_arguments(command, positional)
    if {*HELP, *HELP_ALL} & set(args):
        default = defaults(_values_for_help(arguments, args)) if defaults is not None else None
        _print_help(command, name, list(arguments.values()), default, everything=bool({*HELP_ALL} & set(args)))
    see = f"see unshuffle {name} {HELP_ALL[0] if issubclass(command, Config) else HELP[1]}"
    try:
        values = _read(arguments, args)
    except UserError as error:
        raise UserError(f"{error}; {see}") from None
    default = defaults(values) if defaults is not None else None
    required = [argument for argument in arguments.values() if argument.is_required(default)]
    missing = [argument.shown for argument in required if argument.name not in values]
    if missing:
        raise UserError(f"missing argument{'s' if len(missing) > 1 else ''}: {', '.join(missing)}; {see}")
    if default is None:
        default = command(**{argument.name: values[argument.name] for argument in required})
    nested = _nested(values)
    parsed: T = with_options(default, nested) if isinstance(default, Config) else merge(default, nested)
    check_bounds(parsed)
    json: Path | None = getattr(parsed, "json", None)
    if json is not None:
        _check_json(json.expanduser(), getattr(parsed, "out", None))
    return parsed


def parse_config_command(command: type[C], name: str, args: Sequence[str], *, preset_by_data: bool = False) -> C:
    """Parse options that override a preset, a config file or, with --resume, the config of the run in --out.

    `preset_by_data`: where data but no preset is given, take the one for this machine.
    """

    def defaults(values: dict[str, Any]) -> C:
        config = _base_config(values, preset_by_data)
        return command(**{field: getattr(config, field) for field in Config.__dataclass_fields__})

    return parse(command, name, args, defaults)


def _base_config(values: dict[str, Any], preset_by_data: bool) -> Config:
    preset, file, out = values.get("preset"), values.get("config"), values.get("out")
    if preset is not None and file is not None:
        raise UserError("give --preset or --config, not both: a config file names its preset")
    if values.get("resume"):
        if out is None:
            raise UserError("--resume needs the run folder: give --out")
        run_file = out.expanduser() / "config.yaml"
        if run_file.is_file() and file is None:
            return read_config(run_file)
    if file is not None:
        return replace(read_config(file.expanduser()), out=None)
    if preset is None and preset_by_data and (values.get("images") or values.get("videos")):
        from unshuffle.accelerator import has_gpu  # imports torch, which takes seconds

        preset = data_preset(has_gpu(values.get("device") or "auto"))
    return preset_config(preset or "demo")


@dataclass(frozen=True)
class _Argument:
    """An option or a positional argument: one field of the dataclass tree."""

    name: str
    """Dotted name of the field."""
    hint: Any
    has_default: bool
    positional: bool
    owner: type
    """Dataclass of the field."""
    short_for: str = ""
    """Dotted name of the field that a short name stands for."""

    @property
    def shown(self) -> str:
        """The argument as help and errors name it."""
        if self.short_for:
            return f"--{self.name.replace('_', '-')}"
        return self.name.upper() if self.positional else f"--{self.name}"

    @property
    def is_flag(self) -> bool:
        return plain_type(self.hint)[0] is bool

    @property
    def is_list(self) -> bool:
        return get_origin(plain_type(self.hint)[0]) is tuple

    def is_required(self, default: Any) -> bool:
        """Return whether it must be given, with the default of its whole command if there is one."""
        return not self.has_default if default is None else getattr(default, self.name, None) is REQUIRED

    @property
    def entry_type(self) -> Any:
        """The type of the value, or of each value of a list."""
        return plain_type(get_args(plain_type(self.hint)[0])[0] if self.is_list else self.hint)[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from, where they are named."""
        return tuple(map(str, get_args(self.entry_type)))

    @property
    def meaning(self) -> str:
        """Its help text."""
        field = self.name.rpartition(".")[2]
        return SHORT_NAMES[field][1] if self.short_for else _field_help(self.owner).get(field, "")

    @property
    def metavar(self) -> str:
        listed_choices = f"{{{','.join(self.choices)}}}"
        name = listed_choices if self.choices else self.shown if self.positional else _METAVARS[self.entry_type]
        return f"{name} ..." if self.is_list else name

    def add_help(self, group: Any, default: Any) -> None:
        """Add the argument's lines to a group of the help."""
        section, dot, field = self.name.rpartition(".")
        value = default if default is not None else self.owner
        for part in (self.short_for or self.name).split(".") if default is not None else [field]:
            value = getattr(value, part, None)
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
        remark = " (required)" if self.is_required(default) else f" (default: {shown})" if shown else ""
        names = [self.shown, f"--{section}{dot}no_{field}"] if self.is_flag else [self.shown]
        options: dict[str, Any] = {"action": "store_true"} if self.is_flag else {"metavar": self.metavar}
        text = f"{self.meaning}{remark}".replace("%", "%%")
        group.add_argument(*names, help=text, **options)

    def value(self, words: list[str]) -> Any:
        """Return the words as a value of the field's type."""
        is_address = takes_one_or_several(self.hint)
        if not words and (is_address or not self.is_list):
            raise UserError(f"{self.shown} needs a value")
        hint, optional = plain_type(self.hint)
        if optional and words in (["none"], ["None"]):
            return None
        if self.is_list:
            entry, _ = plain_type(get_args(hint)[0])
            split = _split_paths if is_address or entry is Path else _split
            parts = [part for word in words for part in split(word)]
            converted: Any = [_convert(part, entry) for part in parts]
        else:
            converted = _convert(words[0], self.hint)
        return typed(converted, self.hint, self.shown)


def _split(word: str) -> list[str]:
    """Return the entries of a list in one word, which commas divide; the name of a file may contain some."""
    return [word] if Path(word).exists() else [part for part in word.split(",") if part]


def _split_paths(word: str) -> list[str]:
    """Return the paths in one word, which commas divide if all of them exist: names and patterns may contain some."""
    parts = word.split(",")
    exist = all(part and Path(part).expanduser().exists() for part in parts)
    return parts if exist and not Path(word).exists() else [word]


def _convert(word: str, hint: Any) -> Any:
    """Return what a word means where YAML would hold something else than text; what does not fit stays as it is."""
    hint, _ = plain_type(hint)
    if get_origin(hint) is Literal:
        same = {str(choice).replace("_", "-"): choice for choice in get_args(hint)}
        return same.get(word.replace("_", "-"), word)
    if hint is int:
        with suppress(ValueError):
            return int(word)
    return word


def _named_arguments(command: type, positional: bool) -> dict[str, _Argument]:
    """Return the arguments of a command by name, short names too."""
    arguments = {argument.name: argument for argument in _arguments(command, positional)}
    if issubclass(command, Config):
        for section, settings in REGISTERED.items():
            arguments |= {argument.name: argument for argument in _arguments(type(settings), False, f"{section}.")}
        short = {name: replace(arguments[full], name=name, short_for=full) for name, (full, _) in SHORT_NAMES.items()}
        arguments |= {name: argument for name, argument in short.items() if name not in arguments}
    return arguments


class Word(NamedTuple):
    """A word of a command line, as shells complete it and the documentation lists it."""

    option: str
    """With its dashes; empty for a positional argument."""
    meaning: str
    takes_value: bool
    choices: tuple[str, ...]
    metavar: str = ""
    """What stands for the value in the help."""


def words(command: type, *, positional: bool = False) -> list[Word]:
    """Return the options and positional arguments of a command."""
    result = [Word("--help", "Print the options.", False, ())]
    if issubclass(command, Config):
        result.append(Word(HELP_ALL[0], "Print all options.", False, ()))
    for argument in _named_arguments(command, positional).values():
        section, dot, field = argument.name.rpartition(".")
        meaning, value = argument.meaning, "" if argument.is_flag else argument.metavar
        if argument.positional:
            result.append(Word("", meaning, True, argument.choices, argument.metavar))
            continue
        result.append(Word(argument.shown, meaning, not argument.is_flag, argument.choices, value))
        if argument.is_flag:
            result.append(Word(f"--{section}{dot}no_{field}", f"Not: {meaning}", False, ()))
    return result


def _arguments(options: type, positional: bool, where: str = "") -> Iterator[_Argument]:
    fields = {field.name: field for field in dataclasses.fields(options)}
    for name, hint in field_types(options).items():
        marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
        section, _ = plain_type(hint)
        if dataclasses.is_dataclass(section):
            yield from _arguments(section, False, f"{where}{name}.")  # type: ignore[arg-type]
        elif HIDDEN not in marks and get_origin(section) is not Mapping:
            factory, default = fields[name].default_factory, fields[name].default
            has_default = factory is not dataclasses.MISSING or default is not dataclasses.MISSING
            is_positional = POSITIONAL in marks or (positional and not has_default)
            yield _Argument(f"{where}{name}", hint, has_default, is_positional, options)


def _sections(args: Sequence[str]) -> set[str]:
    """Return the sections of the options among the words, such as `optim` of --optim.iterations."""
    options = (word.removeprefix("--").partition("=")[0] for word in args if word.startswith("--"))
    return {option.partition(".")[0].replace("-", "_") for option in options if "." in option}


def _read(arguments: dict[str, _Argument], args: Sequence[str]) -> dict[str, Any]:
    """Return the values that the words give, by dotted name; of an option given twice the last one counts."""
    values: dict[str, Any] = {}
    free: list[str] = []
    rest = list(args)
    any_positional = any(argument.positional for argument in arguments.values())
    while rest:
        word = rest.pop(0)
        if not _is_option(word):
            free.append(word)
            continue
        option, has_value, attached = word.partition("=")
        argument, flag = _find(option, arguments)
        if argument.is_flag:
            if not has_value and rest and rest[0].lower() in _BOOLS:
                has_value, attached = "=", rest.pop(0)
            if not has_value and rest and not _is_option(rest[0]) and not any_positional:
                has_value, attached = "=", rest.pop(0)
            if has_value and attached.lower() not in _BOOLS:
                raise UserError(f"{option} is '{attached}', but must be true or false, or have no value")
            values[argument.name] = flag == (_BOOLS[attached.lower()] if has_value else True)
            continue
        words = [attached] if has_value else list(takewhile(lambda word: not _is_option(word), rest))
        words = words if argument.is_list else words[:1]
        del rest[: 0 if has_value else len(words)]
        values[argument.name] = argument.value(words)
    if free and not any_positional and "images" in arguments:
        raise UserError(f"'{free[0]}' belongs to no option: give folders with --images or --videos")
    return values | _read_positional([argument for argument in arguments.values() if argument.positional], free)


def _read_positional(arguments: Sequence[_Argument], words: list[str]) -> dict[str, Any]:
    values = {}
    for number, argument in enumerate(arguments, start=1):
        count = len(words) - (len(arguments) - number) if argument.is_list else 1
        if words and count > 0:
            values[argument.name] = argument.value(words[:count])
            words = words[count:]
    if words:
        raise UserError(f"'{words[0]}' belongs to no option")
    return values


def _is_option(word: str) -> bool:
    """Return whether a word is an option, also if it lacks a dash; negative numbers and a single dash are values."""
    return word.startswith("--") or (word[:1] == "-" and word[1:2].isalpha())


def _find(option: str, arguments: dict[str, _Argument]) -> tuple[_Argument, bool]:
    """Return the argument of an option, and False where it is a flag that is switched off."""
    options = {name: (argument, True) for name, argument in arguments.items() if not argument.positional}
    for name, (argument, _) in list(options.items()):
        if argument.is_flag:
            section, dot, field = name.rpartition(".")
            options[f"{section}{dot}no_{field}"] = (argument, False)
    name = option.lstrip("-").replace("-", "_")
    if name not in options or not option.startswith("--"):
        known = (name, *_ELSEWHERE.get(name, ()))
        meant = [full for full in known if full in options]
        for argument in arguments.values() if not meant else ():
            if argument.positional and argument.name in known:
                raise UserError(f"there is no option {option}: give {argument.shown} without an option")
        meant = meant or [full for full in options if full.rpartition(".")[2] == name]
        nearest = f" (did you mean {listed([f'--{full}' for full in meant], 3)}?)" if meant else ""
        raise UserError(f"there is no option {option}{nearest or did_you_mean(name, options, '--')}")
    return options[name]


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, field = name.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[field] = value
    return tree


def _values_for_help(arguments: dict[str, _Argument], args: Sequence[str]) -> dict[str, Any]:
    """Return the values that decide about the defaults that the help shows; wrong words do not prevent it."""
    words = [word for word in args if word not in (*HELP, *HELP_ALL)]
    try:
        values = _read(arguments, words)
    except UserError:
        return {}
    return {name: value for name, value in values.items() if name in ("preset", "config")}


def _print_help(
    command: type[T], name: str, arguments: Sequence[_Argument], default: T | None, *, everything: bool
) -> NoReturn:
    """Print the help of a command and exit; that of a config's sections only if everything is asked for."""
    words = ["unshuffle", name, "[OPTIONS]", *(argument.metavar for argument in arguments if argument.positional)]
    parser = argparse.ArgumentParser(usage=" ".join(words), description=_summary(command), add_help=False)
    groups = {"": parser.add_argument_group("options")}
    for argument in arguments:
        section = argument.name.rpartition(".")[0]
        if section and not everything:
            continue
        if section not in groups:
            groups[section] = parser.add_argument_group(f"{section} options", _summary(argument.owner))
        argument.add_help(groups[section], default)
    parser.print_help()
    sections = {name: hint for name, hint in field_types(command).items() if dataclasses.is_dataclass(hint)}
    if sections and not everything:
        print(f"\nMore options, all of them listed by {HELP_ALL[0]}:\n")
        print("\n".join(f"  --{section + '.*':16}{_summary(hint)}" for section, hint in sections.items()))
    sys.exit(0)


def _summary(options: Any) -> str:
    return (options.__doc__ or "").partition("\n")[0].replace("%", "%%")


@cache
def _field_help(owner: type) -> dict[str, str]:
    """Return the docstring below each field, also of the base classes."""
    texts: dict[str, str] = {}
    for kind in reversed(owner.__mro__):
        if not dataclasses.is_dataclass(kind):
            continue
        try:
            source = inspect.getsource(kind)
        except OSError:  # the settings of a task that was defined in a prompt
            continue
        (definition,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _check_json(file: Path, out: Path | None) -> None:
    """Raise a UserError if --json cannot be written; --out and the folders that lead to it will be made."""
    will_be_made = out is not None and file.parent in (out.expanduser(), *out.expanduser().parents)
    if will_be_made and not file.parent.exists():
        check_folder(file.parent, "--json")
    else:
        check_file(file, "--json")


def write_json(path: Path | None, command: str, protocol: str, config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write what a command measured to the file of its --json, if there is one."""
    if path is not None:
        path.expanduser().parent.mkdir(parents=True, exist_ok=True)
        write_measurement(path.expanduser(), command, protocol, config, metrics)
