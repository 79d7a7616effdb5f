"""The commands of README.md and of the tutorial, run by `tools/readme.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import readme as tool

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/index.md"])
def test_the_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    tool = [sys.executable, str(ROOT / "tools" / "readme.py"), str(ROOT / page)]
    done = subprocess.run(tool, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert len(commands) > 5 and "$ source .venv/bin/activate" in commands


def test_what_python_code_is_made_smaller_is_there() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in tool.PAGES)
    assert all(text in pages for text in tool.SMALLER)


def test_what_runs_is_stated() -> None:
    readme = "# A\n\n```sh\nmake test   # all\nunshuffle embed x   # features\n```\n\n```text\noutput\n```\n\n"
    python = "```python\nrun(iterations=5000)\n```\n"
    steps = tool.commands(readme + python)
    assert steps[:2] == ["true", "unshuffle embed x"]
    assert steps[2].startswith("python - <<'END'\nrun(iterations=2, ") and len(steps) == 3


def test_a_command_that_would_not_run_is_noticed() -> None:
    with pytest.raises(SystemExit, match="'unshuffle bench' would not be run"):
        tool.commands("# A\n\n    unshuffle bench\n")


def test_the_demo_is_that_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    assert f"demo: $(READY)\n\t{tool.INSTEAD['make demo']}\n" in makefile


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("```sh\nsource .venv/bin/activate\nfalse\ntouch went-on\n```\n")
    (tmp_path / "work").mkdir()
    assert tool.run(readme, tmp_path / "work") == 1
    assert not (tmp_path / "work" / "went-on").exists()
