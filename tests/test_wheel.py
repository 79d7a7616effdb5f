"""The wheel and the sdist install and run in a fresh environment; the wheel holds all that the program needs."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
INSTALLED = Path(sysconfig.get_paths()["purelib"])
SHORT_DEMO = (
    "--synthetic.images 12 --synthetic.clips 12 --synthetic.gallery 12 --synthetic.queries 6 --optim.iterations 2 "
    "--optim.batch_size 2 --data.val_size 4 --spatial.permutations 12 --device cpu"
)
IMPORT_ALL = """
import importlib, pkgutil, unshuffle
for module in pkgutil.walk_packages(unshuffle.__path__, "unshuffle."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(error.name)
"""
EXTRAS = {"starlette", "uvicorn"}
"""Packages of extras that modules import at once; others are imported where they are used."""


def dependencies(requirements: Iterable[str], extra: str = "", found: set[tuple[str, str]] | None = None) -> set[str]:
    """The installed distributions that requirements name, and those that these need in turn."""
    found = set() if found is None else found
    for needed in map(Requirement, requirements):
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            for name, of_name in {(needed.name, each) for each in ("", *needed.extras)} - found:
                found.add((name, of_name))
                dependencies(distribution(name).requires or [], of_name, found)
    return {name for name, _ in found}


def link_dependencies(site: Path, folder: Path) -> None:
    """Fill a folder with links to what the installed unshuffle says it needs, so that importing anything else fails."""
    folder.mkdir()
    (unshuffle,) = distributions(name="unshuffle", path=[str(site)])
    needed = dependencies(unshuffle.requires or [])
    names = {file.parts[0] for name in needed for file in distribution(name).files or []}
    for name in names - {"..", "__pycache__"}:
        (folder / name).symlink_to(INSTALLED / name)


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
def test_the_sdist_holds_what_its_documentation_names(dist: Path, tmp_path: Path) -> None:
    """Its own test of the documentation finds the targets of all links, `make demo` and the programs of benchmarks."""
    (sdist,) = dist.glob("unshuffle-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {"pyproject.toml", "LICENSE", "Makefile"} <= {file.name for file in folder.iterdir()}
    assert os.access(folder / ".ci" / "run", os.X_OK)
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "tests/test_docs.py"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(tests, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


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
        env={**os.environ, "PYTHONPATH": str(INSTALLED)},
        check=True,
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *args: str) -> str:
        command = [binaries / program, *args]
        options = {"cwd": tmp_path, "env": {**environment, "OMP_NUM_THREADS": "1"}, "text": True}
        return subprocess.run(command, check=True, capture_output=True, **options).stdout  # type: ignore[call-overload]

    site = Path(run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    link_dependencies(site, tmp_path / "dependencies")  # torch and the others are not installed a second time
    (site / "dependencies.pth").write_text(str(tmp_path / "dependencies"))
    assert run("python", "-c", "import unshuffle; print(unshuffle.__file__)").startswith(str(site))
    assert run("unshuffle", "--version").startswith("unshuffle ")
    assert set(run("python", "-c", IMPORT_ALL).split()) <= EXTRAS
    assert "Results:" in run("unshuffle", "pretrain", *SHORT_DEMO.split(), "--out", "run")
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()  # templates and all
