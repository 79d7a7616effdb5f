"""Run the commands of README.md and of the tutorial from top to bottom, as a new user would, on tiny data.

python tools/readme.py [FILE ...]. All ```sh and ```python blocks of a file run, in one shell, in a folder that has only
`cat.jpg` and a home directory that has only `photos`, `clips` and class folders in `labelled`. The first that fails
ends it. What differs from the file, so that it takes seconds, stands in INSTEAD, APPENDED and SMALLER.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial" / "index.md"]
INSTEAD = {"make demo": ".venv/bin/unshuffle pretrain --preset demo", "make test": "true"}
"""What runs in place of a command: of the demo its training, as the environment is there already, and of the tests
nothing, as this program is one of them."""
SMALL_RUN = (
    "--iterations 2 --batch-size 2 --data.val_size 2 --data.test_size 2 --spatial.permutations 10 "
    "--temporal.permutations 10 --synthetic.images 12 --synthetic.clips 12 --synthetic.gallery 12 --synthetic.queries 6"
)
APPENDED = {"unshuffle pretrain": SMALL_RUN, "unshuffle doctor": "--steps 2 || test $? = 1"}
"""What is appended to the commands that contain these words; `doctor` finds that the data is too little."""
SMALLER = {
    "iterations=5000": 'iterations=2, batch_size=2, data={"val_size": 2, "test_size": 2}, '
    'spatial={"permutations": 10}, temporal={"permutations": 10}'
}
"""What is replaced in the Python code."""
SHELL_WORDS = {"make", "source", "unshuffle", "python", "pip", ".venv/bin/unshuffle"}
"""What commands begin with: an indented block that begins so would not be run."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the blocks of a page as commands of a shell, in their order."""
    for line in BLOCK.sub("", page).splitlines():
        if line.startswith("    ") and line.split()[0] in SHELL_WORDS:
            raise SystemExit(f"{line.strip()!r} would not be run: put it into a ```sh block")
    return [command for kind, text in BLOCK.findall(page) for command in _commands_of(kind, text)]


def _commands_of(kind: str, text: str) -> list[str]:
    if kind == "python":
        for long, short in SMALLER.items():
            text = text.replace(long, short)
        return [f"python - <<'END'\n{text}END"]
    if kind != "sh":
        return []
    lines = [line.partition("  #")[0].rstrip() for line in text.splitlines()]
    return [_shortened(line) for line in lines if line]


def _shortened(command: str) -> str:
    command = INSTEAD.get(command, command)
    options = [more for words, more in APPENDED.items() if words in command]
    return " ".join([command, *options])


def write_data(folder: Path) -> Path:
    """Fill a folder with what the pages take for granted; return the home directory in it."""
    rng, home = np.random.default_rng(0), folder / "home"

    def noise() -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((160, 120))

    (home / "photos").mkdir(parents=True)
    (home / "clips").mkdir()
    noise().save(folder / "cat.jpg")
    for number in range(24):
        noise().save(home / "photos" / f"{number}.jpg")
        first, *others = (noise() for _ in range(9))
        first.save(home / "clips" / f"{number}.gif", save_all=True, append_images=others, duration=40)
        labelled = home / "labelled" / ("train" if number % 3 else "test") / ("cat", "dog")[number % 2]
        labelled.mkdir(parents=True, exist_ok=True)
        noise().save(labelled / f"{number}.jpg")
    return home


def activated(folder: Path) -> None:
    """Let `source .venv/bin/activate` lead to the environment that runs this program."""
    binaries = Path(sys.executable).parent
    if (binaries / "activate").is_file():
        (folder / ".venv").symlink_to(binaries.parent)
    else:  # not a virtual environment
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text(f"PATH='{binaries}':$PATH\n")


def run(page: Path, folder: Path) -> int:
    """Run a page in a folder; return the exit code of its commands."""
    home = write_data(folder)
    activated(folder)
    steps = commands(page.read_text(encoding="utf-8"))
    script = "\n".join(line for step in steps for line in (f"echo {shlex.quote(f'$ {step}')}", step))
    system_path = os.pathsep.join(part for part in os.defpath.split(os.pathsep) if part)
    environment = {**os.environ, "HOME": str(home), "PATH": f"/usr/local/bin:/usr/bin:{system_path}"}
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=environment, check=False).returncode


def main(pages: list[Path]) -> int:
    """Run each page in a folder of its own; return the first exit code that is not 0."""
    for page in pages:
        with tempfile.TemporaryDirectory() as scratch:
            if code := run(page, Path(scratch)):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or PAGES))
