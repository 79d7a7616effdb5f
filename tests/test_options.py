"""tyro's complaints as sentences; how the commands use them is tested with the command line."""

import contextlib
import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from unshuffle.options import OPTIONAL, complaint, describe_sections, main_options


@dataclass(frozen=True)
class Section:
    """Some more."""

    rate: float = 0.1
    """How fast."""
    steps: tuple[int, ...] = (1,)
    """When."""


@dataclass(frozen=True)
class Command:
    """Does things."""

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """What to do them with."""
    count: int = 3
    """How many."""
    size: int | None = None
    """How large."""
    out: Path | None = None
    """Where to."""
    kind: Literal["one", "other"] = "one"
    """Which."""
    section: Section = field(default_factory=Section)


def parse(*words: str) -> Command:
    return tyro.cli(Command, args=list(words), registry=OPTIONAL, use_underscores=True)


def test_optional_values() -> None:
    command = parse("x", "--size", "7", "--out", "here")
    assert (command.size, command.out) == (7, Path("here"))
    assert parse("x", "--size", "none", "--out", "None") == parse("x")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "still missing: DATA (what to do them with)"),
        ("x --count", "--count needs a value"),
        ("x --count many", "--count is 'many', but must be a whole number"),
        ("x --size large", "--size is 'large', but must be a whole number"),
        ("x --section.rate fast", "--section.rate is 'fast', but must be a number"),
        ("x --section.steps 1 b", "--section.steps cannot be '1', 'b'"),
        ("x --kind third", "--kind is 'third', but must be one of 'one', 'other'"),
        ("x --cuont 3", "there is no option --cuont (did you mean --count?)"),
        ("x --cuont=3", "there is no option --cuont (did you mean --count?)"),
        ("x --rate 3", "there is no option --rate (did you mean --section.rate?)"),
        ("x --colour 3", "there is no option --colour"),
        ("x y", "'y' belongs to no option"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints(line: str, sentence: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    box = io.StringIO()
    with contextlib.redirect_stderr(box), pytest.raises(SystemExit):
        parse(*line.split())
    assert complaint(box.getvalue(), Command) == sentence


def test_what_cannot_be_understood_is_said_in_some_way() -> None:
    assert complaint("", Command) == "the options cannot be read"
    assert complaint("╭─ News ─╮\n│ A new complaint. │\n╰────────╯", Command) == "A new complaint"


def test_the_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    shown = main_options(Command(Path("x"), count=5))
    with pytest.raises(SystemExit):
        tyro.cli(type(shown), args=["--help"], default=shown, registry=OPTIONAL)
    printed = capsys.readouterr().out
    assert "Does things." in printed and "--size INT" in printed and "default: 5" in printed
    assert "rate" not in printed and "None" not in printed
    assert "--section.*" in describe_sections(Command) and "Some more." in describe_sections(Command)
