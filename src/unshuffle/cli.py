"""The command line: one thin function per command."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from unshuffle import __version__
from unshuffle.config import Config, preset_config
from unshuffle.config_file import read_config, read_yaml, to_dict
from unshuffle.console import say
from unshuffle.errors import ReportedElsewhere, UserError
from unshuffle.files import check_file, check_folder, check_new_file, write_measurement
from unshuffle.options import OPTIONAL, complaint, describe_sections, main_options
from unshuffle.permutations import Criterion
from unshuffle.stopping import Stopped, stopping_at_once
from unshuffle.wording import counted, did_you_mean

T = TypeVar("T")
HELP = ("-h", "--help")
HELP_ALL = ("--help_all", "--help-all")


@dataclass(frozen=True)
class PretrainCommand(Config):
    """Learn features from unlabelled images and videos; with neither, from a synthetic world."""

    resume: bool = False
    """Go on with the run in --out."""
    config: Path | None = None
    """Start from the config.yaml of another run, or your own; options given beside it win."""


@dataclass(frozen=True)
class DoctorCommand(Config):
    """Is the data readable, and can this set-up learn? Overfits a handful of samples with each task."""

    out: Annotated[Path | None, tyro.conf.Suppress] = None
    config: Path | None = None
    """Start from the config.yaml of another run, or your own; options given beside it win."""
    samples: int = 16
    """Samples to overfit."""
    choices: int = 10
    """Permutations to tell apart."""
    steps: int = 300
    """Steps at most for each task."""
    json: Path | None = None
    """Write the findings there."""


@dataclass(frozen=True)
class BenchCommand(Config):
    """How fast this machine trains, and where the time goes."""

    out: Annotated[Path | None, tyro.conf.Suppress] = None
    config: Path | None = None
    """Start from the config.yaml of another run, or your own; options given beside it win."""
    iterations: int = 50
    """Iterations to measure."""
    json: Path | None = None
    """Write the figures there."""


@dataclass(frozen=True)
class AblateCommand(Config):
    """Train and evaluate arms with several seeds, and print their table; started again, it goes on."""

    out: Path | None = None
    """The folder of the ablation; by default runs/ablation."""
    arms: tuple[str, ...] = ()
    """S, S+P, T, T+P, 'S&T', S+T, S+T+P; by default all. Files .yaml hold yours, NAME: {policy: {sampler: inverse}}."""
    seeds: tuple[int, ...] = (1,)
    """One number: so many seeds, from --seed on. Several: these."""
    evaluations: tuple[str, ...] = ()
    """Names as in `unshuffle evaluate`, and .yaml files with options: NAME: {evaluation: retrieval, train: ...}."""
    evaluation_preset: Literal["quick", "paper"] = "quick"
    """Preset of the evaluations: paper is the full schedules."""
    train: str | None = None
    """--train of the evaluations that have one."""
    test: str | None = None
    """--test of the evaluations that have one."""
    voc: Path | None = None
    """--voc of the evaluations that have one."""
    columns: tuple[str, ...] = ()
    """Metrics to show, such as linear.conv5.top1; results.csv has the names of all."""
    jobs: int = 0
    """Runs at a time; 0: one for each GPU, without GPUs one for each 4 cores."""
    launcher: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: a job array, by submitit."""
    slurm: Path | None = None
    """A .yaml file with submitit's parameters, such as slurm_partition, timeout_min, cpus_per_task."""
    config: Path | None = None
    """Start from the config.yaml of another run, or your own; options given beside it win."""
    json: Path | None = None
    """Write the figures there."""


@dataclass(frozen=True)
class PermutationsCommand:
    """Choose a diverse set of permutations and write it as .npy."""

    out: Path
    """The file to write."""
    parts: int = 9
    """Parts of a sample: 9 for a 3 x 3 grid."""
    count: int = 1000
    """Permutations to choose."""
    criterion: Criterion = "maxmin"
    """maxmin: largest minimum Hamming distance; mean: largest mean distance, as in the paper."""
    seed: int = 0
    """Seed of the first one (and of the candidates above 9 parts)."""
    include_identity: bool = False
    """Let the unshuffled order be a candidate."""
    json: Path | None = None
    """Write the distances there."""


@dataclass(frozen=True)
class PackCommand:
    """Decode a folder once into a store that opens at once."""

    kind: Annotated[Literal["images", "videos"], tyro.conf.Positional]
    """What is in the folder."""
    src: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """The folder, flat or nested."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The store to write, or to go on with."""
    short_side: int | None = None
    """Pixels of the short side; 256 for images and 128 for videos."""
    encoding: Literal["raw", "jpeg"] = "raw"
    """raw is fast, jpeg is small."""
    quality: int = 90
    """Quality of the JPEGs."""
    every: int = 1
    """Keep every n-th frame of a video."""
    workers: int | None = None
    """Files decoded at once; by default one for each core."""


