"""The wheel holds all that the program needs, and nothing of the source tree."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_builds_and_runs_without_the_source_tree(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", ROOT], check=True)
    (wheel,) = (tmp_path / "dist").glob("unshuffle-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith(("unshuffle/", "unshuffle-")) for name in names)
    assert "unshuffle/py.typed" in names, "its types are for those who use it too"
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}

    def python(*args: str) -> str:
        command = [sys.executable, *args]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    assert python("-c", "import unshuffle; print(unshuffle.__file__)").startswith(str(tmp_path / "site"))
    sizes = [
        "--synthetic.images",
        "12",
        "--synthetic.clips",
        "12",
        "--synthetic.gallery",
        "12",
        "--synthetic.queries",
        "6",
    ]
    steps = [
        "--optim.iterations",
        "2",
        "--optim.batch_size",
        "2",
        "--data.val_size",
        "4",
        "--spatial.permutations",
        "12",
    ]
    printed = python("-m", "unshuffle", "pretrain", *sizes, *steps, "--out", "run", "--device", "cpu")
    assert "Results:" in printed
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()  # templates and all
