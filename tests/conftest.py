"""What all tests share: one thread, so that the tests take turns politely and sums come out the same everywhere.

Without a GPU the Triton kernels are interpreted, which is slow but the same arithmetic.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pytest
import torch
from hypothesis import settings

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
    norm_pool = pytest.importorskip("unshuffle.models.norm_pool")
    for name, value in {"BLOCK": 1 << 17, "ROWS": 1 << 12, "SPLITS": 2}.items():
        monkeypatch.setattr(norm_pool, name, value)
    return torch.device("cpu")


@pytest.fixture(scope="session")
def believing() -> Callable[[], AbstractContextManager[object]]:
    """Return a context in which rollouts are fully reliable: the few samples of a test would leave no advantage."""
    from unshuffle.policy import rollouts

    return lambda: mock.patch.object(rollouts, "reliability", return_value=1.0)