class EvaluateCommand:
    """What features are worth: each evaluation of the paper, and some more."""


class AnalyzeCommand:
    """How a run came to what it learned: each analysis of the paper, as numbers and a figure."""


@dataclass(frozen=True)
class ReportCommand:
    """Write one HTML page about a run, finished or not, or about several side by side."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or the folder of an ablation."""
    out: Path | None = None
    """The page to write; by default report.html in the folder, or here if there are several."""


@dataclass(frozen=True)
class ExportCommand:
    """Write a trained backbone for use elsewhere."""

    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")]
    """A run folder, a weights file, alexnet, torchvision:NAME, timm:NAME, or random:NAME."""
    format: Literal["safetensors", "torchvision", "onnx"] = "safetensors"
    """safetensors with metadata; torchvision: a plain state dict, .pth; onnx: checked against torch in onnxruntime."""
    out: Path | None = None
    """The file to write; by default beside the weights."""
    fold: bool = False
    """Fold batch normalisation into the convolutions."""
    json: Path | None = None
    """Write there what the file holds."""


@dataclass(frozen=True)
class EmbedCommand:
    """Write the features of all images or videos of a folder; run again, it goes on where it was broken off."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A folder, flat or nested, a packed store, or tar shards."""
    out: Path
    """The file to write: .npy (with the names beside it), .parquet or .csv."""
    weights: str
    """A run folder, a weights file, alexnet, torchvision:NAME, timm:NAME, or random (random:NAME)."""
    kind: Literal["auto", "images", "videos"] = "auto"
    """What to look for in the folder; auto finds out, if it holds only one of them."""
    size: int | None = None
    """Side of the square that the backbone sees; by default the one it is evaluated at."""
    frames: int = 10
    """Frames of a video, evenly spread; its row is their mean."""
    batch: int = 64
    """Images at a time."""
    workers: int | None = None
    """Files read at once; by default one for each core."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of random weights."""
    json: Path | None = None
    """Write the figures there."""


def pretrain(args: Sequence[str]) -> int:
    """`unshuffle pretrain`, also as one of the processes of torchrun."""
    if os.environ.get("WORLD_SIZE", "1") == "1":  # torch takes seconds to import: not for a misspelt option
        return _pretrain(_parse_run(PretrainCommand, args))
    from unshuffle.training import distributed

    with distributed.started():
        with distributed.together():
            command = _parse_run(PretrainCommand, args)
        return _pretrain(command)


def _pretrain(command: PretrainCommand) -> int:
    from unshuffle.pretraining import run_pretraining
    from unshuffle.training.distributed import is_main

    try:
        run_pretraining(_config_of(command), resume=command.resume)
    except Stopped as stop:
        if is_main():
            print(stop, file=sys.stderr)
        return 128 + stop.signum
    return 0


def doctor(args: Sequence[str]) -> int:
    """`unshuffle doctor`."""
    command = _parse_run(DoctorCommand, args)
    from unshuffle.doctor import examine

    config = _config_of(command)
    findings = examine(config, samples=command.samples, choices=command.choices, steps=command.steps)
    ran = {**to_dict(config), "samples": command.samples, "choices": command.choices, "steps": command.steps}
    _write_json(command.json, "doctor", "overfit a handful", ran, findings)
    return 0 if all(task["learns"] for task in findings.values()) else 1


def bench(args: Sequence[str]) -> int:
    """`unshuffle bench`."""
    command = _parse_run(BenchCommand, args)
    from unshuffle.bench import bench as measure
    from unshuffle.bench import with_world

    config = with_world(_config_of(command))
    figures = measure(config, iterations=command.iterations)
    ran = {**to_dict(config), "iterations": command.iterations}
    _write_json(command.json, "bench", "whole iterations, then each part alone", ran, figures)
    return 0


