"""What all tests share: one thread, so that the tests take turns politely and sums come out the same everywhere.

Without a GPU the Triton kernels are interpreted, which is slow but the same arithmetic.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from rich.console import Console

from unshuffle.runs.run import Run

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True)  # a red run is then red again for whoever looks into it
if os.environ.get("CI") == "true":
    settings.load_profile("ci")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where kernels are tested; an interpreted program should take many values at once."""
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        return torch.device("cuda")
    norm_pool = pytest.importorskip("unshuffle.kernels.norm_pool")
    for name, value in {"BLOCK": 1 << 17, "ROWS": 1 << 12, "SPLITS": 2}.items():
        monkeypatch.setattr(norm_pool, name, value)
    return torch.device("cpu")


@pytest.fixture(scope="session")
def believing() -> Callable[[], AbstractContextManager[object]]:
    """Within it trials are believed: on the few samples of a test most tell nothing, and nothing would follow."""
    from unshuffle.policy import trials

    return lambda: mock.patch.object(trials, "belief", return_value=1.0)


def tiny_run(folder: Path, **changes: Any) -> Run:
    """Train twelve iterations on 6 spatial and 5 temporal permutations, with an episode every 2 iterations."""
    from unshuffle.config import demo
    from unshuffle.options import merge
    from unshuffle.pretraining import run_pretraining

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
        "policy": {"interval": 2, "batches": 2, "groups": 3, "start_below": 2.0},
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
    """A run with the policy."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "policy")


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with uniform sampling."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "uniform", policy={"sampler": "uniform"})


PAIRS_AND_ROLLOUTS: dict[str, Any] = {"grouped": "pairs", "candidates": 3, "reward": "trials", "trial": 2}


@pytest.fixture(scope="session")
def pair_run(tmp_path_factory: pytest.TempPathFactory, believing: Any) -> Run:
    """A run with a policy that groups pairs and learns from rollouts."""
    with believing():
        return tiny_run(tmp_path_factory.mktemp("runs") / "pairs", policy=PAIRS_AND_ROLLOUTS)


@pytest.fixture(name="tiny_run")
def tiny_run_fixture() -> Callable[..., Run]:
    """A function that trains another tiny run."""
    return tiny_run


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Run:
    """A copy of the run with the policy, which a test may change."""
    return Run(shutil.copytree(run.folder, tmp_path / "copied"))


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with six images in two classes, dark and light."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    for number in range(6):
        path = folder / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        low = 128 * (number % 2)
        Image.fromarray(rng.integers(low, low + 128, (48, 48, 3), dtype=np.uint8)).save(path)
    return folder
