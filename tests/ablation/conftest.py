"""Options of a run that takes a second."""

import copy
from typing import Any

import pytest

TINY: dict[str, Any] = {
    "device": "cpu",
    "data": {"val_size": 4, "workers": 1},
    "synthetic": {"images": 16, "clips": 12, "gallery": 12, "queries": 6},
    "spatial": {"permutations": 4},
    "temporal": {"permutations": 4},
    "permutations": {"per_sample": 1},
    "optim": {"iterations": 2, "batch_size": 2},
    "policy": {"num_groups": 2},
    "log": {"pictures": False, "checkpoint_every": 1},
}


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Options of a tiny run, which each test may change."""
    return copy.deepcopy(TINY)


@pytest.fixture
def tiny_line() -> list[str]:
    """The same options as a command line."""
    line = ["--device", "cpu", "--log.no_pictures", "--log.checkpoint_every", "1"]
    for section, values in TINY.items():
        if isinstance(values, dict) and section != "log":
            line += [word for key, value in values.items() for word in (f"--{section}.{key}", str(value))]
    return line
