import errno
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from unshuffle.errors import UserError
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


def test_damaged_later_checkpoints_and_drafts_of_killed_runs_go_with_the_next(tmp_path: Path) -> None:
    for iteration in (1, 2, 9):
        checkpoint.save_checkpoint(tmp_path, iteration, {"iteration": iteration}, keep=3)
    (tmp_path / "00000009.pt").write_text("damaged")
    (tmp_path / "00000009.pt.0123.tmp").write_text("half")
    checkpoint.save_checkpoint(tmp_path, 3, {"iteration": 3}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002.pt", "00000003.pt"]


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    checkpoint.save_checkpoint(tmp_path, 1, {"iteration": 1}, keep=2)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(checkpoint, "_save", fail)
    with pytest.raises(UserError, match=r"No space left.*checkpoint of iteration 1 is kept: make room.*--resume"):
        checkpoint.save_checkpoint(tmp_path, 2, {"iteration": 2}, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.pt"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from unshuffle.errors import UserError
from unshuffle.training.checkpoint import save_checkpoint
folder = Path(sys.argv[1])
save_checkpoint(folder, 1, {"weights": torch.zeros(10)}, keep=2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    save_checkpoint(folder, 2, {str(number): torch.zeros(1 << 16) for number in range(20)}, keep=2)
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits")
def test_a_write_that_the_system_refuses_half_way_is_one_sentence(tmp_path: Path) -> None:
    """Torch reports an error of its own, after many megabytes; no file is larger than 1 MB here."""
    process = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
    assert process.returncode == 0 and not process.stderr, process.stderr
    assert re.fullmatch(r"checkpoint .*00000002\.pt cannot be written \(File too large\), and .*\n", process.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.pt"]


def test_every_global_generator_comes_back(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, 1, checkpoint.random_state(), keep=1)

    def sample() -> tuple[float, ...]:
        return (torch.rand(1).item(), np.random.rand(), np.random.randn(), random.random())  # noqa: NPY002

    first = sample()
    checkpoint.restore_random_state(load_checkpoint(path))
    assert sample() == first
