from pathlib import Path

import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.runs.checkpoints import checkpoint_iterations, checkpoint_path, list_checkpoints, load_checkpoint
from unshuffle.training.checkpoint import save_checkpoint


def test_checkpoints_are_listed_by_number(tmp_path: Path) -> None:
    for iteration in (100_000_000, 5, 99_999_999):
        checkpoint_path(tmp_path, iteration).touch()
    (tmp_path / "notes.pt").touch()
    assert checkpoint_iterations(tmp_path) == [5, 99_999_999, 100_000_000]
    assert list_checkpoints(tmp_path)[0] == checkpoint_path(tmp_path, 5)
    assert checkpoint_iterations(tmp_path / "nothing") == []


@pytest.mark.parametrize("damage", ["truncated", "text", "pickle"])
def test_a_damaged_checkpoint_is_a_user_error(tmp_path: Path, damage: str) -> None:
    path = save_checkpoint(tmp_path, 1, {"weights": torch.zeros(1000)}, keep=1)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:500])
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        torch.save({"code": Path("somewhere")}, path)  # an object that only unpickling could make
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(path)


def test_what_to_do_about_a_damaged_checkpoint(tmp_path: Path) -> None:
    oldest, newest = (save_checkpoint(tmp_path, number, {"number": number}, keep=2) for number in (1, 2))
    for path, advice in ((newest, "delete it to use the one before"), (oldest, "there is none before it")):
        path.write_text("damaged")
        with pytest.raises(UserError, match=advice):
            load_checkpoint(path)
