"""What a few minutes on a CPU make of own photographs: the preset `cpu`, from the package's weights and from scratch.

    python benchmarks/own_data.py --photos FOLDER --train CLASSES --test CLASSES [--arms NAME ...] [--seeds 3]
                                  [--options JSON] [--out runs/own_data] [--device cpu]

Arms: `scratch, 400` and `scratch, 4,000` train an untrained CaffeNet on so many of --photos, evenly spaced;
`weights, 400` and `weights, all` start from the weights of the package, on photographs of --train, which these weights
have not seen, without their labels. Every run has the iterations of the preset `cpu`, which take a few minutes on 2
cores. Features are measured before and after by top-1 retrieval on --train and --test and by what the run measures
without labels. Finished runs are not repeated. On a CPU the precision is what `auto` means there; on a GPU it is fp32,
and a run takes seconds. Results go to results/own_data_DEVICE.csv.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from table import write_table

from unshuffle.ablation.arms import build_evaluation
from unshuffle.config import cpu, with_options
from unshuffle.data.inventory import take_inventory
from unshuffle.options import merge
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.history import evenly_spaced
from unshuffle.runs.run import Run
from unshuffle.wording import plus_minus

SCRATCH = {"init": None, "lr": 1e-3}
ARMS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "scratch, 400": ("photos", 400, SCRATCH),
    "scratch, 4,000": ("photos", 4000, SCRATCH),
    "weights, 400": ("train", 400, {}),
    "weights, all": ("train", None, {}),
}
"""The option with the folder, the number of its photographs, and changes of the preset."""


def main() -> None:
    """Train and measure all arms and seeds, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--options", type=json.loads, default={}, help="changes of the preset, as JSON")
    parser.add_argument("--out", type=Path, default=Path("runs/own_data"))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = [row(arm, seed, args) for seed in range(args.seeds) for arm in args.arms]
    write_table(f"own_data_{torch.device(args.device).type}", rows, args.device)
    for arm in args.arms:
        gains = [entry["after"] - entry["before"] for entry in rows if entry["arm"] == arm]
        print(f"{arm}: {plus_minus(fmean(gains), stdev(gains) if len(gains) > 1 else None, 1)} points of top 1")


def row(arm: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a run, which is trained if it is not there yet."""
    option, count, changes = ARMS[arm]
    out = args.out / f"{arm}-{seed}".replace(", ", "-")
    file = out / "own_data.json"
    if not file.is_file():
        images = subset(getattr(args, option), count, args.out / f"{option}-{count or 'all'}")
        given = {"images": str(images), "out": str(out), "seed": seed, "device": args.device, **changes, **args.options}
        precision = "auto" if torch.device(args.device).type == "cpu" else "fp32"
        config = with_options(merge(cpu(), {"optim": {"precision": precision}}), given)
        before = top1("pretrained" if config.init else f"random:{config.model.backbone}", seed, args)
        begin = time.perf_counter()
        run = run_pretraining(config, console=Console(quiet=True))
        seconds = time.perf_counter() - begin
        measured = {"before": before, "after": top1(str(out), seed, args), "seconds": seconds, **own_measures(run)}
        facts = {
            "photos": len(take_inventory(images, "images").files),
            "precision": next(run.metrics("start"))["precision"],
        }
        file.write_text(json.dumps({name: round(value, 2) for name, value in measured.items()} | facts))
    figures = json.loads(file.read_text())
    print({"arm": arm, "seed": seed, **figures}, flush=True)
    return {"arm": arm, "seed": seed, **figures}


def subset(folder: Path, count: int | None, out: Path) -> Path:
    """Return a folder with links to so many photographs of a folder, evenly spaced."""
    files: Sequence[Path] = list(take_inventory(folder, "images").files.values())
    if not out.exists():
        out.mkdir(parents=True)
        for number, path in enumerate(files if count is None else evenly_spaced(files, count)):
            (out / f"{number:05d}{path.suffix}").symlink_to(path.resolve())
    return out


def top1(weights: str, seed: int, args: argparse.Namespace) -> float:
    """Return top-1 retrieval on the labelled images, in percent."""
    sides = {"train": str(args.train), "test": str(args.test), "limit": 0, "device": args.device}
    values = {"preset": "quick", "weights": weights, "seed": seed, **sides}
    return float(build_evaluation("retrieval", values).run(Console(quiet=True)).metrics["top1"])


def own_measures(run: Run) -> dict[str, float]:
    """Return what the run measured without labels, before and after."""
    first, *_, last = run.metrics("monitor")
    names = ("crops_top1", "own_rankme")
    return {f"{name}_{when}": entry[name] for name in names for when, entry in (("before", first), ("after", last))}


if __name__ == "__main__":
    main()
