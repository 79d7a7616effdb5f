import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from safetensors.torch import load_file

from unshuffle import cli, pretrain
from unshuffle.ablation import job as job_module
from unshuffle.ablation.ablation import HEADLINES, PAPER_ARMS, _logged, ablate, make_plan
from unshuffle.ablation.arms import find_arms
from unshuffle.config import demo, preset_config
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import EVALUATIONS, Result
from unshuffle.files import locked
from unshuffle.options import merge
from unshuffle.runs.run import Run


def stamps(folder: Path) -> dict[str, int]:
    """When each file of finished work was written; tables and logs are the ablation's own."""
    files = [path for path in folder.glob("*/seed-*/**/*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


def test_the_papers_arms_by_the_command_line(
    tmp_path: Path, tiny_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "figures.json"
    line = ["ablate", *tiny_line, "--seeds", "2", "--out", str(out), "--json", str(file), "--jobs", "1"]
    assert cli.run(line) == 0
    printed = capsys.readouterr().out
    assert "jobs: 14 (arms 7 × seeds 2), 0 finished before" in printed
    assert (out / "table.txt").read_text(encoding="utf-8") in printed
    document = json.loads(file.read_text())
    assert document["command"] == "ablate" and document["config"]["seeds"] == [0, 1]
    assert list(document["metrics"]) == list(PAPER_ARMS)

    values = []
    for seed in (0, 1):  # the obvious way: the last test error that each run has logged
        lines = (out / "S-and-T" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        tests = [entry["error"] for entry in entries if (entry["kind"], entry.get("task")) == ("test", "temporal")]
        values.append(tests[-1])
    summary = document["metrics"]["S&T"]["error.temporal"]
    assert summary["seeds"] == {"0": values[0], "1": values[1]}
    assert summary["mean"] == pytest.approx(sum(values) / 2)
    assert summary["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert "error.temporal" not in document["metrics"]["S"] and "monitor.seconds" not in document["metrics"]["S"]
    assert "error: test error, for ordering tasks over all (permutation, sample) pairs" in printed
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert {(row["arm"], row["seed"]) for row in rows} == {(arm, seed) for arm in PAPER_ARMS for seed in "01"}
    assert r"S\&T & 2 &" in (out / "table.tex").read_text(encoding="utf-8")

    before = stamps(out)
    assert cli.run([*line, "--arms", "S", "S+T+P"]) == 0  # a subset of what is done
    assert "jobs: 4 (arms 2 × seeds 2), 4 finished before" in capsys.readouterr().out
    assert stamps(out) == before


def test_errors_are_those_on_the_test_set_where_there_is_one() -> None:
    def entry(iteration: int, kind: str, task: str, error: float) -> dict[str, Any]:
        return {"iteration": iteration, "kind": kind, "seconds": 1.0, "task": task, "error": error}

    log = [
        entry(0, "test", "spatial", 0.9),
        entry(0, "validation", "spatial", 0.8),
        entry(5, "test", "spatial", 0.5),
        entry(5, "validation", "spatial", 0.4),
        entry(5, "validation", "temporal", 0.3),
        {"iteration": 5, "kind": "monitor", "seconds": 2.0, "top1": 60.0},
    ]
    assert _logged(log) == {"error.spatial": 0.5, "error.temporal": 0.3, "monitor.top1": 60.0}


def test_arms_with_rotation_and_instance_by_the_command_line(
    tmp_path: Path, tiny_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "figures.json"
    line = ["ablate", *tiny_line, "--arms", "S+T+R+I", "S+T+P", "--out", str(out), "--json", str(file), "--jobs", "1"]
    assert cli.run(line) == 0
    capsys.readouterr()
    metrics = json.loads(file.read_text())["metrics"]
    assert list(metrics) == ["S+T+R+I", "S+T+P"]
    assert 0 <= metrics["S+T+R+I"]["error.rotation"]["mean"] <= 1 and "error.rotation" not in metrics["S+T+P"]
    runs = [Run(out / arm / "seed-0") for arm in metrics]
    assert [(run.config.tasks, run.config.policy.sampler) for run in runs] == [
        ("S+T+R+I", "uniform"),
        ("S+T", "reinforce"),
    ]
    rotation, policy, _ = csv.DictReader((out / "table.csv").open())
    assert list(rotation)[2:10:2] == [f"error.{task} mean" for task in ("spatial", "temporal", "rotation", "instance")]
    assert float(rotation["error.rotation mean"]) == metrics["S+T+R+I"]["error.rotation"]["mean"]
    assert policy["arm"] == "S+T+P" and policy["error.rotation mean"] == ""


def test_killed_halfway_and_started_again_it_repeats_nothing_that_was_finished(
    tmp_path: Path, tiny_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    lengths = ["--optim.iterations", "100", "--log.checkpoint_every", "20"]
    line = ["ablate", *tiny_line, *lengths, "--arms", "S", "T", "--out", str(out), "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads as here, for the same sums
    process = subprocess.Popen([sys.executable, "-m", "unshuffle", *line], stdout=subprocess.DEVNULL, env=environment)
    checkpoints = out / "T" / "seed-0" / "checkpoints"
    while process.poll() is None and not any(checkpoints.glob("*.pt")):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    first = {name: when for name, when in stamps(out).items() if name.startswith("S/")}
    assert "S/seed-0/backbone.safetensors" in first
    assert not (out / "T" / "seed-0" / "backbone.safetensors").exists()

    assert cli.run(line) == 0
    printed = capsys.readouterr().out
    assert "jobs: 2 (arms 2 × seeds 1), 1 finished before" in printed and "T, seed 0  resuming at iteration " in printed
    assert {name: when for name, when in stamps(out).items() if name.startswith("S/")} == first
    assert cli.run(["ablate", *line[1:], "--arms", "T", "--out", str(tmp_path / "unbroken")]) == 0
    ended = [load_file(folder / "T" / "seed-0" / "backbone.safetensors") for folder in (out, tmp_path / "unbroken")]
    assert all(bool((ended[0][key] == ended[1][key]).all()) for key in ended[1])


def test_jobs_in_other_processes_stop_when_their_parent_is_killed(tmp_path: Path, tiny_line: list[str]) -> None:
    out = tmp_path / "out"
    line = ["ablate", *tiny_line, "--arms", "S", "T", "--optim.iterations", "1000000", "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "unshuffle", *line], stdout=subprocess.DEVNULL)
    while process.poll() is None and not all(any((out / arm).glob("*/checkpoints/*.pt")) for arm in "ST"):
        time.sleep(0.05)
    process.kill()
    process.wait()
    for arm in "ST":
        with locked(out / "logs" / f"{arm}-seed-0.lock"):  # held for as long as the job lives
            assert not (out / arm / "seed-0" / "backbone.safetensors").exists()


def test_one_failing_arm_does_not_lose_the_others(
    tmp_path: Path, tiny_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"broken": {"tasks": "S", "optim": {"backbone": {"lr": 1e30}}}, "fine": {"tasks": "S"}}
    (tmp_path / "arms.yaml").write_text(yaml.safe_dump(arms, sort_keys=False))
    line = ["ablate", *tiny_line, "--arms", str(tmp_path / "arms.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert cli.run(line) == 1
    printed = capsys.readouterr()
    assert "broken, seed 0  failed after" in printed.out and "fine, seed 0    done in" in printed.out
    assert printed.err.startswith("unshuffle: broken, seed 0 failed: the network's weights or outputs overflowed")
    assert len(printed.err.splitlines()) == 1
    rows = {row["arm"]: row for row in csv.DictReader((tmp_path / "out" / "table.csv").open())}
    assert rows["broken"]["seeds"] == "0/1" and rows["broken"]["error.spatial mean"] == ""
    assert rows["fine"]["seeds"] == "1" and rows["fine"]["error.spatial mean"] and not rows["fine"]["error.spatial std"]


def test_evaluations_are_made_once_and_again_only_with_other_options(
    tmp_path: Path, tiny: dict[str, Any], labelled: Path
) -> None:
    out = tmp_path / "out"
    data = {"train": labelled, "test": labelled}
    evaluations: dict[str, Any] = {
        "retrieval": {**data, "top": (1, 2)},
        "classes": {"evaluation": "linear", "preset": "quick", "layers": ["pool5"], **data},
    }
    ablation = ablate(out, arms=["S"], seeds=[3], evaluations=evaluations, **tiny)
    assert not ablation.failures
    assert ablation.table.columns == ["error.spatial", "monitor.top1", "retrieval.top1", "classes.pool5.top1"]
    assert ablation.figures["S"][3]["retrieval.top1"] == 100.0  # every query is in the gallery
    folder = out / "S" / "seed-3" / "evaluations"
    assert sorted(path.name for path in folder.iterdir()) == ["classes.json", "retrieval.json"]
    document = json.loads((folder / "classes.json").read_text())
    assert document["command"] == "evaluate linear" and document["config"]["seed"] == 3
    before = stamps(out)
    ablate(out, arms=["S"], seeds=[3], evaluations=evaluations, **tiny)
    assert stamps(out) == before
    evaluations["retrieval"]["top"] = (1, 3)
    ablation = ablate(
        out, arms=["S"], seeds=[3], evaluations=evaluations, columns=["retrieval.top3", "no.such"], **tiny
    )
    assert ablation.table.rows["S"]["retrieval.top3"].values == (100.0,)
    assert {name for name, when in stamps(out).items() if before.get(name) != when} == {
        "S/seed-3/evaluations/retrieval.json"
    }


def test_arms_share_initial_weights(tmp_path: Path, tiny: dict[str, Any]) -> None:
    warm = pretrain(out=tmp_path / "warm", **tiny)
    samplers = {name: {"policy": {"sampler": name}} for name in ("uniform", "reinforce", "exp3")}
    samplers["inverse"] = {"policy": {"sampler": "reinforce", "inverse": True}}
    ablation = ablate(tmp_path / "out", arms=samplers, init=warm.folder, tasks="S", **tiny)
    assert not ablation.failures
    initial = {next(job.run.metrics("monitor"))["rankme"] for job in ablation.plan.jobs}
    assert initial == {list(warm.metrics("monitor"))[-1]["rankme"]}
    assert set(ablation.table.rows) == {*samplers, "iteration 0"}


def test_the_papers_figures_stand_beside_its_evaluations(tmp_path: Path, tiny: dict[str, Any]) -> None:
    out = tmp_path / "out"
    arms = {"S": find_arms(["S"], demo())["S"], "mine": {"tasks": "S"}}
    ablate(out, arms=arms, **tiny)
    evaluations = {"voc-classification": {"preset": "quick", "voc": str(tmp_path)}}
    plan = make_plan(out, merge(preset_config("demo"), tiny), arms, 1, evaluations)
    for job in plan.jobs:  # as if they had been evaluated
        result = Result("by hand", "", {"mAP_area": 40.0})
        job.write_evaluation("voc-classification", job.evaluation("voc-classification"), result)
    ablation = ablate(out, arms=arms, evaluations=evaluations, **tiny)
    words = [line.split() for line in ablation.table.text().splitlines()]
    assert words[1][-2:] == ["40.0", "67.6"] and words[2][-2:] == ["40.0", "-"]
    assert "published, other data: Tab. 5 of the paper, with its networks and its data" in ablation.table.notes


def test_every_evaluation_has_a_column() -> None:
    assert set(HEADLINES) == set(EVALUATIONS)


def test_folders_are_packed_before_the_jobs_start(
    tmp_path: Path, tiny: dict[str, Any], labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["data"] |= {"cache": str(tmp_path / "cache"), "val_size": 2}
    stores = []
    run_job = job_module.run_job

    def noting(job: Any) -> str | None:
        stores.append([path.name for path in (tmp_path / "cache").iterdir()])
        return run_job(job)

    monkeypatch.setattr("unshuffle.ablation.launcher.run_job", noting)
    ablation = ablate(tmp_path / "out", arms=["S", "S+P"], images=str(labelled), **tiny)
    assert not ablation.failures and len(stores) == 2
    assert all(len(names) == 1 for names in stores)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"arms": ["S"], "images": "nowhere"}, "arm S: nowhere does not exist"),
        ({"arms": ["S"], "init": "nowhere"}, "arm S: there are no weights at nowhere"),
        ({"arms": {"a": {"model": {"backbone": "vgg"}}}}, "arm a: there is no backbone 'vgg'"),
        ({"arms": ["S"], "evaluations": ["retrieval"]}, "evaluation retrieval has no data"),
        ({"arms": ["S"], "device": "gpu"}, "device gpu cannot be used"),
        ({"arms": ["S"], "jobs": -1}, "jobs is -1"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(
    options: dict[str, Any], sentence: str, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=sentence):
        ablate(tmp_path / "out", **{**tiny, **options})
    assert not (tmp_path / "out").exists()


def test_a_policy_that_never_started_is_remarked(tmp_path: Path, tiny: dict[str, Any]) -> None:
    tiny["policy"] |= {"interval": 1, "batches": 1}
    options = {"arms": ["S+T", "S+T+P"], "seeds": 2, "console": Console(quiet=True)}
    idle = ablate(tmp_path / "idle", **options, **{**tiny, "policy": {**tiny["policy"], "start_below": 0.0}})
    assert idle.table.remarks == {
        "S+T+P": "the policy never started (seeds 0, 1), so sampling was uniform: no error fell below "
        "policy.start_below of chance in time"
    }
    assert "S+T+P: the policy never started" in (tmp_path / "idle" / "table.txt").read_text()
    rows = {row["arm"]: row for row in csv.DictReader((tmp_path / "idle" / "table.csv").open())}
    assert rows["S+T"]["remark"] == "" and rows["S+T+P"]["remark"].startswith("the policy never started")
    active = ablate(tmp_path / "active", **options, **{**tiny, "policy": {**tiny["policy"], "start_below": 2.0}})
    assert active.table.remarks == {}


def test_an_ablation_in_epochs_resumes(tmp_path: Path, tiny: dict[str, Any]) -> None:
    del tiny["optim"]["iterations"]
    options = {"arms": ["S", "T"], "epochs": 1, "console": Console(quiet=True), **tiny}
    first = ablate(tmp_path / "out", **options)
    assert Run(tmp_path / "out" / "S" / "seed-0").config.optim.iterations > 2 and not first.failures
    (tmp_path / "out" / "S" / "seed-0" / "backbone.safetensors").unlink()  # as if killed just before its end
    assert ablate(tmp_path / "out", **options).metrics == first.metrics
