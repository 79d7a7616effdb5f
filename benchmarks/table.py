"""How every benchmark keeps its figures: a CSV that begins with the command, the versions and the machine."""

import csv
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def write_table(name: str, rows: Sequence[Mapping[str, Any]], device: str = "cpu", note: str = "") -> None:
    """Write results/NAME.csv and print it."""
    out = RESULTS / f"{name}.csv"
    with out.open("w", newline="") as file:
        for line in (command(), f"{versions()}, {machine(device)}{'; ' if note else ''}{note}"):
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(out.read_text())


def command() -> str:
    """The command line, with folders by their names: where they lie is nobody's business."""
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)])


def versions() -> str:
    """What the figures depend on beside the code."""
    return f"Python {platform.python_version()}, torch {torch.__version__}"


def machine(device: str) -> str:
    """What they were measured on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'' if threads == 1 else 's'}"