def ablate(args: Sequence[str]) -> int:
    """`unshuffle ablate`."""
    command = _parse_run(AblateCommand, args)
    from unshuffle.analysis.ablation import make_plan, run_ablation
    from unshuffle.analysis.arms import find_arms, find_evaluations

    given = {"train": command.train, "test": command.test, "voc": command.voc}
    common = {"preset": command.evaluation_preset, **{key: value for key, value in given.items() if value is not None}}
    plan = make_plan(
        command.out or Path("runs", "ablation"),
        _config_of(command),
        find_arms(command.arms),
        command.seeds if len(command.seeds) != 1 else command.seeds[0],
        find_evaluations(command.evaluations, common),
    )
    slurm = read_yaml(command.slurm.expanduser(), "slurm") if command.slurm is not None else {}
    try:
        with stopping_at_once():
            found = run_ablation(
                plan, jobs=command.jobs, launcher=command.launcher, slurm=slurm, columns=command.columns
            )
    except Stopped as stop:
        print("stopped, and saved. Start the same command again to go on", file=sys.stderr)
        return 128 + stop.signum
    _write_json(command.json, "ablate", found.protocol, plan.to_dict(), found.metrics)
    for job, problem in found.failures.items():
        print(f"unshuffle: {job} failed: {problem}", file=sys.stderr)
    return 1 if found.failures else 0


def permutations(args: Sequence[str]) -> int:
    """`unshuffle permutations`."""
    command = _parse(PermutationsCommand, "permutations", args)
    from unshuffle.permutations import hamming_statistics, permutation_set, save_permutations

    out = command.out.expanduser()
    check_new_file(out, "--out")
    chosen = permutation_set(
        command.parts,
        command.count,
        criterion=command.criterion,
        seed=command.seed,
        include_identity=command.include_identity,
    )
    save_permutations(out, chosen)
    distances = hamming_statistics(chosen)
    print(
        f"{len(chosen)} permutations of {command.parts} parts in {out}; Hamming distance: "
        f"minimum {distances.minimum}, mean {distances.mean:.3f}, maximum {distances.maximum}"
    )
    _write_json(command.json, "permutations", command.criterion, to_dict(command), to_dict(distances))
    return 0


def pack(args: Sequence[str]) -> int:
    """`unshuffle pack`."""
    command = _parse(PackCommand, "pack", args)
    from unshuffle.data import pack as packing

    store = packing.pack(
        command.kind,
        command.src.expanduser(),
        command.out.expanduser(),
        short_side=command.short_side,
        encoding=command.encoding,
        quality=command.quality,
        every=command.every,
        workers=command.workers,
    )
    found, skipped = counted(len(store), command.kind), counted(len(store.skipped), "files")
    print(f"{found} in {command.out}, {skipped} skipped")
    _print_skipped(store.skipped, command.out / "skipped.jsonl")
    return 0


def _print_skipped(skipped: Sequence[tuple[str, str]], listed: Path) -> None:
    for name, reason in skipped[:10]:
        print(f"  skipped {name}: {reason}")
    if len(skipped) > 10:
        print(f"  and {len(skipped) - 10} more, listed in {listed}")


def export(args: Sequence[str]) -> int:
    """`unshuffle export`."""
    command = _parse(ExportCommand, "export", args)
    from unshuffle.evaluation.features import find_backbone
    from unshuffle.models import export as exporting

    out = command.out or exporting.default_file(command.weights, command.format, fold=command.fold)
    out = out.expanduser()
    findings = exporting.export(find_backbone(command.weights), out, command.format, fold=command.fold)
    difference = f", within {findings['difference']:.1e} of torch" if "difference" in findings else ""
    print(f"{findings['architecture']} in {out}, {findings['bytes'] / 1e6:.1f} MB{difference}")
    _write_json(command.json, "export", command.format, to_dict(command), findings)
    return 0


def embed(args: Sequence[str]) -> int:
    """`unshuffle embed`."""
    command = _parse(EmbedCommand, "embed", args)
    from unshuffle.accelerator import choose_device
    from unshuffle.data.dataset import Square, open_dataset
    from unshuffle.evaluation import embed as embedding
    from unshuffle.evaluation.features import find_backbone

    backbone, out = find_backbone(command.weights, command.seed), command.out.expanduser()
    size = command.size or backbone.eval_size
    embedder = embedding.Embedder(backbone, size, choose_device(command.device), command.batch)
    data = open_dataset(command.data, kind=command.kind, labelled=False, square=Square(size), frames=command.frames)
    done = embedding.embed(embedder, data, out, workers=command.workers)
    rows, skipped = counted(done.rows, data.kind), counted(len(done.skipped), "files")
    print(f"{rows}, {done.dimensions} features each, in {out}; {skipped} skipped")
    _print_skipped(done.skipped, embedding.skipped_file(out))
    _write_json(command.json, "embed", f"pool5 at {size} px", to_dict(command), to_dict(done))
    return 0


