"""The CSV of every benchmark: it begins with the command, the versions and the machine."""

import csv
import platform
import resource
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unshuffle.files import atomic_write

RESULTS = Path(__file__).parent / "results"


def write_table(
    name: str, rows: Sequence[Mapping[str, Any]], device: str = "cpu", note: str = "", out: Path | None = None
) -> None:
    """Write results/NAME.csv, or the file `out`, and print it."""
    out = out or RESULTS / f"{name}.csv"
    save_table(rows, out, device, note)
    print(out.read_text())


def save_table(rows: Sequence[Mapping[str, Any]], out: Path, device: str = "cpu", note: str = "") -> None:
    """Write the file `out`, as a whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft, draft.open("w", newline="") as file:
        for line in (command(), f"{versions()}, {machine(device)}{'; ' if note else ''}{note}"):
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def command() -> str:
    """Return the command line, with absolute paths shortened to their last part."""
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)])


def versions() -> str:
    """Return the versions that the figures depend on."""
    return f"Python {platform.python_version()}, torch {torch.__version__}"


def machine(device: str) -> str:
    """Return the name of the GPU, or the number of CPU threads."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'' if threads == 1 else 's'}"


def processor() -> str:
    """Return the model of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def peak_memory_gb(device: torch.device) -> float:
    """Return the peak memory of the GPU, or on a CPU that of the whole process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
