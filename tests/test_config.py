from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from unshuffle.config import (
    PRESETS,
    Config,
    check,
    cpu,
    demo,
    paper,
    paper_literal,
    read_config,
    small,
    with_absolute_paths,
    with_epochs,
    with_options,
)
from unshuffle.errors import UserError
from unshuffle.options import differences, merge, write_config
from unshuffle.policy.reinforce import PolicyNetwork

PAIRS = {"grouping": "pairs", "prior_correction": False}


# the paper's numbers: section 4.1, Algorithm 1 and appendices A, B and H


@pytest.mark.parametrize("preset", [paper, paper_literal])
def test_the_presets_of_the_paper_hold_its_numbers(preset: Callable[[], Config]) -> None:
    config = preset()
    spatial, temporal = config.spatial, config.temporal
    assert (spatial.permutations, temporal.permutations) == (1000, 1000)
    assert config.permutations.criterion == "mean" and not config.permutations.include_identity
    assert config.optim.batch_size == 128 and spatial.batch_size == temporal.batch_size == 0
    for group in (config.optim.backbone, spatial.optimiser):
        assert (group.kind, group.lr) == ("sgd", 0.001)
    assert (config.optim.iterations, config.optim.milestones, config.optim.decay) == (350_000, (200_000,), 0.1)
    assert config.optim.warmup == 0 and spatial.loss_weight == temporal.loss_weight == 1
    assert (spatial.grid, spatial.parts, temporal.frames, temporal.parts) == (3, 9, 8, 8)
    assert spatial.crop_size == temporal.crop_size == 75 and not temporal.shared_crop
    assert round(spatial.image_fraction * config.data.image_short_side) == 255
    assert round(spatial.tile_fraction * (255 // 3)) == 64
    assert round(temporal.crop_fraction * 240) == 224  # of a frame of UCF-101, 320 x 240
    assert config.model.backbone == "caffenet" and config.init is None
    assert (spatial.head.kind, spatial.head.fc6, spatial.head.hidden) == ("concat", 1024, 4096)
    assert (temporal.head.kind, temporal.head.fc6, temporal.head.hidden) == ("lstm", 512, 256)
    assert spatial.head.dropout == temporal.head.dropout == 0
    assert config.data.val_size == 100 and config.data.val_images is None and config.data.val_videos is None
    assert temporal.frame_span == 0 and not temporal.reverse
    augmentation = config.augmentation
    assert augmentation.hflip == augmentation.grayscale == 0, "it names random crops and colour jitter only"
    assert augmentation.gamma > 0 and augmentation.saturation > 0 and augmentation.hue > 0 and temporal.colour_jitter


@pytest.mark.parametrize("preset", [paper, paper_literal])
def test_the_presets_of_the_paper_have_its_policy(preset: Callable[[], Config]) -> None:
    policy = preset().policy
    assert (policy.sampler, policy.inverse, policy.grouping, policy.num_groups) == (
        "reinforce",
        False,
        "permutations",
        10,
    )
    assert policy.entropy_weight > 0 and 0 < policy.reward_average_decay < 1, "entropy, moving average of the reward"
    hidden, output = (layer for layer in PolicyNetwork(policy.num_groups).layers if isinstance(layer, nn.Linear))
    assert (hidden.in_features, hidden.out_features, output.in_features, output.out_features) == (2 * 10, 16, 16, 10)


def test_paper_literal_does_what_the_paper_states_and_no_more() -> None:
    config = paper_literal()
    policy = config.policy
    for group in (config.optim.backbone, config.spatial.optimiser, config.temporal.optimiser):
        assert (group.kind, group.lr) == ("sgd", 0.001), "one SGD for the spatiotemporal network"
        assert group.momentum == group.weight_decay == 0, "it names neither"
    assert config.permutations.per_sample == 1, "line 6 of Algorithm 1: one permutation for each sample"
    assert policy.action == "batch", "line 3: one group for each batch"
    assert policy.lr == 0.01
    assert 350_000 // policy.interval == 90, "T = 90 episodes in the whole training"
    assert policy.batches < policy.interval, "an episode is a small part of the iterations between two updates"
    assert not policy.sorted_groups, "Eq. 10 has the groups in any order, and their sizes |c_j|"
    assert not (policy.size_prior or policy.scale_reward or policy.prior_correction or policy.exploration)
    assert policy.start_below >= 2, "the error is at most 1, so the policy acts from the start, whatever chance is"
    assert not config.spatial.head.centre and not config.temporal.head.centre


@pytest.mark.parametrize(
    ("tasks", "stages"),
    [
        ("S", [["spatial"]]),
        ("T+S", [["temporal", "spatial"]]),
        ("S+T+R", [["spatial", "temporal", "rotation"]]),
        ("S+T+R+I", [["spatial", "temporal", "rotation", "instance"]]),
        ("S&T", [["spatial"], ["temporal"]]),
        ("S+R&T", [["spatial", "rotation"], ["temporal"]]),
    ],
)
def test_tasks_are_joined_by_plus_and_ampersand(tasks: str, stages: list[list[str]]) -> None:
    config = replace(demo(), tasks=tasks)
    assert config.stages == tuple(map(tuple, stages))
    assert set(config.task_names) == {name for stage in stages for name in stage}


@pytest.mark.parametrize(
    ("images", "videos", "stages"),
    [
        (None, None, (("spatial", "temporal"),)),
        ("a", None, (("spatial",),)),
        (None, "b", (("spatial", "temporal"),)),
        ("a", "b", (("spatial", "temporal"),)),
    ],
)
def test_auto_is_what_the_data_allows(images: str | None, videos: str | None, stages: Any) -> None:
    assert replace(demo(), images=images, videos=videos).stages == stages
    with_instance = tuple((*stage, "instance") for stage in stages)
    assert replace(small(), images=images, videos=videos).stages == with_instance
    assert replace(cpu(), images=images, videos=videos).stages == (("instance",),)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_named(name: Any) -> None:
    config = PRESETS[name]()
    assert config.preset == name
    check(config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tasks": "S+X"}, "'X' is no task"),
        ({"tasks": "S+S"}, "only once"),
        ({"tasks": ""}, "is no task"),
        ({"tasks": "S&T", "optim": {"iterations": 1}}, "needs at least 2 iterations"),
        ({"spatial": {"grid": 1}}, "spatial.grid is 1, but must be 2 or more"),
        ({"spatial": {"grid": -1}}, "spatial.grid is -1"),
        ({"temporal": {"frames": 1}}, "temporal.frames is 1, but must be 2 or more"),
        ({"temporal": {"frames": -3}}, "temporal.frames is -3"),
        ({"spatial": {"image_fraction": 0.0}}, "spatial.image_fraction is 0.0, but must be above 0 and at most 1"),
        ({"spatial": {"batch_size": 1}}, "spatial.batch_size is 1, but batch normalisation needs 2 or more"),
        ({"spatial": {"loss_weight": 0.0}}, "spatial.loss_weight is 0"),
        ({"optim": {"backbone": {"momentum": 1.5}}}, "momentum"),
        ({"spatial": {"optimiser": {"weight_decay": -1}}}, "weight_decay"),
        ({"augmentation": {"gamma": float("nan")}}, "gamma"),
        ({"seed": 2**32}, "below 4294967296"),
        ({"data": {"frame_every": 0}}, "frame_every"),
        ({"spatial": {"tile_fraction": 0.0}}, "spatial.tile_fraction is 0"),
        ({"spatial": {"tile_fraction": 1.1}}, "spatial.tile_fraction is 1.1"),
        ({"temporal": {"crop_fraction": 0.0}}, "temporal.crop_fraction is 0"),
        ({"temporal": {"crop_fraction": 1.5}}, "temporal.crop_fraction is 1.5"),
        ({"rotation": {"crop_fraction": 1.5}}, "rotation.crop_fraction is 1.5"),
        ({"instance": {"views": {"hue": 0.6}}}, "instance.views.hue is 0.6"),
        ({"instance": {"views": {"scale": [0.5]}}}, "instance.views.scale has 1 value, but must have"),
        ({"instance": {"views": {"ratio": [2.0, 1.0]}}}, "instance.views.ratio is 2.0 1.0, but the smaller number"),
        ({"augmentation": {"grayscale": -0.1}}, "augmentation.grayscale is -0.1"),
        ({"augmentation": {"grayscale": 1.1}}, "augmentation.grayscale is 1.1"),
        ({"augmentation": {"hflip": 2.0}}, "augmentation.hflip is 2"),
        ({"data": {"val_size": 0}}, "data.val_size"),
        ({"data": {"test_size": -1}}, "data.test_size"),
        ({"images": "a", "data": {"test_images": "a"}}, "images and data.test_images are both a"),
        ({"images": "a", "data": {"val_images": "./b/../a/"}}, "images and data.val_images are both ./b/../a/"),
        ({"videos": "v", "data": {"val_videos": "a", "test_videos": "a"}}, "data.val_videos and data.test_videos are"),
        ({"videos": "v", "data": {"test_images": "a"}}, "data.test_images would not be used: give --images"),
        ({"policy": {"sampler": "exp3", "action": "batch"}}, "policy.sampler exp3 mixes a preferred group"),
        ({"policy": {"sampler": "rollouts", "action": "batch"}}, "policy.sampler rollouts mixes a preferred group"),
        ({"policy": {"sampler": "exp3", "discount": 0.5}}, "policy.discount is for policy.sampler reinforce"),
        ({"data": {"max_bad_fraction": 2.0}}, "data.max_bad_fraction is 2"),
        ({"optim": {"iterations": 0}}, "optim.iterations"),
        ({"optim": {"batch_size": 1}}, "optim.batch_size"),
        ({"optim": {"decay": 0.0}}, "optim.decay is 0"),
        ({"optim": {"decay": 1.5}}, "optim.decay is 1.5"),
        ({"optim": {"backbone": {"lr": 0.0}}}, "optim.backbone.lr is 0"),
        ({"spatial": {"optimiser": {"lr": -1.0}}}, "spatial.optimiser.lr is -1"),
        ({"temporal": {"optimiser": {"lr": float("nan")}}}, "temporal.optimiser.lr is nan"),
        ({"permutations": {"per_sample": 0}}, "permutations.per_sample"),
        ({"spatial": {"permutations": 1}}, "spatial.permutations is 1,"),
        ({"temporal": {"permutations": 0}}, "temporal.permutations is 0,"),
        ({"temporal": {"permutations": 720}}, "6 parts have only 719"),
        ({"temporal": {"permutations": 721}, "permutations": {"include_identity": True}}, "6 parts have only 720"),
        ({"spatial": {"permutations": 24, "grid": 2}}, "4 parts have only 23"),
        ({"spatial": {"head": {"dropout": 1.5}}}, "spatial.head.dropout is 1.5"),
        ({"temporal": {"head": {"dropout": -0.5}}}, "temporal.head.dropout is -0.5"),
        ({"spatial": {"head": {"fc6": 0}}}, "spatial.head.fc6 is 0"),
        ({"temporal": {"head": {"hidden": 0}}}, "temporal.head.hidden is 0"),
        ({"monitor": {"gallery": "somewhere"}}, "go together"),
        ({"monitor": {"queries": "somewhere"}}, "go together"),
        ({"log": {"train_every": 0}}, "log.train_every"),
        ({"log": {"monitor_every": 0}}, "log.monitor_every"),
        ({"policy": {"batches": 4000}}, "but must be at least policy.batches"),
        ({"data": {"clip_frames": 3}}, "data.clip_frames is 3, but must be 0 or at least temporal.frames, which is 6"),
        ({"policy": {"num_groups": 1}}, "policy.num_groups is 1, but must be 2 or more"),
        ({"policy": {"sampler": "rollouts", "discount": 0.9}}, "policy.discount is for policy.sampler reinforce"),
        ({"policy": {"sampler": "rollouts", "entropy_weight": 0.0}}, "needs a policy.entropy_weight above 0"),
        ({"policy": {"sampler": "uniform", "inverse": True}}, "policy.inverse needs a sampler with a preference"),
        ({"policy": {"grouping": "pairs", "action": "batch"}}, "leave policy.action at mixture"),
        ({"policy": {"grouping": "pairs"}}, "switch policy.prior_correction off, or leave policy.grouping at"),
        ({"policy": {"action": "sample"}}, "policy.action"),
        ({"policy": {"mixture_noise": 0.0}}, "policy.mixture_noise is 0"),
        (
            {"policy": {**PAIRS, "candidates": 2, "num_groups": 17}},
            "policy.num_groups is 17, but a sample has only policy.candidates times permutations.per_sample, 16,",
        ),
        ({"policy": {"rollout_iterations": 0}}, "policy.rollout_iterations is 0"),
        ({"policy": {"candidates": 0}}, "policy.candidates is 0"),
        ({"log": {"checkpoint_every": 0}}, "log.checkpoint_every"),
        ({"log": {"keep_checkpoints": 0}}, "log.keep_checkpoints"),
    ],
)
def test_impossible_configs_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(merge(demo(), values))


@pytest.mark.parametrize(
    "values",
    [
        {"spatial": {"grid": 2, "permutations": 23}},
        {"temporal": {"permutations": 719}},
        {"temporal": {"permutations": 720}, "permutations": {"include_identity": True}},
        {"spatial": {"tile_fraction": 1.0}, "temporal": {"crop_fraction": 1.0}, "augmentation": {"grayscale": 0.0}},
        {"optim": {"batch_size": 2, "iterations": 1, "decay": 1.0}},
        {"rotation": {"batch_size": 2, "loss_weight": 0.1}, "tasks": "R"},
        {"data": {"val_size": 1, "max_bad_fraction": 1.0}},
        {"monitor": {"gallery": "one", "queries": "other"}},
        {"policy": {"sampler": "rollouts", "discount": 0.0, "rollout_iterations": 1}},
        {"policy": {**PAIRS, "candidates": 2, "num_groups": 16, "discount": 0.9}},
        {"policy": {**PAIRS, "candidates": 1, "num_groups": 8}},
        {"policy": {"grouping": "pairs", "sampler": "uniform", "num_groups": 8}},
        {"policy": {"mixture_noise": 1e-3, "sorted_groups": False}},
        {"policy": {"candidates": 1, "num_groups": 10}},
    ],
)
def test_values_at_their_limits_are_accepted(values: dict[str, Any]) -> None:
    check(merge(demo(), values))


def test_configs_cannot_be_changed_in_place() -> None:
    def check_frozen(config: Any) -> None:
        name = fields(config)[0].name
        with pytest.raises(AttributeError):
            setattr(config, name, None)
        for field in fields(config):
            if is_dataclass(value := getattr(config, field.name)):
                check_frozen(value)

    check_frozen(Config())


# files


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
            "data": {"sibling_pattern": r"(v_.*_g\d+): 'c'", "max_bad_fraction": 1e-9},
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
        ("optim: {backbone: {rate_of_learning: 1}}", r"unknown key optim\.backbone\.rate_of_learning;"),
        ("7: 1", "unknown key 7"),
        ("seed: one", "seed is 'one', but must be a whole number"),
        ("seed: 1.5", "seed is 1.5, but must be a whole number"),
        ("seed: true", "seed is True, but must be a whole number"),
        ("seed: null", "seed is None, but must be a whole number"),
        ("optim: {backbone: {lr: fast}}", "optim.backbone.lr is 'fast', but must be a number"),
        ("optim: {backbone: {lr: false}}", "optim.backbone.lr is False, but must be a number"),
        ("temporal: {shared_crop: 1}", "temporal.shared_crop is 1, but must be true or false"),
        ("shuffle: {grid: 3}", "unknown key shuffle.*; runs of older versions cannot be read: start a new one"),
        ("device: 3", "device is 3, but must be text"),
        ("images: 3", "images is 3, but must be text"),
        ("init: 3", "init is 3, but must be a path"),
        ("images: [a, 3]", "images is 3, but must be text"),
        ("out: [a, b]", "out is .*, but must be a path"),
        ("tasks: 3", "tasks is 3, but must be text"),
        ("optim: {backbone: {kind: adam}}", "optim.backbone.kind is 'adam', but must be one of sgd, adamw"),
        ("optim: {precision: [fp32]}", "optim.precision is .*, but must be one of"),
        ("optim: {milestones: 5}", "optim.milestones is 5, but must be a list"),
        ("optim: {milestones: [5, x]}", "optim.milestones is 'x', but must be a whole number"),
        ("optim: 5", "optim must hold keys and values"),
        ("optim: null", "optim must hold keys and values"),
        ("preset: huge", "there is no preset 'huge'; choose one of demo, cpu, small, paper"),
        ("preset: [demo]", "there is no preset .*; choose one of demo, cpu, small, paper"),
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
    "text",
    ["optim: {trunk: {lr: 0.1}}", "policy: {grouped: pairs}", "policy: {sampler: inverse}", "shuffle: {grid: 3}"],
)
def test_a_run_of_an_older_version_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.yaml: .*; runs of older versions cannot be read: start a new one"):
        read(text, tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_config(tmp_path / "mine.yaml")
    assert "older versions" not in str(caught.value), "a file of one's own is more likely misspelt"


# short names, epochs and paths


def test_options_from_python_have_short_names_too() -> None:
    config = with_options(demo(), {"iterations": 7, "lr": 0.004, "optim": {"warmup": 3}})
    assert (config.optim.iterations, config.optim.warmup, config.optim.backbone.lr) == (7, 3, 0.004)
    assert config.spatial.optimiser.lr == 0.004, "the demo's head has the same learning rate as its backbone"
    with pytest.raises(UserError, match="lr is 'fast', but must be a number"):
        with_options(demo(), {"lr": "fast"})
    with pytest.raises(UserError, match="optim must hold keys and values"):
        with_options(demo(), {"optim": 3})


def test_iterations_replace_the_epochs_of_a_config() -> None:
    stored = replace(demo(), optim=replace(demo().optim, epochs=5.0, iterations=70))
    assert with_options(stored, {"iterations": 9}).optim.epochs is None
    assert with_options(stored, {"seed": 1}).optim == stored.optim
    with pytest.raises(UserError, match=r"optim\.milestones counts iterations"):
        with_options(stored, {"optim": {"milestones": [3]}})


def test_epochs_become_iterations_of_the_task_with_the_largest_batches() -> None:
    config = with_options(demo(), {"epochs": 2, "batch_size": 5, "spatial": {"batch_size": 2}})
    fitted, (sentence,) = with_epochs(config, {"spatial": 95, "temporal": 60})
    assert fitted.optim.iterations == 24, "60 clips in batches of 5 are 12 steps; 95 images in batches of 2 are 48"
    assert (fitted.optim.warmup, fitted.optim.milestones) == (3, (18,)), "50 and 300 of 400"
    assert fitted.optim.epochs == 2
    assert sentence == "2 epochs of 60 training samples (temporal task), in batches of 5, are 24 iterations"
    assert with_epochs(fitted, {"spatial": 95, "temporal": 60})[0] == fitted, "a second time nothing changes"
    unscaled, _ = with_epochs(config, {"spatial": 95, "temporal": 60}, scale=False)
    assert (unscaled.optim.iterations, unscaled.optim.milestones) == (24, (300,))
    assert with_epochs(demo(), {}) == (demo(), [])


def test_every_stage_has_all_epochs() -> None:
    config = with_options(demo(), {"epochs": 1.5, "batch_size": 10, "tasks": "S&T"})
    fitted, (sentence,) = with_epochs(config, {"spatial": 95, "temporal": 60})
    assert fitted.optim.iterations == 2 * 15
    assert sentence.startswith("1.5 epochs in each stage of 95 training samples (spatial task)")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        "images": ["photos", "../more", "/data/x", "~/pictures"],
        "videos": "s3://bucket/{000..003}.tar",
        "out": "runs/a",
        "init": "weights.safetensors",
        "data": {"val_images": "val", "cache": "cache"},
        "monitor": {"gallery": "synthetic:images:10:0", "queries": "queries"},
        "spatial": {"permutation_file": "psi.npy"},
    }
    config = with_absolute_paths(merge(demo(), values))
    assert config.images == (f"{tmp_path}/photos", f"{tmp_path.parent}/more", "/data/x", "~/pictures")
    assert (config.videos, config.out) == ("s3://bucket/{000..003}.tar", tmp_path / "runs/a")
    assert config.init == tmp_path / "weights.safetensors"
    assert (config.data.val_images, config.data.cache) == (f"{tmp_path}/val", tmp_path / "cache")
    assert (config.monitor.gallery, config.monitor.queries) == ("synthetic:images:10:0", f"{tmp_path}/queries")
    assert config.spatial.permutation_file == tmp_path / "psi.npy"
    assert with_absolute_paths(config) == config
    assert with_absolute_paths(replace(demo(), init=Path("pretrained"))).init == Path("pretrained")
    assert with_absolute_paths(demo()) == demo()


def test_several_folders_are_one_option(tmp_path: Path) -> None:
    assert read("images: [a, b]", tmp_path).images == ("a", "b")
    assert read("images: [a]", tmp_path).images == "a"
    with pytest.raises(UserError, match=r"images and data\.val_images are both b"):
        check(merge(demo(), {"images": ["a", "b"], "data": {"val_images": "b"}}))
    with pytest.raises(UserError, match="images is an empty list"):
        check(merge(demo(), {"images": []}))
