"""Words to dataclasses; how the commands use it is tested with the commands."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge

from unshuffle.cli.ablate import AblateCommand
from unshuffle.cli.bench import BenchCommand
from unshuffle.cli.parsing import HIDDEN, POSITIONAL, REQUIRED, parse, parse_config_command
from unshuffle.cli.pretrain import PretrainCommand
from unshuffle.config import PRESETS, Config
from unshuffle.errors import UserError


@dataclass(frozen=True)
class Section:
    """Further options."""

    rate: float = 0.1
    """How fast."""
    steps: tuple[int, ...] = (1,)
    """When."""
    jitter: bool = True
    """Whether to jitter."""


@dataclass(frozen=True)
class Command:
    """Does things."""

    data: Annotated[Path, POSITIONAL]
    """What to do them with."""
    count: Annotated[int, Ge(1)] = 3
    """How many."""
    size: Annotated[int, Ge(1)] | None = None
    """How large."""
    out: Path | None = None
    """Where to."""
    kind: Literal["one", "other"] = "one"
    """Which."""
    version: Literal[1, 2] = 1
    """Which version."""
    task: Literal["spatial", "temporal"] | None = None
    """One task alone."""
    mode: Literal["dash-ed", "plain"] = "plain"
    """How."""
    sources: str | tuple[str, ...] | None = None
    """Where from: one place, or several."""
    file_name: str = "x"
    """A name."""
    fast: bool = False
    """Whether to hurry."""
    hidden: Annotated[int, HIDDEN] = 5
    section: Section = field(default_factory=Section)


@dataclass(frozen=True, kw_only=True)
class Several:
    """Has two positional arguments."""

    names: tuple[str, ...] = ()
    """Names of the runs."""
    weights: str
    """Which weights."""
    runs: tuple[Path, ...]
    """Which runs."""


def read(line: str) -> Command:
    return parse(Command, "things", line.split())


def read_several(line: str) -> Several:
    return parse(Several, "several", line.split(), positional=True)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("x", Command(Path("x"))),
        ("x --size 7 --out here", Command(Path("x"), size=7, out=Path("here"))),
        ("x --size none --out None --task none", Command(Path("x"))),
        ("--count 5 x --file_name y", Command(Path("x"), count=5, file_name="y")),
        ("x --file-name=--y", Command(Path("x"), file_name="--y")),
        ("x --file_name=a=b --count=4", Command(Path("x"), file_name="a=b", count=4)),
        ("x --file_name -", Command(Path("x"), file_name="-")),
        ("x --kind other --version 2 --task spatial", Command(Path("x"), kind="other", version=2, task="spatial")),
        ("--fast x", Command(Path("x"), fast=True)),
        ("x --fast --no_fast", Command(Path("x"))),
        ("x --section.no-jitter", Command(Path("x"), section=Section(jitter=False))),
        ("x --section.steps --section.rate -1e-3", Command(Path("x"), section=Section(steps=(), rate=-1e-3))),
        ("x --section.steps 4 -5 --fast", Command(Path("x"), section=Section(steps=(4, -5)), fast=True)),
        ("x --count 4 --count 5", Command(Path("x"), count=5)),
        ("x --section.steps 4,-5", Command(Path("x"), section=Section(steps=(4, -5)))),
        ("x --section.steps=4,5", Command(Path("x"), section=Section(steps=(4, 5)))),
        ("x --section.steps 4, 5 ,6", Command(Path("x"), section=Section(steps=(4, 5, 6)))),
        ("x --section.jitter false --fast true", Command(Path("x"), fast=True, section=Section(jitter=False))),
        ("x --section.jitter=False --fast=TRUE", Command(Path("x"), fast=True, section=Section(jitter=False))),
        ("x --section.no_jitter true", Command(Path("x"), section=Section(jitter=False))),
        ("x --section.no-jitter false", Command(Path("x"))),
        ("--fast false x", Command(Path("x"))),
        ("x --mode dash_ed", Command(Path("x"), mode="dash-ed")),
        ("x --mode dash-ed", Command(Path("x"), mode="dash-ed")),
        ("x --sources a", Command(Path("x"), sources="a")),
        ("x --sources a,b c", Command(Path("x"), sources=("a,b", "c"))),
        ("x --sources none", Command(Path("x"))),
    ],
)
def test_values(line: str, command: Command) -> None:
    assert read(line) == command


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "missing argument: DATA"),
        ("x --count", "--count needs a value"),
        ("x --sources", "--sources needs a value"),
        ("x --count --fast", "--count needs a value"),
        ("x --count many", "--count is 'many', but must be a whole number"),
        ("x --count 1.5", "--count is '1.5', but must be a whole number"),
        ("x --size large", "--size is 'large', but must be a whole number"),
        ("x --section.rate fast", "--section.rate is 'fast', but must be a number"),
        ("x --section.steps 1 b", "--section.steps is 'b', but must be a whole number"),
        ("x --kind third", "--kind is 'third', but must be one of one, other"),
        ("x --version 3", "--version is '3', but must be one of 1, 2"),
        ("x --task both", "--task is 'both', but must be one of spatial, temporal"),
        ("x --cuont 3", "there is no option --cuont (did you mean --count?)"),
        ("x --cuont=3", "there is no option --cuont (did you mean --count?)"),
        ("x --rate 3", "there is no option --rate (did you mean --section.rate?)"),
        ("x --no_jitter", "there is no option --no_jitter (did you mean --section.no_jitter?)"),
        ("x --file-nam 3", "there is no option --file-nam (did you mean --file_name?)"),
        ("x --colour 3", "there is no option --colour"),
        ("x --hidden 3", "there is no option --hidden"),
        ("x --data 3", "there is no option --data: give DATA without an option"),
        ("--images 3", "there is no option --images: give DATA without an option"),
        ("x -count 3", "there is no option -count (did you mean --count?)"),
        ("x -rate 3", "there is no option -rate (did you mean --section.rate?)"),
        ("x --section.steps 1 -c 3", "there is no option -c"),
        ("x --fast=yes", "--fast is 'yes', but must be true or false, or have no value"),
        ("x --fast yes", "'yes' belongs to no option"),
        ("x y", "'y' belongs to no option"),
    ],
)
def test_errors(line: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read(line)
    assert str(caught.value) == f"{sentence}; see unshuffle things --help"


@pytest.mark.parametrize(("line", "sentence"), [("x --count 0", "count is 0"), ("x --size -1", "size is -1")])
def test_values_out_of_range(line: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}, but must be 1 or more$"):
        read(line)


def test_required_arguments_without_their_names() -> None:
    paths = (Path("a"), Path("b"))
    assert read_several("w a b") == Several(weights="w", runs=paths)
    assert read_several("w a b --names x y") == Several(weights="w", runs=paths, names=("x", "y"))
    assert read_several("w --names=x a b") == Several(weights="w", runs=paths, names=("x",))
    for line, missing in (("", "s: WEIGHTS, RUNS"), ("w", ": RUNS")):
        with pytest.raises(UserError, match=f"^missing argument{missing}; see unshuffle several --help$"):
            read_several(line)


def test_defaults_that_depend_on_the_values() -> None:
    def defaults(values: dict[str, Any]) -> Command:
        return Command(REQUIRED, count=9 if values.get("kind") == "other" else 8)

    assert parse(Command, "things", ["x", "--kind", "other"], defaults) == Command(Path("x"), count=9, kind="other")
    assert parse(Command, "things", ["x"], defaults).count == 8
    with pytest.raises(UserError, match="missing argument: DATA"):
        parse(Command, "things", [], defaults)


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(Command, "things", words)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    short = help_of(capsys, "--help")
    assert "Does things." in short and "--size INT" in short and "default: 3" in short and "What to do" in short
    assert "DATA" in short and "--task {spatial,temporal}" in short and "hidden" not in short
    assert "rate" not in short and "None" not in short and "none" not in short
    assert "--section.*" in short and "Further options." in short and "--help_all" in short
    assert "--section.rate FLOAT" in help_of(capsys, "x", "--help_all")
    assert help_of(capsys, "--cuont", "-h") == short, "wrong words do not prevent help"


def test_help_of_required_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_several("--help")
    printed = capsys.readouterr().out
    assert "WEIGHTS RUNS ..." in printed and printed.count("(required)") == 2


def option_words(options: Any, where: str = "") -> Iterator[str]:
    for entry in fields(options):
        value, name = getattr(options, entry.name), f"{where}{entry.name}"
        if is_dataclass(value):
            yield from option_words(value, f"{name}.")
        elif isinstance(value, bool):
            yield f"--{name}" if value else f"--{where}no_{entry.name}"
        elif isinstance(value, tuple):
            yield from (f"--{name}", *map(str, value))
        elif name != "registered":
            yield from (f"--{name}", "none" if value is None else str(value))


@pytest.mark.parametrize("name", PRESETS)
def test_a_whole_config_as_words(name: Any) -> None:
    config = PRESETS[name]()
    assert parse_config_command(PretrainCommand, "pretrain", list(option_words(config))).run_config() == config


def test_help_lists_every_option_that_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config_command(PretrainCommand, "pretrain", ["--help_all"])
    printed = capsys.readouterr().out.replace(",", " ").split()
    options = [word for word in option_words(PRESETS["demo"]()) if word.startswith("--")]
    assert len(options) > 80 and set(options) <= set(printed)


def pretrain(*words: str) -> Config:
    return parse_config_command(PretrainCommand, "pretrain", words).run_config()


def test_short_names() -> None:
    config = pretrain("--iterations", "7", "--batch-size", "6", "--backbone", "resnet18")
    assert (config.optim.iterations, config.optim.batch_size, config.model.backbone) == (7, 6, "resnet18")
    assert pretrain("--batch_size=6") == pretrain("--batch-size", "6") == pretrain("--optim.batch-size", "6")
    assert pretrain("--epochs", "1.5").optim.epochs == 1.5


def test_the_short_batch_size_changes_all_in_proportion() -> None:
    config = pretrain("--preset", "small", "--batch-size", "128")
    sizes = {name: config.batch_size(name) for name in ("instance", "spatial", "temporal", "rotation")}
    assert sizes == {"instance": 128, "spatial": 8, "temporal": 4, "rotation": 32}
    assert pretrain("--preset", "small", "--batch-size", "8").temporal.batch_size == 2, "for batch normalisation"
    assert pretrain("--preset", "small", "--batch-size", "8", "--spatial.batch_size", "5").spatial.batch_size == 5


@pytest.mark.parametrize(
    ("words", "gpu", "preset"),
    [
        ([], True, "demo"),
        (["--images", "x"], True, "small"),
        (["--images", "x"], False, "cpu"),
        (["--videos", "x"], False, "cpu"),
        (["--images", "x", "--device", "cpu"], True, "cpu"),
        (["--images", "x", "--preset", "demo"], True, "demo"),
    ],
)
def test_the_preset_of_own_data_depends_on_the_machine(
    words: list[str], gpu: bool, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    command = parse_config_command(PretrainCommand, "pretrain", words, preset_by_data=True)
    assert command.run_config().preset == preset


def test_the_weights_of_a_preset_are_those_of_its_backbone() -> None:
    assert pretrain("--preset", "cpu").init == Path("pretrained")
    assert pretrain("--preset", "cpu", "--backbone", "tiny").init is None
    assert pretrain("--preset", "cpu", "--model.backbone", "tiny", "--init", "mine").init == Path("mine")


def test_the_short_learning_rate_changes_all_in_proportion() -> None:
    config = pretrain("--preset", "small", "--lr", "0.01")
    assert config.optim.backbone.lr == 0.01
    assert config.spatial.optimiser.lr == config.temporal.optimiser.lr == 0.005
    assert config.policy == pretrain("--preset", "small").policy, "the policy's is another"
    assert pretrain("--lr", "0.01", "--spatial.optimiser.lr", "1").spatial.optimiser.lr == 1


def test_an_option_of_a_command_comes_before_a_short_name() -> None:
    command = parse_config_command(BenchCommand, "bench", ["--iterations", "3"])
    assert (command.iterations, command.optim.iterations) == (3, 400)


def test_several_folders() -> None:
    assert pretrain("--images", "a", "b", "--videos", "c").images == ("a", "b")
    assert pretrain("--images", "a").images == "a"


def test_folders_are_divided_by_commas_if_all_of_them_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c,d"):
        (tmp_path / name).mkdir()
    assert pretrain("--images", "a,b").images == ("a", "b")
    assert pretrain("--images", "a,b", "c,d").images == ("a", "b", "c,d")
    assert pretrain("--images", "c,d").images == "c,d"
    assert pretrain("--images", "a,nowhere").images == "a,nowhere"
    assert pretrain("--images", "shards-{0..9}.tar,a").images == "shards-{0..9}.tar,a"


def test_a_list_is_not_split_at_the_comma_in_the_name_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a,b.yaml"
    file.touch()
    command = parse_config_command(AblateCommand, "ablate", ["--arms", "S,S+T", str(file)])
    assert command.arms == ("S", "S+T", str(file))
