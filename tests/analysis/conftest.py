"""One tiny run for all analyses, and a world so small that a run of it takes a second."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from unshuffle.analysis.question import find_question
from unshuffle.analysis.result import Analysis
from unshuffle.config import demo
from unshuffle.config_file import merge
from unshuffle.pretraining import run_pretraining
from unshuffle.run import Run


def tiny_run(folder: Path, **changes: Any) -> Run:
    """Twelve iterations on 6 spatial and 5 temporal orders, with an episode every 2 of them."""
    values: dict[str, Any] = {
        "out": str(folder),
        "device": "cpu",
        "data": {"val_size": 6, "workers": 1},
        "synthetic": {
            "gallery": 24,
            "queries": 12,
            "images": 30,
            "clips": 30,
            "clip_frames": 8,
            "image_size": 48,
            "frame_size": 16,
        },
        "permutations": {"spatial": 6, "temporal": 5, "per_sample": 2},
        "shuffle": {"frames": 4, "crop_size": 16},
        "model": {"spatial": {"fc6": 8, "hidden": 12}, "temporal": {"fc6": 8, "hidden": 12}},
        "optim": {"iterations": 12, "batch_size": 4, "warmup": 2, "milestones": [9]},
        "policy": {"interval": 2, "batches": 2, "num_groups": 3, "start_below": 2.0},
        "log": {
            "train_every": 2,
            "monitor_every": 6,
            "checkpoint_every": 4,
            "keep_checkpoints": 9,
            "pictures": False,
        },
    }
    return run_pretraining(merge(merge(demo(), values), changes), console=Console(quiet=True))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With the policy."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "policy")


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "uniform", policy={"sampler": "uniform"})


PAIRS_AND_TRIALS: dict[str, Any] = {
    "sampler": "rollouts",
    "grouping": "pairs",
    "candidates": 3,
    "rollout_iterations": 2,
}


@pytest.fixture(scope="session")
def pair_run(tmp_path_factory: pytest.TempPathFactory, believing: Any) -> Run:
    """With a policy that chooses among pairs and learns from trials."""
    with believing():
        return tiny_run(tmp_path_factory.mktemp("runs") / "pairs", policy=PAIRS_AND_TRIALS)


@pytest.fixture(name="tiny_run")
def tiny_run_fixture() -> Callable[..., Run]:
    """Makes another one."""
    return tiny_run


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Run:
    """A copy of the run with the policy, to spoil."""
    return Run(shutil.copytree(run.folder, tmp_path / "copied"))


@pytest.fixture
def ask() -> Callable[..., Analysis]:
    """The answer to a question of a name with some options."""

    def answer(name: str, **options: Any) -> Analysis:
        return find_question(name)(**options).answer(Console(quiet=True))

    return answer


TINY: dict[str, Any] = {
    "device": "cpu",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 16, "clips": 12, "gallery": 12, "queries": 6},
    "permutations": {"spatial": 4, "temporal": 4, "per_sample": 1},
    "optim": {"iterations": 2, "batch_size": 2},
    "policy": {"num_groups": 2},
    "log": {"pictures": False, "checkpoint_every": 1},
}


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Options of a run, for each test to change."""
    return copy.deepcopy(TINY)


@pytest.fixture
def tiny_line() -> list[str]:
    """The same for a command line."""
    line = ["--device", "cpu", "--log.no_pictures", "--log.checkpoint_every", "1"]
    for section, values in TINY.items():
        if isinstance(values, dict) and section != "log":
            line += [word for key, value in values.items() for word in (f"--{section}.{key}", str(value))]
    return line


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images in two classes, dark and light."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    for number in range(6):
        path = folder / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        low = 128 * (number % 2)
        Image.fromarray(rng.integers(low, low + 128, (48, 48, 3), dtype=np.uint8)).save(path)
    return folder
