"""A world so small that a run of it takes a second."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

TINY: dict[str, Any] = {
    "device": "cpu",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 16, "clips": 12, "gallery": 12, "queries": 6},
    "permutations": {"spatial": 4, "temporal": 4, "per_sample": 1},
    "optim": {"iterations": 2, "batch_size": 2},
    "policy": {"groups": 2},
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
