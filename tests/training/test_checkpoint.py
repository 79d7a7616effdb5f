import random
from pathlib import Path

import numpy as np
import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.training import checkpoint


def test_round_trip_without_pickle(tmp_path: Path) -> None:
    state = {"iteration": 3, "weights": torch.arange(5.0), "nested": {"list": [1, "a", 2.5]}}
    path = checkpoint.save_checkpoint(tmp_path, 3, state, keep=2)
    loaded = checkpoint.load_checkpoint(path)
    assert torch.equal(loaded["weights"], state["weights"])
    assert loaded["nested"] == state["nested"]


def test_only_the_newest_are_kept_and_order_is_by_number(tmp_path: Path) -> None:
    for iteration in (5, 10, 99_999_999, 100_000_000):
        checkpoint.save_checkpoint(tmp_path, iteration, {"iteration": iteration}, keep=3)
    assert [int(path.stem) for path in checkpoint.list_checkpoints(tmp_path)] == [10, 99_999_999, 100_000_000]


def test_a_failed_write_leaves_the_old_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save_checkpoint(tmp_path, 1, {"iteration": 1}, keep=2)

    def half_written(state: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save_checkpoint(tmp_path, 2, {"iteration": 2}, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.pt"]


@pytest.mark.parametrize("damage", ["truncated", "text", "pickle"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path, damage: str) -> None:
    path = checkpoint.save_checkpoint(tmp_path, 1, {"weights": torch.zeros(1000)}, keep=1)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:500])
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        torch.save({"code": Path("somewhere")}, path)  # an object that only unpickling could make
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load_checkpoint(path)


def test_what_to_do_about_a_damaged_checkpoint(tmp_path: Path) -> None:
    oldest, newest = (checkpoint.save_checkpoint(tmp_path, number, {"number": number}, keep=2) for number in (1, 2))
    for path, advice in ((newest, "delete it to use the one before"), (oldest, "there is none before it")):
        path.write_text("damaged")
        with pytest.raises(UserError, match=advice):
            checkpoint.load_checkpoint(path)


def test_every_global_generator_comes_back(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, 1, checkpoint.random_state(), keep=1)

    def draw() -> tuple[float, ...]:
        return (torch.rand(1).item(), np.random.rand(), np.random.randn(), random.random())  # noqa: NPY002

    first = draw()
    checkpoint.restore_random_state(checkpoint.load_checkpoint(path))
    assert draw() == first
