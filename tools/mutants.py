"""Mutation check of the numerics: each deliberate bug in mutants.yaml must make one of its tests fail.

    make mutants                                   # all of them
    .venv/bin/python tools/mutants.py [WORD ...]   # those whose description or file contains one of the words

A mutant is one replacement in a copy of the source. Its tests run on the copy, after all of them have passed on the
source as it is. A mutant that survives is a gap in the tests: the exit code is 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unshuffle"
SECONDS = 600
"""A mutant whose tests take longer counts as found: it does not end."""


@dataclass(frozen=True)
class Mutant:
    """One deliberate bug."""

    bug: str
    file: str
    """Below src/unshuffle."""
    text: str
    """What is replaced; it occurs once in the file."""
    wrong: str
    tests: str
    """Test files, or FILE::TEST, below tests, separated by blanks."""

    def problem(self) -> str | None:
        """Return why the mutant cannot be made; None if it can."""
        count = (SOURCE / self.file).read_text(encoding="utf-8").count(self.text)
        return None if count == 1 else f"{self.file} has this text {count} times, not once: {self.text}"


def read_mutants() -> list[Mutant]:
    """Return the list beside this file."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return [Mutant(**entry) for entry in entries]


def run_tests(
    files: Sequence[str], source: Path, processes: int = 1, seconds: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run test files against a source folder, until the first failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-n", str(processes)] if processes > 1 else []
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [str(ROOT / "tests" / file) for file in files]
    return subprocess.run(
        [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )


def is_found(mutant: Mutant) -> bool:
    """Return whether a test of the mutant fails on it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "unshuffle")
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / mutant.file).read_text(encoding="utf-8")
        (copy / mutant.file).write_text(text.replace(mutant.text, mutant.wrong), encoding="utf-8")
        try:
            code = run_tests(mutant.tests.split(), Path(folder), seconds=SECONDS).returncode
        except subprocess.TimeoutExpired:
            return True
    if code not in (0, 1):  # no tests ran
        raise SystemExit(f"{mutant.bug}: pytest ended with code {code}")
    return code == 1


def main() -> int:
    """Check the chosen mutants and print which were found."""
    words = sys.argv[1:]
    chosen = [
        mutant for mutant in read_mutants() if not words or any(word in f"{mutant.bug} {mutant.file}" for word in words)
    ]
    problems = [problem for mutant in chosen if (problem := mutant.problem())]
    if problems or not chosen:
        print("\n".join(problems) or f"no mutant has {' or '.join(words)} in its description or file")
        return 2
    before = run_tests(sorted({file for mutant in chosen for file in mutant.tests.split()}), SOURCE.parent, processes=2)
    if before.returncode:
        print(before.stdout[-2000:], "the tests must pass before anything is changed", sep="\n")
        return 2
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(chosen, pool.map(is_found, chosen), strict=True))
    for mutant, found in results.items():
        print(f"{'found   ' if found else 'SURVIVED'}  {mutant.file}: {mutant.bug}")
    survivors = sum(not found for found in results.values())
    print(f"{len(results) - survivors} of {len(results)} mutants were found by the tests")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