def evaluate(args: Sequence[str]) -> int:
    """`unshuffle evaluate`."""
    from rich.console import Console

    from unshuffle.evaluation.protocol import find_evaluation, rounded

    if not args or args[0] in HELP:
        print(_evaluations())
        return 0 if args else 2
    name, *options = args
    kind = find_evaluation(name)
    base = kind.quick() if _option(options, "preset") == "quick" else kind()
    command = _parse(kind, f"evaluate {name}", options, replace(base, weights=tyro.MISSING))
    if command.out is not None:
        check_folder(command.out.expanduser(), "--out")
    console = Console()
    try:
        with stopping_at_once():
            result = command.run(console)
    except Stopped as stop:
        kept = f"what is done is kept in {command.out}; the same command goes on from there"
        lost = "nothing is kept, as there is no --out for it"
        print(f"stopped {stop}; {kept if command.out else lost}".replace(" ;", ";"), file=sys.stderr)
        return 128 + stop.signum
    sentence = f"{result.protocol}: {result.statement}"
    say(console, sentence)
    if result.table is not None:
        console.print(result.table)
    if command.out is not None and result.neighbours is not None:
        from unshuffle.report.pictures import draw_evaluation

        for picture in draw_evaluation(result, command.weights, command.out.expanduser()):
            say(console, f"a picture: {picture}")
    _write_json(command.json, f"evaluate {name}", result.protocol, to_dict(command), rounded(result.metrics))
    return 0


def report(args: Sequence[str]) -> int:
    """`unshuffle report`."""
    command = _parse(ReportCommand, "report", args)
    if not command.runs:
        raise UserError("name a run folder, or several; see unshuffle report --help")
    from unshuffle.report.page import write_report
    from unshuffle.report.subjects import check_page, default_file, find_subjects, find_tables

    folders = [folder.expanduser() for folder in command.runs]
    out = default_file(folders) if command.out is None else command.out.expanduser()
    subjects = find_subjects(folders)
    check_page(out)
    write_report(subjects, out, tables=find_tables(folders))
    print(f"{counted(len(subjects), 'runs')} in {out}, {out.stat().st_size / 1e6:.1f} MB")
    return 0


def _evaluations() -> str:
    from unshuffle.evaluation.protocol import EVALUATIONS

    lines = ["usage: unshuffle evaluate NAME --weights W [OPTIONS] [--preset paper|quick] [--json FILE]", ""]
    lines += [f"  {name:20}{entry.summary}" for name, entry in EVALUATIONS.items()]
    return "\n".join([*lines, "", "unshuffle evaluate NAME --help lists the options of an evaluation."])


def analyze(args: Sequence[str]) -> int:
    """`unshuffle analyze`."""
    from rich.console import Console

    from unshuffle.analysis.question import find_question

    if not args or args[0] in HELP:
        print(_analyses())
        return 0 if args else 2
    name, *options = args
    command = _parse(find_question(name), f"analyze {name}", options, positional=True)
    if command.out is not None:
        check_folder(command.folder, "--out")
    console = Console()
    analysis = command.answer(console)
    say(console, analysis.statement)
    if analysis.summary is not None:
        console.print(analysis.summary)
    for path in analysis.write(command.folder, to_dict(command)):
        say(console, f"  {path}")
    _write_json(command.json, f"analyze {name}", analysis.statement, to_dict(command), analysis.metrics)
    return 0


def _analyses() -> str:
    from unshuffle.analysis.question import QUESTIONS

    lines = ["usage: unshuffle analyze NAME ... [OPTIONS] [--out FOLDER] [--json FILE]", ""]
    lines += [f"  {name:14}{entry.summary}" for name, entry in QUESTIONS.items()]
    return "\n".join([*lines, "", "unshuffle analyze NAME --help lists the options of an analysis."])


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], type[Any]]] = {
    "pretrain": (pretrain, PretrainCommand),
    "doctor": (doctor, DoctorCommand),
    "permutations": (permutations, PermutationsCommand),
    "pack": (pack, PackCommand),
    "evaluate": (evaluate, EvaluateCommand),
    "analyze": (analyze, AnalyzeCommand),
    "ablate": (ablate, AblateCommand),
    "report": (report, ReportCommand),
    "bench": (bench, BenchCommand),
    "export": (export, ExportCommand),
    "embed": (embed, EmbedCommand),
}


