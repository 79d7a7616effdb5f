from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unshuffle import config_file
from unshuffle.config import PRESETS, Config, demo, paper, small
from unshuffle.config_file import read_config
from unshuffle.errors import UserError
from unshuffle.options import differences, merge, to_dict, write_config


def read(text: str, folder: Path) -> Config:
    (folder / "config.yaml").write_text(text)
    return read_config(folder / "config.yaml")


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(name: Any, tmp_path: Path) -> None:
    config = PRESETS[name]()
    write_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config


def test_round_trip_of_paths_and_unusual_values(tmp_path: Path) -> None:
    config = merge(
        small(),
        {
            "images": "~/Bilder/ä b",
            "out": "runs/x",
            "tasks": "S&T",
            "seed": 7,
            "data": {"sibling_pattern": r"(v_.*_g\d+): 'c'", "max_bad_share": 1e-9},
            "optim": {"milestones": [], "backbone": {"lr": 5e-4}},
        },
    )
    write_config(config, tmp_path / "config.yaml")
    again = read_config(tmp_path / "config.yaml")
    assert again == config
    assert again.images == "~/Bilder/ä b" and again.optim.milestones == () and again.videos is None


def test_missing_keys_take_the_presets_values(tmp_path: Path) -> None:
    assert read("preset: paper\n", tmp_path) == paper()
    assert read("seed: 3\n", tmp_path) == replace(demo(), seed=3)
    config = read("preset: small\noptim: {backbone: {lr: 0.5}}\n", tmp_path)
    assert differences(small(), config) == ["optim.backbone.lr"] and config.optim.backbone.lr == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sed: 1", r"unknown key sed \(did you mean seed\?\)"),
        ("optim: {batchsize: 1}", r"unknown key optim\.batchsize \(did you mean optim\.batch_size\?\)"),
        ("optim: {backbone: {rate_of_learning: 1}}", r"unknown key optim\.backbone\.rate_of_learning$"),
        ("7: 1", "unknown key 7"),
        ("seed: one", "seed is 'one', but must be a whole number"),
        ("seed: 1.5", "seed is 1.5, but must be a whole number"),
        ("seed: true", "seed is True, but must be a whole number"),
        ("seed: null", "seed is None, but must be a whole number"),
        ("optim: {backbone: {lr: fast}}", "optim.backbone.lr is 'fast', but must be a number"),
        ("optim: {backbone: {lr: false}}", "optim.backbone.lr is False, but must be a number"),
        ("shuffle: {shared_crop: 1}", "shuffle.shared_crop is 1, but must be true or false"),
        ("device: 3", "device is 3, but must be text"),
        ("images: 3", "images is 3, but must be text"),
        ("init: 3", "init is 3, but must be a path"),
        ("images: [a, b]", "images is .*, but must be text"),
        ("tasks: X", "tasks is 'X', but must be one of auto, S, T, S\\+T, S&T"),
        ("optim: {backbone: {optimiser: adam}}", "optim.backbone.optimiser is 'adam', but must be one of sgd, adamw"),
        ("optim: {precision: [fp32]}", "optim.precision is .*, but must be one of"),
        ("optim: {milestones: 5}", "optim.milestones is 5, but must be a list"),
        ("optim: {milestones: [5, x]}", "optim.milestones is 'x', but must be a whole number"),
        ("optim: 5", "optim must hold keys and values"),
        ("optim: null", "optim must hold keys and values"),
        ("preset: huge", "there is no preset 'huge'; there are demo, small, paper"),
        ("preset: [demo]", "there is no preset .*; there are demo, small, paper"),
        ("just words", "must hold keys and values"),
        ("", "must hold keys and values"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_wrong_keys_and_values_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(text, tmp_path)
    assert "config.yaml" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config file .*absent\.yaml"):
        read_config(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "binary.yaml")


@pytest.mark.parametrize(("text", "expected"), [("5e-4", 5e-4), ("1e3", 1000.0), ("1", 1.0), ("'0.25'", 0.25)])
def test_numbers_in_every_notation(text: str, expected: float, tmp_path: Path) -> None:
    lr = read(f"optim: {{backbone: {{lr: {text}}}}}", tmp_path).optim.backbone.lr
    assert lr == expected and type(lr) is float


def test_lists_become_tuples(tmp_path: Path) -> None:
    assert read("optim: {milestones: [10, 20]}", tmp_path).optim.milestones == (10, 20)


def test_null_clears_a_path(tmp_path: Path) -> None:
    assert read("images: null", tmp_path).images is None
    assert merge(replace(demo(), images="a"), {"images": None}).images is None


@pytest.mark.parametrize(
    ("text", "key"), [("optim: {trunk: {lr: 0.1}}", "optim.trunk"), ("preset: small\nold: {grid: 3}", "old")]
)
def test_a_config_of_an_older_version(text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "REMOVED_KEYS", frozenset({"optim.trunk", "old", "optim.backbone.speed"}))
    with pytest.raises(UserError) as caught:
        read(text, tmp_path)
    start = (
        f"{tmp_path / 'config.yaml'} was written by an older version of unshuffle and cannot be read: it sets {key},"
    )
    assert str(caught.value).startswith(start)
    assert read("optim: {batch_size: 7}", tmp_path).optim.batch_size == 7


def test_removed_keys_are_removed() -> None:
    for dotted in config_file.REMOVED_KEYS:
        values: Any = to_dict(demo())
        for key in dotted.split("."):
            values = values.get(key) if isinstance(values, dict) else None
        assert values is None, f"{dotted} still exists"
