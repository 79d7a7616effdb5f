import random
from pathlib import Path

import numpy as np
import pytest
import torch

from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.training import checkpoint


def test_round_trip_without_pickle(tmp_path: Path) -> None:
    state = {"iteration": 3, "weights": torch.arange(5.0), "nested": {"list": [1, "a", 2.5]}}
    path = checkpoint.save_checkpoint(tmp_path, 3, state, keep=2)
    loaded = load_checkpoint(path)
    assert torch.equal(loaded["weights"], state["weights"])
    assert loaded["nested"] == state["nested"]


def test_only_the_newest_are_kept_and_order_is_by_number(tmp_path: Path) -> None:
    for iteration in (5, 10, 99_999_999, 100_000_000):
        checkpoint.save_checkpoint(tmp_path, iteration, {"iteration": iteration}, keep=3)
    assert [int(path.stem) for path in list_checkpoints(tmp_path)] == [10, 99_999_999, 100_000_000]


def test_a_failed_write_leaves_the_old_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save_checkpoint(tmp_path, 1, {"iteration": 1}, keep=2)

    def half_written(state: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save_checkpoint(tmp_path, 2, {"iteration": 2}, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.pt"]


def test_every_global_generator_comes_back(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, 1, checkpoint.random_state(), keep=1)

    def sample() -> tuple[float, ...]:
        return (torch.rand(1).item(), np.random.rand(), np.random.randn(), random.random())  # noqa: NPY002

    first = sample()
    checkpoint.restore_random_state(load_checkpoint(path))
    assert sample() == first
