import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unshuffle.cli.parsing import parse_config_command
from unshuffle.cli.pretrain import PretrainCommand
from unshuffle.config import Config, preset_config
from unshuffle.options import merge
from unshuffle.report.puzzles import solve_puzzles
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.views import add_pictures, describe_run, preset_changes, repeat_command
from unshuffle.runs.folders import find_runs
from unshuffle.runs.run import Run


def parsed(command: str) -> Config:
    program, name, *options = shlex.split(command)
    assert (program, name) == ("unshuffle", "pretrain")
    return parse_config_command(PretrainCommand, "pretrain", options).run_config()


def test_a_preset_repeats_itself() -> None:
    assert repeat_command(preset_config("paper")) == "unshuffle pretrain --preset paper"


def test_the_command_gives_the_config_back(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(images="my photos/<b>'s", out=Path("elsewhere"), init=Path("weights.safetensors"))
    config = merge(
        config,
        {
            "temporal": {"shared_crop": True, "colour_jitter": True},
            "augmentation": {"grayscale": 1e-7},
            "spatial": {"head": {"centre": False}},
            "optim": {"milestones": [3, 5]},
            "monitor": {"gallery": "a b", "queries": "-"},
            "log": {"pictures": False},
        },
    )
    assert parsed(repeat_command(config)) == replace(config, out=None)
    assert preset_changes(config)["log.pictures"] is False
    assert "out" not in preset_changes(config)


def test_the_command_of_a_run_in_epochs_over_several_folders(tiny_config: Callable[..., Config]) -> None:
    epochs = {"epochs": 3.0, "iterations": 17, "milestones": [9]}
    config = merge(tiny_config(), {"images": ["a, b", "c"], "optim": epochs})
    assert parsed(repeat_command(config)) == replace(config, optim=replace(config.optim, epochs=None))


def test_no_milestones_at_all(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config()
    assert config.optim.milestones == ()
    assert parsed(repeat_command(config)) == config


def test_sources_and_splits_are_described(run: Run, tmp_path: Path) -> None:
    copied = shutil.copytree(run.folder, tmp_path / "copied")
    source = {
        "medium": "videos",
        "address": "clips",
        "items": 30,
        "skipped": 1,
        "storage": "store",
        "path": "cache/clips",
        "short_side": 128,
        "shards": 0,
    }
    split = {"training": 24, "validation": 6, "test": 3, "requested": 100, "source": "videos"}
    splits = {"spatial": {**split, "medium": "images"}, "temporal": {**split, "medium": "videos"}}
    entry = {"iteration": 0, "kind": "start", "sources": [source], "splits": splits}
    entry |= {"versions": {}, "processes": 1}
    (copied / "metrics.jsonl").write_text(json.dumps(entry) + "\n")
    view = describe_run(*find_runs([copied]), "c0")
    assert view["sources"] == ["30 videos in clips, 1 file skipped; packed at short side 128 px in cache/clips"]
    spatial, temporal = view["remarks"]
    assert spatial.startswith("spatial task: no images were given") and "no images" not in temporal
    assert view["splits"]["temporal"]["training"] == 24


def test_a_task_that_orders_nothing_has_errors_but_no_policy(all_tasks_run: Run) -> None:
    view = describe_run(*find_runs([all_tasks_run.folder]), "c0")
    add_pictures(view, all_tasks_run, Snapshot.newest(all_tasks_run))
    assert [row.task for row in view["errors"]] == ["spatial", "temporal", "rotation"]
    assert view["tasks"]["spatial"]["orders"] and not view["tasks"]["rotation"]["orders"]
    assert list(view["policies"]) == list(view["data"]["tasks"]) == list(view["puzzles"]) == ["spatial", "temporal"]
    assert list(view["splits"]) == ["spatial", "temporal", "rotation"]


def test_a_run_without_an_ordering_task_shows_its_held_out_images(rotation_run: Run) -> None:
    view, snapshot = describe_run(*find_runs([rotation_run.folder]), "c0"), Snapshot.newest(rotation_run)
    add_pictures(view, rotation_run, snapshot)
    assert snapshot is not None and view["policies"] == view["puzzles"] == view["data"]["tasks"] == {}
    assert view["data"]["neighbours"]["names"] == list(snapshot.held_out["rotation"].names)
    assert view["splits"]["rotation"] == {
        "training": 21,
        "validation": 6,
        "test": 3,
        "requested": 6,
        "source": "images",
        "medium": "images",
    }


def test_puzzles_are_right_and_wrong_and_say_how_often(run: Run) -> None:
    view, snapshot = describe_run(*find_runs([run.folder]), "c0"), Snapshot.newest(run)
    add_pictures(view, run, snapshot)
    assert snapshot is not None
    for task, shown in view["puzzles"].items():
        everything = solve_puzzles(snapshot, task, 6, rounds=8)
        solved = [(everything.names[sample], everything.shown[sample].tolist()) for sample in everything.solved]
        assert (shown["solved"], shown["total"], shown["kept"], shown["permutations"]) == (len(solved), 48, 6, 5)
        assert [sample["solved"] for sample in shown["samples"]] == [True] * shown["right"] + [False] * shown["wrong"]
        for sample in shown["samples"]:
            assert ((sample["name"], sample["arrangements"]["shuffled"]) in solved) == sample["solved"]
        assert list(shown["samples"][0]["arrangements"]) == ["true order", "shuffled", "restored"]
