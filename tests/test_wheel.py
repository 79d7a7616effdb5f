"""The wheel and the sdist install and run in a fresh environment; the wheel holds all that the program needs."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLED = sysconfig.get_paths()["purelib"]
SHORT_DEMO = (
    "--synthetic.images 12 --synthetic.clips 12 --synthetic.gallery 12 --synthetic.queries 6 --optim.iterations 2 "
    "--optim.batch_size 2 --data.val_size 4 --spatial.permutations 12 --device cpu"
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `python -m build` fills: an sdist, and a wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("unshuffle-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert all(name.startswith(("unshuffle/", "unshuffle-")) for name in names)
    package = ROOT / "src" / "unshuffle"
    files = [file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    missing = {file.relative_to(package.parent).as_posix() for file in files} - names
    assert not missing  # templates, py.typed, and the weights that come with the package


@pytest.mark.slow
def test_the_sdist_holds_what_it_takes_to_build_and_test(dist: Path) -> None:
    (sdist,) = dist.glob("unshuffle-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "src/unshuffle/py.typed", "tests/test_wheel.py"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_and_runs_the_demo_in_a_fresh_environment(kind: str, dist: Path, tmp_path: Path) -> None:
    (artefact,) = dist.glob(kind)
    venv.create(tmp_path / "env", with_pip=False)
    binaries = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", binaries / "python"]
    # the build needs hatchling; -I, as the source tree is installed among these packages
    subprocess.run(
        [*pip, "install", "-I", "--no-deps", "--no-build-isolation", artefact],
        env={**os.environ, "PYTHONPATH": INSTALLED},
        check=True,
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *args: str) -> str:
        command = [binaries / program, *args]
        options = {"cwd": tmp_path, "env": {**environment, "OMP_NUM_THREADS": "1"}, "text": True}
        return subprocess.run(command, check=True, capture_output=True, **options).stdout  # type: ignore[call-overload]

    site = Path(run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(INSTALLED)  # torch and the others are not installed a second time
    assert run("python", "-c", "import unshuffle; print(unshuffle.__file__)").startswith(str(site))
    assert run("unshuffle", "--version").startswith("unshuffle ")
    assert "Results:" in run("unshuffle", "pretrain", *SHORT_DEMO.split(), "--out", "run")
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()  # templates and all