def main() -> None:
    """Entry point of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be valid text
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run a command line and give its exit code: 2 with one sentence for what the user can put right."""
    try:
        if not args or args[0] in HELP:
            print(_usage())
            return 0 if args else 2
        if args[0] == "--version":
            print(f"unshuffle {__version__}")
            return 0
        if args[0] not in COMMANDS:
            hint = did_you_mean(args[0], COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise UserError(f"there is no command '{args[0]}'{hint}")
        command, _ = COMMANDS[args[0]]
        return command(args[1:])
    except ReportedElsewhere:
        return 2
    except UserError as error:
        print(f"unshuffle: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unshuffle: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError:
        print("unshuffle: out of memory: lower the batch size or permutations.per_sample", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not worth importing torch for
            raise
        print("unshuffle: out of GPU memory: lower the batch size or permutations.per_sample", file=sys.stderr)
        return 2
    except OSError as error:  # no such folder, no permission, disk full: the system says it best
        print(f"unshuffle: {error}", file=sys.stderr)
        return 2


def _usage() -> str:
    lines = [
        "usage: unshuffle COMMAND [OPTIONS]",
        "",
        "Learn visual features by putting things back in order.",
        "",
    ]
    lines += [f"  {name:14}{options.__doc__}" for name, (_, options) in COMMANDS.items()]
    return "\n".join([*lines, "", "unshuffle COMMAND --help lists the options of a command."])


def _config_of(command: Config) -> Config:
    """The config alone, without the options that only the command has."""
    return Config(**{name: getattr(command, name) for name in Config.__dataclass_fields__})


def _parse_run(command: type[T], args: Sequence[str]) -> T:
    """Parse the options of a run on top of a preset, a config file or, with --resume, the run's own config."""
    name = command.__name__.removesuffix("Command").lower()
    asks_for_help = {*HELP, *HELP_ALL} & set(args)
    resume = "--resume" in args and not asks_for_help
    base = _base_config(_option(args, "preset"), _option(args, "config"), _option(args, "out"), resume)
    default = command(**{field: getattr(base, field) for field in Config.__dataclass_fields__})
    if not asks_for_help:
        return _parse(command, name, args, default)
    shown = default if {*HELP_ALL} & set(args) else main_options(default)
    try:
        parsed: T = _parse(type(shown), name, ["--help"], shown)
        return parsed
    finally:
        if shown is not default:
            print(f"\n{describe_sections(command)}")


def _base_config(preset: str | None, config: str | None, out: str | None, resume: bool) -> Config:
    if preset is not None and config is not None:
        raise UserError("give --preset or --config, not both: a config file names its preset")
    if resume and config is not None:
        raise UserError("give --resume or --config, not both: a resumed run has its own config")
    if resume:
        if out is None:
            raise UserError("--resume needs the run folder: give --out")
        if not Path(out, "config.yaml").is_file():
            raise UserError(f"there is no run to resume in {out}")
        return replace(read_config(Path(out, "config.yaml")), out=Path(out))
    if config is not None:
        return replace(read_config(Path(config)), out=None)
    return preset_config(preset or "demo")


def _option(args: Sequence[str], name: str) -> str | None:
    """The value of --name VALUE or --name=VALUE, before the real parse: it decides that parse's defaults."""
    for position, argument in enumerate(args):
        if argument == f"--{name}" and position + 1 < len(args):
            return args[position + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def _parse(
    command: type[T], name: str, args: Sequence[str], default: T | None = None, *, positional: bool = False
) -> T:
    """tyro's parse, with its box of complaints turned into one sentence; what must be given may be positional."""
    complaints = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaints):
            parsed: T = tyro.cli(
                command,
                prog=f"unshuffle {name}",
                args=list(args),
                use_underscores=True,
                config=(tyro.conf.PositionalRequiredArgs,) if positional else (),
                registry=OPTIONAL,
                **extra,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        help_option = HELP_ALL[0] if issubclass(command, Config) else HELP[1]
        raise UserError(f"{complaint(complaints.getvalue(), command)}; see unshuffle {name} {help_option}") from None
    json_file: Path | None = getattr(parsed, "json", None)
    if json_file is not None:
        _check_json(json_file.expanduser(), getattr(parsed, "out", None))
    return parsed


def _check_json(file: Path, out: Path | None) -> None:
    """Refuse what could not be written; folders on the way to --out, and that one, will be made."""
    made = out is not None and file.parent in (out.expanduser(), *out.expanduser().parents)
    if made and not file.parent.exists():
        check_folder(file.parent, "--json")
    else:
        check_file(file, "--json")


def _write_json(
    path: Path | None, command: str, protocol: str, config: dict[str, Any], metrics: dict[str, Any]
) -> None:
    if path is not None:
        path.expanduser().parent.mkdir(parents=True, exist_ok=True)
        write_measurement(path.expanduser(), command, protocol, config, metrics)
