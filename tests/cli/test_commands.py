"""The command line as a user sees it: its surface, its errors, its exit codes."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unshuffle import cli
from unshuffle.config import Config
from unshuffle.runs.run import Run

TINY = [
    *("--device", "cpu", "--data.val_size", "4", "--data.workers", "1", "--log.no_pictures"),
    *("--synthetic.images", "16", "--synthetic.clips", "12", "--synthetic.gallery", "12", "--synthetic.queries", "6"),
    *("--optim.iterations", "2", "--optim.batch_size", "2", "--spatial.permutations", "4"),
    *("--temporal.permutations", "4", "--permutations.per_sample", "1", "--policy.num_groups", "2"),
]


def validations(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{**entry, "seconds": None, "time": None} for entry in entries if entry["kind"] in ("validation", "test")]


def photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("pretrian", "there is no command 'pretrian' (did you mean pretrain?)"),
        ("zzz", "there is no command 'zzz'; choose one of pretrain, "),
        ("evaluate retreival", "there is no evaluation 'retreival' (did you mean retrieval?)"),
        ("evaluate retrieval", "missing argument: --weights; see unshuffle evaluate retrieval --help"),
        ("evaluate retrieval --weights random:tiny --json no/such.json", "there is no folder no to write --json into"),
        ("evaluate retrieval --weights random:tiny --out a.yaml", "a.yaml is a file, but --out must be a folder"),
        ("bench --json .", ". is a folder, but --json must be a file"),
        ("bench --out run", "there is no option --out; see unshuffle bench --help_all"),
        ("doctor --json no/such.json", "there is no folder no to write --json into"),
        ("embed . --weights random:tiny --out f.npy --json no/f.json", "there is no folder no to write --json into"),
        ("embed . --weights random:tiny --out no/f.npy", "there are no images or videos in ."),
        ("embed x.tar --weights random:tiny --out f.npy", "x.tar does not exist"),
        ("embed gs://b/shards --weights random:tiny --out f.npy", "gs://b/shards needs a package"),
        ("pack images x.tar store", "x.tar means tar shards"),
        ("evaluate rankme --weights random:tiny --images x.tar", "x.tar does not exist"),
        ("export random:tiny --json no/such.json", "there is no folder no to write --json into"),
        ("export random:tiny --out no/such.safetensors", "there is no folder no to write --out into"),
        ("pretrain --policy.interval 3", "policy.interval is 3, but must be at least policy.batches, which is 25"),
        ("pretrain --optim.iteratons 3", "did you mean --optim.iterations?"),
        ("pretrain --optim.iterations many", "--optim.iterations is 'many', but must be a whole number; see unshuffle"),
        ("pretrain --iterations 3 --epochs 2", "give iterations or epochs, not both"),
        ("pretrain --epochs 2 --optim.warmup 5", "optim.warmup counts iterations: give iterations with it instead"),
        ("pretrain --momentum 0.5", "(did you mean --optim.backbone.momentum, --spatial.optimiser.momentum, "),
        ("pretrain --images a a", "images names a twice: leave one of them out"),
        ("pretrain --images a b.tar", "a does not exist"),
        ("pretrain --log.pictures no", "--log.pictures is 'no', but must be true or false, or have no value"),
        ("pretrain photos", "'photos' belongs to no option: give folders with --images or --videos"),
        ("pretrain --learning-rate 1", "there is no option --learning-rate (did you mean --lr?)"),
        ("pretrain --output there", "there is no option --output (did you mean --out?)"),
        ("pretrain --weights a.pth", "there is no option --weights (did you mean --init?)"),
        ("doctor --data photos", "there is no option --data (did you mean --images, --videos?)"),
        ("pretrain --optim.iterations", "--optim.iterations needs a value"),
        (
            "pretrain --tasks X",
            "tasks is 'X', but 'X' is no task: join S (spatial), T (temporal), R (rotation), I (instance) by + or &",
        ),
        ("pretrain --spatial.grid 1", "spatial.grid is 1, but must be 2 or more"),
        ("pretrain --temporal.permutations 5000", "temporal.permutations is 5000, but 6 parts have only 719"),
        ("pretrain --preset huge", "--preset is 'huge', but must be one of demo, cpu, small, paper, paper-literal"),
        ("pretrain --images nowhere", "nowhere does not exist"),
        ("pretrain --videos nowhere", "nowhere does not exist"),
        ("pretrain --resume", "--resume needs the run folder"),
        ("pretrain --resume --out a.yaml", "a.yaml is a file, but --out must be a folder"),
        ("pretrain --config nowhere.yaml", "there is no config file nowhere.yaml"),
        ("pretrain --config a.yaml --preset demo", "not both"),
        ("pretrain --seed 5000000000", "seed is 5000000000"),
        ("pretrain --spatial.crop_size 4", "spatial.crop_size 4 does not suit this backbone"),
        ("doctor --steps 0", "steps is 0, but must be 1 or more"),
        ("doctor --choices 1", "choices is 1, but must be 2 or more"),
        ("pretrain --model.backbone vgg", "there is no backbone 'vgg'"),
        ("pretrain --device gpu", "device gpu cannot be used"),
        ("pretrain --policy.num_groups 2000 --synthetic.images 105 --synthetic.clips 105", "only 100 permutations"),
        ("pretrain --device meta", "device meta cannot be used"),
        ("pretrain --out a.yaml/run", "cannot write into a.yaml"),
        ("pretrain --init nowhere", "there are no weights at nowhere"),
        ("pretrain --monitor.gallery somewhere", "go together"),
        ("permutations --parts 1 --out x.npy", "parts is 1, but must be 2 or more"),
        ("permutations --parts 3 --count 100 --out x.npy", "only 5"),
        ("pack images nowhere store", "nowhere does not exist"),
        ("pack sounds here there", "KIND is 'sounds', but must be one of images, videos"),
        ("pack images here", "missing argument: OUT"),
        ("pack images here there --quality 101", "quality is 101, but must be 1 or more and at most 100"),
        ("permutations --parts 4 --count 4 --out no/such/p.npy", "no/such"),
        ("permutations --parts 4 --count 4 --out p.npy --json no/such/p.json", "there is no folder no/such"),
        ("doctor --temporal.frames 1", "temporal.frames is 1, but must be 2 or more"),
        ("export nowhere", "there are no weights at nowhere"),
        ("export random:vgg", "there is no backbone 'vgg'"),
        ("export a.yaml --format tflite", "--format is 'tflite', but must be one of safetensors, torchvision, onnx"),
        ("export a.yaml --out b.safetensors", "a.yaml is not a complete safetensors file"),
        ("export random:tiny --format onnx --out b.pth", "must end with .onnx"),
        ("ablate --arms X", "there is no arm 'X'"),
        ("ablate --arms a.yaml", "a.yaml: seed must hold keys and values"),
        ("ablate --seeds 1 2 1", "a seed is given twice"),
        ("ablate --seeds many", "--seeds is 'many', but must be a whole number"),
        ("ablate --evaluations guess", "there is no evaluation 'guess'"),
        ("ablate --evaluations retrieval", "has no data"),
        ("ablate --evaluations retrieval --train no --test no", "no does not exist"),
        ("ablate --images nowhere --arms S", "arm S: nowhere does not exist"),
        ("ablate --json no/such/p.json", "there is no folder no/such"),
        ("ablate --launcher slurm --slurm no.yaml", "there is no slurm file no.yaml"),
        ("ablate --out a.yaml", "a.yaml is a file"),
        ("embed .", "missing argument: --out"),
        ("export random:tiny --format onnx --half --out b.onnx", "--half is for the formats safetensors and hub, not"),
        ("embed nowhere --weights random:tiny --out f.npy", "nowhere does not exist"),
        ("embed . --weights random:tiny --out f.npy", "there are no images or videos in ."),
        ("embed . --weights random:tiny --out f.npy --size 3", "short side of 3 pixels is too small"),
        ("embed . --weights random:tiny --out f.npy --frames 0", "frames is 0, but must be 1 or more"),
        ("report", "missing argument: RUNS"),
        ("report nowhere", "nowhere is not a run folder"),
        ("report .", "is not a run folder"),
    ],
)
def test_user_errors_are_one_sentence_and_exit_code_2(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("seed: 1\n")
    assert cli.run(line.split()) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.startswith("unshuffle: ")
    assert len(message.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optim:\n  iteratons: 3\n", "unknown key optim.iteratons (did you mean optim.iterations?)"),
        ("optim:\n  iterations: many\n", "optim.iterations is 'many', but must be a whole number"),
        ("- 1\n", "must hold keys and values"),
        ("a: [\n", "cannot be read as YAML"),
    ],
)
def test_errors_in_a_config_file_are_one_sentence(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert cli.run(["pretrain", "--config", str(tmp_path / "mine.yaml")]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert len(message.splitlines()) == 1


def test_a_folder_without_a_readable_image(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("not an image")
    options = ["--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    assert cli.run(["pretrain", "--images", str(tmp_path), *options]) == 2
    assert "no readable image" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_names_of_files_cannot_write_escapes_to_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "\x1b[2J\nforged.jpg").write_text("not an image")
    assert cli.run(["pack", "images", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    Image.new("RGB", (32, 32)).save(tmp_path / "in" / "good.png")
    assert cli.run(["pack", "images", str(tmp_path / "in"), str(tmp_path / "out2")]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "\x1b[2J" not in text and r"\x1b[2J\nforged.jpg" in text


def test_an_address_in_a_config_file_runs_no_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ref.json").write_text('{"version": 1, "templates": {"u": "{{ 1 }}"}, "refs": {"0.tar": ["{{u}}"]}}')
    (tmp_path / "mine.yaml").write_text(f"images: 'reference://*.tar::file://{tmp_path}/ref.json'\n")
    assert cli.run(["doctor", "--config", str(tmp_path / "mine.yaml")]) == 2
    message = capsys.readouterr().err
    assert "chains addresses by ::" in message and len(message.splitlines()) == 1


def test_pretrain_resume_and_repeat_from_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli.run(["pretrain", *TINY, "--out", str(first)]) == 0
    printed = capsys.readouterr().out
    assert "test error" in printed
    assert "before training" in printed
    assert str(first / "backbone.safetensors") in printed.replace("\n", "")
    assert cli.run(["pretrain", "--out", str(first), "--resume"]) == 0
    assert cli.run(["pretrain", "--config", str(first / "config.yaml"), "--out", str(second)]) == 0
    assert validations(first) == validations(second) != []
    assert cli.run(["pretrain", *TINY, "--out", str(first)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_resume_starts_a_run_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    run = tmp_path / "run"
    command = ["pretrain", *TINY, "--config", str(tmp_path / "mine.yaml"), "--out", str(run), "--resume"]
    assert cli.run(command) == 0
    started = validations(run)
    assert started != [] and "seed: 3" in (run / "config.yaml").read_text()
    assert cli.run(command) == 0
    assert validations(run) == started and "is finished" in capsys.readouterr().out
    assert cli.run([*command, "--seed", "4"]) == 2
    assert "a resumed run keeps its config, but seed would change" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert cli.run(["pretrain", *TINY, "--out", str(tmp_path / "full"), "--resume"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_damaged_metrics_are_counted_by_report_and_analyze(
    copied: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where `convergence` writes
    with copied.metrics_file.open("ab") as file:
        file.write(b'{"iteration": 12}\n\xff\n[]\n{"iteration": 12, "ki')
    total = len(copied.metrics_file.read_bytes().splitlines())
    sentence = f"warning: 4 of {total} lines in {copied.metrics_file} are damaged and left out\n"
    for command in (["report"], ["analyze", "cost"], ["analyze", "difficulty"], ["analyze", "convergence"]):
        assert cli.run([*command, str(copied.folder)]) == 0
        assert capsys.readouterr().err == sentence


def test_help_does_not_import_torch() -> None:
    for line in (["--help"], ["pretrain", "--help"], ["pretrain", "--iteratons", "3"], ["analyze", "--help"]):
        program = (
            "import sys; from unshuffle import cli\n"
            f"try: cli.run({line})\n"
            "except SystemExit: pass\n"
            "assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_default_folder_is_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.run(["pretrain", *TINY]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["demo-1", "demo-2"]


def test_permutations_command_writes_the_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(tmp_path / "p.npy"), "--json", str(tmp_path / "p.json")]
    assert cli.run(["permutations", "--parts", "4", "--count", "6", *options]) == 0
    assert np.load(tmp_path / "p.npy").shape == (6, 4)
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["command"] == "permutations"
    assert document["metrics"]["minimum"] >= 2
    assert "minimum" in capsys.readouterr().out
    assert cli.run(["permutations", "--parts", "4", "--count", "6", *options]) == 2
    assert "exists" in capsys.readouterr().err


def test_pack_command_then_training_on_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photos(tmp_path / "photos", 8)
    (folder / "broken.jpg").write_bytes(b"")
    store = tmp_path / "store"
    assert cli.run(["pack", "images", str(folder), str(store), "--short_side", "96"]) == 0
    (folder / "notes.txt").write_text("text")
    assert cli.run(["pack", "images", str(folder), str(store), "--short_side", "96"]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        f"8 images in {store}, 1 file skipped",
        "  skipped broken.jpg: the file is empty",
        f"  all skipped files are listed in {store}/skipped.jsonl",
        "  1 other ignored (1 .txt)",
    ]
    options = ["--images", str(store), "--out", str(tmp_path / "run"), "--data.max_bad_fraction", "0.5"]
    assert cli.run(["pretrain", *TINY, *options]) == 0
    assert "broken.jpg" in (tmp_path / "run" / "skipped.csv").read_text()
    printed = capsys.readouterr().out
    assert f"1 file skipped, all listed in {tmp_path}/run/skipped.csv\n  skipped broken.jpg: the file is emp" in printed


def test_embed_with_exported_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, weights = photos(tmp_path / "photos", 5), tmp_path / "tiny.pth"
    (folder / "broken.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("text")
    options = ["--format", "torchvision", "--out", str(weights), "--fold", "--json", str(tmp_path / "x.json")]
    assert cli.run(["export", "random:tiny", *options]) == 0
    assert f"tiny in {weights}" in capsys.readouterr().out
    assert json.loads((tmp_path / "x.json").read_text())["metrics"]["architecture"] == "tiny"
    options = ["--weights", str(weights), "--out", str(tmp_path / "f.npy"), "--json", str(tmp_path / "f.json")]
    assert cli.run(["embed", str(folder), *options, "--device", "cpu", "--size", "48"]) == 0
    printed = capsys.readouterr().out
    assert "5 images, 864 features each" in printed and f"skipped {folder / 'broken.jpg'}" in printed
    assert f"  all skipped files are listed in {tmp_path}/f.skipped.csv\n  1 other ignored (1 .txt)\n" in printed
    assert np.load(tmp_path / "f.npy").shape == (5, 864)
    document = json.loads((tmp_path / "f.json").read_text())
    assert document["command"] == "embed" and document["metrics"]["rows"] == 5
    assert cli.run(["embed", str(folder), *options]) == 2
    assert "exists" in capsys.readouterr().err


def test_doctor_reports_each_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "60", "--json", str(tmp_path / "found.json")]
    sizes = ["--synthetic.images", "120", "--synthetic.clips", "120", "--synthetic.gallery", "12"]
    assert cli.run(["doctor", "--device", "cpu", "--data.val_size", "4", *sizes, *options]) == 0
    printed = capsys.readouterr().out
    assert "spatial: passed: accuracy " in printed
    assert "temporal: passed: accuracy " in printed
    metrics = json.loads((tmp_path / "found.json").read_text())["metrics"]
    assert metrics["spatial"]["accuracy"] >= 0.95


def test_doctor_fails_when_the_learning_rate_is_too_low(capsys: pytest.CaptureFixture[str]) -> None:
    groups = ("optim.backbone", "spatial.optimiser", "temporal.optimiser")
    learning_rates = [f"--{group}.lr=1e-9" for group in groups]
    sizes = ["--synthetic.images", "140", "--synthetic.clips", "140", "--synthetic.gallery", "12"]
    assert cli.run(["doctor", "--device", "cpu", "--data.val_size", "4", "--steps", "10", *sizes, *learning_rates]) == 1
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "spatial: FAILED: accuracy " in printed and "temporal: FAILED: accuracy " in printed


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(command in usage for command in cli.COMMANDS)
    assert cli.run([]) == 2
    assert cli.run(["--version"]) == 0
    for command in cli.COMMANDS:
        assert _exit_code([command, "--help"]) == 0


def _exit_code(line: list[str]) -> int | str | None:
    try:
        return cli.run(line)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("command", ["evaluate", "analyze"])
def test_help_of_every_evaluation_and_analysis(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([command, "--help"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(names) > 5
    for name in names:
        assert _exit_code([command, name, "--help"]) == 0
        assert f"usage: unshuffle {command} {name}" in capsys.readouterr().out


def test_help_shows_the_values_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run(["pretrain", "--preset", "paper", "--help_all"])
    assert "default: 350000" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.run(["pretrain", "--preset", "paper", "--help"])
    short = capsys.readouterr().out
    assert "default: paper" in " ".join(short.split()) and "--optim.* " in short and "--optim.warmup" not in short
    assert "None" not in short
    for option in ("--iterations INT", "--epochs FLOAT", "--batch-size INT", "--lr FLOAT", "--backbone STR"):
        assert f"  {option} " in short
    assert "Training steps in all. (default: 350000)" in " ".join(short.split())


def test_the_surface_of_the_command_line_is_a_contract() -> None:
    commands = "pretrain doctor permutations pack evaluate analyze ablate report serve bench export embed neighbours"
    assert list(cli.COMMANDS) == [*commands.split(), "cache", "completion"]
    sections = {"data", "synthetic", "augmentation", "model", "optim", "permutations", "policy", "monitor", "log"}
    tasks = {"spatial", "temporal", "rotation", "instance"}
    top = {"preset", "images", "videos", "out", "init", "tasks", "seed", "device"}
    assert set(Config.__dataclass_fields__) == sections | tasks | top | {"registered"}  # which is no option


@pytest.mark.slow
def test_a_closed_pipe_does_not_end_the_training(tmp_path: Path) -> None:
    command = f"{sys.executable} -m unshuffle pretrain {' '.join(TINY)} --out run | head -1"
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "run" / "backbone.safetensors").exists()


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "demo-1"
    command = [sys.executable, "-m", "unshuffle", "pretrain", *TINY, "--optim.iterations", "100000"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / "metrics.jsonl").exists() and '"train"' in (out / "metrics.jsonl").read_text():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "unshuffle pretrain --out runs/demo-1 --resume" in message
    assert "Traceback" not in message
    assert list((out / "checkpoints").glob("*.pt"))


def test_after_ctrl_c_a_thread_inside_a_library_is_not_waited_for() -> None:
    code = "import threading, time, unshuffle.cli as cli, unshuffle.stopping as stopping\n"
    code += "stopping.GRACE_SECONDS = 0.1\ncli.run = lambda args: 130\n"
    code += "threading.Thread(target=time.sleep, args=(600,)).start()\ncli.main()\n"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 130


def test_errors_of_the_system_have_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(args: Sequence[str]) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/x")

    monkeypatch.setitem(cli.COMMANDS, "doctor", (denied, ""))
    assert cli.run(["doctor"]) == 2
    assert capsys.readouterr().err == (
        "unshuffle: /data/x cannot be used: permission denied; change its permissions, or choose another place\n"
    )


WARNS = r"""
import logging, warnings
from unshuffle import cli
def command(args):
    warnings.warn_explicit("Corrupt EXIF data", UserWarning, "TiffImagePlugin.py", 1, "PIL.TiffImagePlugin")
    logging.getLogger("PIL.TiffImagePlugin").error("More samples per pixel than can be decoded")
    warnings.warn("two\nlines of a library")
    return 0
cli.COMMANDS["doctor"] = (command, "")
cli.main()
"""


def test_warnings_of_libraries_are_one_line_and_those_of_pillow_none() -> None:
    done = subprocess.run([sys.executable, "-c", WARNS, "doctor"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "warning: two lines of a library\n")
