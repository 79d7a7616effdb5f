"""Hashes and figures that a change of structure must leave alone, on one CPU thread.

    python benchmarks/golden.py --train CLASS_FOLDERS --test CLASS_FOLDERS [--out benchmarks/results/golden_cpu.csv]

Trains the preset `demo` and a short `--tasks S&T` run and hashes the weights of their backbones; evaluates the first
one by retrieval and by a linear probe on class folders, in the recorded results 1,818 images of Caltech-101.
Floating-point sums differ between processors, so compare two versions on one machine.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from table import write_table

RUNS = {
    "demo": ["--preset", "demo"],
    "S&T": ["--preset", "demo", "--tasks", "S&T", "--optim.iterations", "60", "--log.monitor_every", "60"],
}


def unshuffle(*words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "unshuffle", *words], check=True, env=environment)


def weights_hash(file: Path) -> str:
    """SHA-256 of all tensors in the order of their names; names and metadata may change with the structure."""
    digest = hashlib.sha256()
    for _, tensor in sorted(load_file(file).items()):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def evaluations(weights: Path, train: Path, test: Path, folder: Path) -> dict[str, str]:
    common = ["--weights", str(weights), "--train", str(train), "--test", str(test), "--device", "cpu"]
    figures: dict[str, str] = {}
    for name, extra in (("retrieval", []), ("linear", ["--fast"])):
        file = folder / f"{name}.json"
        unshuffle("evaluate", name, *common, *extra, "--json", str(file))
        figures |= {f"{name} {key}": str(value) for key, value in flat(json.loads(file.read_text())["metrics"]).items()}
    return {key: value for key, value in figures.items() if key.split(".")[-1].endswith("top1")}


def flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    figures: dict[str, object] = {}
    for key, value in values.items():
        figures |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, options in RUNS.items():
            out = folder / run.replace("&", "-then-")
            unshuffle("pretrain", *options, "--device", "cpu", "--out", str(out))
            rows.append((f"{run} weights", weights_hash(out / "backbone.safetensors")))
        if args.train and args.test:
            rows += evaluations(folder / "demo", args.train, args.test, folder).items()
    write_table("golden_cpu", [{"what": what, "value": value} for what, value in rows], out=args.out)


if __name__ == "__main__":
    main()
