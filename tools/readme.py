"""Run the commands of README.md from top to bottom, as a new user would, on tiny data in an empty folder.

python tools/readme.py [FILE]. All ```sh and ```python blocks run, in one shell, in a folder that has only `cat.jpg` and
a home directory that has only `photos` and `clips`. The first that fails ends it. What differs from README, so that it
takes seconds, stands in INSTEAD, APPENDED and SMALLER.
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
INSTEAD = {"make demo": ".venv/bin/unshuffle pretrain --preset demo", "make test": "true"}
"""What runs in place of a command: of the demo its training, as the environment is there already, and of the tests
nothing, as this program is one of them."""
SMALL_RUN = (
    "--iterations 2 --batch-size 2 --data.val_size 2 --data.test_size 2 --spatial.permutations 10 "
    "--temporal.permutations 10 --synthetic.images 12 --synthetic.clips 12 --synthetic.gallery 12 --synthetic.queries 6"
)
APPENDED = {"unshuffle pretrain": SMALL_RUN}
"""Options that are appended to the commands that contain these words."""
SMALLER = {
    "iterations=5000": 'iterations=2, batch_size=2, data={"val_size": 2, "test_size": 2}, '
    'spatial={"permutations": 10}, temporal={"permutations": 10}'
}
"""What is replaced in the Python code; each must occur."""
SHELL_WORDS = {"make", "source", "unshuffle", "python", "pip", ".venv/bin/unshuffle"}
"""What commands begin with: an indented block that begins so would not be run."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(readme: str) -> list[str]:
    """Return the blocks of README as commands of a shell, in their order."""
    for line in BLOCK.sub("", readme).splitlines():
        if line.startswith("    ") and line.split()[0] in SHELL_WORDS:
            raise SystemExit(f"README.md: {line.strip()!r} would not be run: put it into a ```sh block")
    found = [command for kind, text in BLOCK.findall(readme) for command in _commands_of(kind, text)]
    for text in SMALLER:
        if text not in readme:
            raise SystemExit(f"README.md: {text!r}, which tools/readme.py makes smaller, is not there any more")
    return found


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
    """Fill a folder with what README takes for granted; return the home directory in it."""
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
    return home


def activated(folder: Path) -> None:
    """Let `source .venv/bin/activate` lead to the environment that runs this program."""
    binaries = Path(sys.executable).parent
    if (binaries / "activate").is_file():
        (folder / ".venv").symlink_to(binaries.parent)
    else:  # not a virtual environment
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text(f"PATH='{binaries}':$PATH\n")


def run(readme: Path, folder: Path) -> int:
    """Run README in a folder; return the exit code of its commands."""
    home = write_data(folder)
    activated(folder)
    steps = commands(readme.read_text(encoding="utf-8"))
    script = "\n".join(line for step in steps for line in (f"echo {shlex.quote(f'$ {step}')}", step))
    system_path = os.pathsep.join(part for part in os.defpath.split(os.pathsep) if part)
    environment = {**os.environ, "HOME": str(home), "PATH": f"/usr/local/bin:/usr/bin:{system_path}"}
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md", Path(scratch)))
