import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unshuffle.cli.pretrain import parse_pretrain
from unshuffle.config import Config, preset_config
from unshuffle.options import merge
from unshuffle.report.repeat import changes, repeat_command


def parsed(command: str) -> Config:
    program, name, *options = shlex.split(command)
    assert (program, name) == ("unshuffle", "pretrain")
    return parse_pretrain(options).run_config()


def test_a_preset_repeats_itself() -> None:
    assert repeat_command(preset_config("paper")) == "unshuffle pretrain --preset paper"


def test_the_command_gives_the_config_back(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(images="my photos/<b>'s", out=Path("elsewhere"), init=Path("weights.safetensors"))
    config = merge(
        config,
        {
            "shuffle": {"shared_crop": False, "frame_jitter": True, "grey": 1e-7},
            "model": {"spatial": {"centre": False}},
            "optim": {"milestones": [3, 5]},
            "monitor": {"gallery": "a b", "queries": "-"},
            "log": {"pictures": False},
        },
    )
    assert parsed(repeat_command(config)) == replace(config, out=None)
    assert changes(config)["log.pictures"] is False
    assert "out" not in changes(config)


def test_no_milestones_at_all(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config()
    assert config.optim.milestones == ()
    assert parsed(repeat_command(config)) == config
