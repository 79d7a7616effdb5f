import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.runs.checkpoints import (
    checkpoint_iterations,
    checkpoint_path,
    fitting,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    usable_checkpoints,
)
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


STATE = {
    "iteration": 7,
    "network": {"weight": torch.arange(6.0), "count": torch.ones(3, dtype=torch.int64)},
    "optimisers": {"lr": 0.1, "names": ["spatial"]},
    "random": (3, (1, 2), None),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def flips(content: bytes, step: int) -> Iterator[bytes]:
    """Copies of a file with one wrong bit each."""
    for position in range(0, 8 * len(content), step):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        yield bytes(damaged)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_no_wrong_bit_changes_what_is_loaded(tmp_path: Path, step: int) -> None:
    path = save_checkpoint(tmp_path, 7, STATE, keep=1)
    refused = 0
    for damaged in flips(path.read_bytes(), step):
        path.write_bytes(damaged)
        try:
            assert same(load_checkpoint(path), STATE)  # the bit is one that nothing depends on, such as padding
        except UserError as error:
            refused += 1
            assert str(error).startswith(f"checkpoint {path} is damaged (") and "\n" not in str(error)
    assert refused > 8 * 600 // step


def test_zeroed_pages_are_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 7, {"weights": torch.rand(8192)}, keep=1)
    good = path.read_bytes()
    for start in range(0, len(good), 4096):
        path.write_bytes(good[:start] + bytes(len(good[start : start + 4096])) + good[start + 4096 :])
        with pytest.raises(UserError, match="is damaged"):
            load_checkpoint(path)


def test_a_checkpoint_of_something_else_does_not_fit(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="it holds no state"):
        load_checkpoint(path)
    for use, problem in ((lambda: {}["network"], "it lacks 'network'"), (lambda: int("x"), "invalid literal")):
        with pytest.raises(UserError, match=rf"00000001.pt does not fit \({problem}.*another version"), fitting(path):
            use()
    with pytest.raises(UserError, match=r"^the data has changed$"), fitting(path):
        raise UserError("the data has changed")


def test_the_newest_checkpoint_that_is_not_damaged_is_used(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    first, second, third = (save_checkpoint(tmp_path, number, {"number": number}, keep=3) for number in (1, 2, 3))
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.iteration == newest.state["number"] == 3 and newest.warning is None
    third.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-1])
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.iteration == newest.state["number"] == 1
    assert newest.warning is not None and newest.warning.endswith("using the newest that is not, 00000001.pt")
    assert str(second) in newest.warning and str(third) in newest.warning
    printed = io.StringIO()
    assert usable_checkpoints(tmp_path, Console(file=printed, width=40)) == [first]
    sentences = printed.getvalue().splitlines()
    assert [sentence.partition(" is damaged")[0] for sentence in sentences] == [
        f"checkpoint {second}",
        f"checkpoint {third}",
    ]
    first.write_text("damaged")
    with pytest.raises(UserError, match=r"all 3 checkpoints in .* cannot be used: .*00000003\.pt is damaged"):
        newest_checkpoint(tmp_path)


def test_a_checkpoint_without_permission_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path, 1, {"number": 1}, keep=3)

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("unshuffle.runs.checkpoints.check_zip", refuse)  # root may read anything
    with pytest.raises(PermissionError):
        newest_checkpoint(tmp_path)
