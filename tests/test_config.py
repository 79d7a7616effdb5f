from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from unshuffle.config import PRESETS, Config, check, demo, paper
from unshuffle.config_file import merge
from unshuffle.errors import UserError


def test_the_paper_preset_holds_the_papers_numbers() -> None:
    config = paper()
    assert config.preset == "paper"
    assert (config.permutations.spatial, config.permutations.temporal) == (1000, 1000)
    assert config.permutations.per_sample == 1 and not config.permutations.include_identity
    assert config.optim.batch_size == 128
    for group in (config.optim.backbone, config.optim.spatial, config.optim.temporal):
        assert (group.optimiser, group.lr, group.momentum, group.weight_decay) == ("sgd", 0.001, 0.9, 5e-4)
    assert (config.optim.iterations, config.optim.milestones, config.optim.decay) == (350_000, (200_000,), 0.1)
    assert config.optim.warmup == 0
    assert (config.shuffle.grid, config.shuffle.tiles, config.shuffle.frames) == (3, 9, 8)
    assert config.shuffle.crop_size == 75 and not config.shuffle.shared_crop
    assert round(config.shuffle.image_share * config.data.image_short_side) == 255
    assert round(config.shuffle.tile_share * (255 // 3)) == 64 and config.shuffle.frame_share * 256 == 224
    assert config.model.backbone == "caffenet"
    spatial, temporal = config.model.spatial, config.model.temporal
    assert (spatial.kind, spatial.fc6, spatial.hidden) == ("concat", 1024, 4096)
    assert (temporal.kind, temporal.fc6, temporal.hidden) == ("lstm", 512, 256)
    assert config.data.val_size == 100 and config.data.frame_span == 0


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible_and_named(name: Any) -> None:
    config = PRESETS[name]()
    assert config.preset == name
    check(config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shuffle": {"grid": 1}}, "shuffle.grid is 1"),
        ({"shuffle": {"grid": 0}}, "shuffle.grid is 0"),
        ({"shuffle": {"grid": -1}}, "shuffle.grid is -1"),
        ({"shuffle": {"frames": 1}}, "shuffle.frames is 1"),
        ({"shuffle": {"frames": -3}}, "shuffle.frames is -3"),
        ({"shuffle": {"image_share": 0}}, "must be in"),
        ({"optim": {"backbone": {"momentum": 1.5}}}, "momentum"),
        ({"optim": {"spatial": {"weight_decay": -1}}}, "weight_decay"),
        ({"shuffle": {"gamma": float("nan")}}, "gamma"),
        ({"seed": 2**32}, "below 2"),
        ({"data": {"frame_every": 0}}, "frame_every"),
        ({"shuffle": {"tile_share": 0.0}}, "tile_share|too small"),
        ({"shuffle": {"tile_share": 1.1}}, "shuffle.tile_share is 1.1"),
        ({"shuffle": {"frame_share": 0.0}}, "shuffle.frame_share is 0"),
        ({"shuffle": {"frame_share": 1.5}}, "shuffle.frame_share is 1.5"),
        ({"shuffle": {"grey": -0.1}}, "shuffle.grey is -0.1"),
        ({"shuffle": {"grey": 1.1}}, "shuffle.grey is 1.1"),
        ({"data": {"val_size": 0}}, "data.val_size"),
        ({"data": {"max_bad_share": 2.0}}, "data.max_bad_share is 2"),
        ({"optim": {"iterations": 0}}, "optim.iterations"),
        ({"optim": {"batch_size": 1}}, "optim.batch_size"),
        ({"optim": {"decay": 0.0}}, "optim.decay is 0"),
        ({"optim": {"decay": 1.5}}, "optim.decay is 1.5"),
        ({"optim": {"backbone": {"lr": 0.0}}}, "optim.backbone.lr is 0"),
        ({"optim": {"spatial": {"lr": -1.0}}}, "optim.spatial.lr is -1"),
        ({"optim": {"temporal": {"lr": float("nan")}}}, "optim.temporal.lr is nan"),
        ({"permutations": {"per_sample": 0}}, "permutations.per_sample"),
        ({"permutations": {"spatial": 1}}, "permutations.spatial is 1,"),
        ({"permutations": {"temporal": 0}}, "permutations.temporal is 0,"),
        ({"permutations": {"temporal": 720}}, "6 parts have only 719"),
        ({"permutations": {"temporal": 721, "include_identity": True}}, "6 parts have only 720"),
        ({"permutations": {"spatial": 24}, "shuffle": {"grid": 2}}, "4 parts have only 23"),
        ({"model": {"spatial": {"dropout": 1.5}}}, "model.spatial.dropout is 1.5"),
        ({"model": {"temporal": {"dropout": -0.5}}}, "model.temporal.dropout is -0.5"),
        ({"model": {"spatial": {"fc6": 0}}}, "model.spatial: fc6 and hidden"),
        ({"model": {"temporal": {"hidden": 0}}}, "model.temporal: fc6 and hidden"),
        ({"monitor": {"gallery": "somewhere"}}, "go together"),
        ({"monitor": {"queries": "somewhere"}}, "go together"),
        ({"log": {"train_every": 0}}, "log.train_every"),
        ({"log": {"monitor_every": 0}}, "log.monitor_every"),
        ({"policy": {"batches": 4000}}, "but must be at least policy.batches"),
        ({"policy": {"num_groups": 1}}, "policy.num_groups is 1, but must be 2 or more"),
        ({"policy": {"sampler": "rollouts", "discount": 0.9}}, "leave policy.discount at 0"),
        ({"policy": {"sampler": "rollouts", "entropy_weight": 0.0}}, "a policy.entropy_weight above 0"),
        ({"policy": {"sampler": "uniform", "inverse": True}}, "policy.inverse needs a sampler with a preference"),
        ({"policy": {"exploration": 1.5}}, r"policy.exploration is 1.5, but must be in \[0, 1\]"),
        ({"policy": {"prior_floor": 0.0}}, r"policy.prior_floor is 0.0, but must be in \(0, 1\]"),
        ({"policy": {"lr": float("inf")}}, "policy.lr is inf"),
        ({"policy": {"discount": float("nan")}}, "policy.discount is nan"),
        ({"policy": {"grouping": "pairs", "action": "batch"}}, "leave policy.action at sample"),
        (
            {"policy": {"grouping": "pairs", "candidates": 2, "num_groups": 17}},
            "policy.num_groups is 17, but a sample has only policy.candidates times permutations.per_sample, 16,",
        ),
        ({"policy": {"rollout_iterations": 0}}, "policy.rollout_iterations is 0"),
        ({"policy": {"candidates": 0}}, "policy.candidates is 0"),
        ({"log": {"monitor_every": 0}}, "log.monitor_every"),
        ({"log": {"checkpoint_every": 0}}, "log.checkpoint_every"),
        ({"log": {"keep_checkpoints": 0}}, "log.keep_checkpoints"),
    ],
)
def test_the_impossible_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(merge(demo(), values))


@pytest.mark.parametrize(
    "values",
    [
        {"shuffle": {"grid": 2}, "permutations": {"spatial": 23}},
        {"permutations": {"temporal": 719}},
        {"permutations": {"temporal": 720, "include_identity": True}},
        {"shuffle": {"tile_share": 1.0, "frame_share": 1.0, "grey": 0.0}},
        {"optim": {"batch_size": 2, "iterations": 1, "decay": 1.0}},
        {"data": {"val_size": 1, "max_bad_share": 1.0}},
        {"monitor": {"gallery": "one", "queries": "other"}},
        {"policy": {"sampler": "rollouts", "discount": 0.0, "rollout_iterations": 1, "action": "batch"}},
        {"policy": {"grouping": "pairs", "candidates": 2, "num_groups": 16, "discount": 0.9}},
        {"policy": {"grouping": "pairs", "candidates": 1, "num_groups": 8}},
        {"policy": {"candidates": 1, "num_groups": 10}},
    ],
)
def test_the_limits_themselves_are_possible(values: dict[str, Any]) -> None:
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


def test_the_name_of_a_sampler() -> None:
    assert demo().policy.name == "reinforce"
    assert merge(demo(), {"policy": {"sampler": "rollouts", "inverse": True}}).policy.name == "inverse rollouts"
