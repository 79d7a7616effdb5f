"""Step times of several backbones: unshuffle's trainer against a plain timm loop that does the same work.

    python benchmarks/backbones.py [--backbones caffenet timm:resnet18 ...] [--batch 256] [--size 112]
                                   [--modes eager compiled] [--images DATA] [--results FOLDER] [--device cuda]

The work is a step of instance discrimination: two views of each image through the backbone, a projection head,
NT-Xent, backward pass and AdamW. The plain loop is what a careful user writes around a timm model: bf16 autocast,
channels-last, a fused optimiser, once as it is and once with torch.compile. Its views are rendered beforehand and cost
it nothing; those of unshuffle are cropped and augmented in every step, which is part of its time. unshuffle's step is
recorded as a CUDA graph, once as it is and once with model.compile. `caffenet` is not in timm: the plain loop trains
our plain modules. All are measured in one run, each after a warm-up; run it alone on the GPU. Results go to
results/backbones_DEVICE.csv, or into the folder --results, after each measurement.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from table import RESULTS, save_table
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import prefer_speed, wait_for
from unshuffle.bench import whole_iterations, with_world, without_test
from unshuffle.config import small
from unshuffle.models import build_backbone
from unshuffle.models.heads import projection_head
from unshuffle.options import merge
from unshuffle.tasks.prepare import prepare
from unshuffle.training.trainer import build_trainer, fit_crop_sizes

BACKBONES = ("caffenet", "timm:resnet18", "timm:resnet50", "timm:vit_small_patch16_224")
HIDDEN, OUTPUT, TEMPERATURE = 2048, 128, 0.2
POOL = 4  # batches of views that the plain loop repeats


def main() -> None:
    """Measure all backbones and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES))
    parser.add_argument("--batch", type=int, default=256, help="images of a step")
    parser.add_argument("--size", type=int, default=112, help="side of a view in pixels")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--images", help="images of unshuffle's steps; by default the synthetic world")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    rows = []
    for name in args.backbones:
        for compiled in (mode == "compiled" for mode in args.modes):
            for loop, milliseconds in (("plain loop", plain_ms), ("unshuffle", our_ms)):
                rows.append(row(name, loop, compiled, milliseconds(name, compiled, args), args))
                save_table(rows, args.results / f"backbones_{torch.device(args.device).type}.csv", args.device)


def row(name: str, loop: str, compiled: bool, milliseconds: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return and print a row of the table."""
    figures = {"ms": round(milliseconds, 2), "images_per_second": round(1e3 * args.batch / milliseconds)}
    print(name, loop, "compiled" if compiled else "", figures, flush=True)
    return {"backbone": name, "loop": loop, "compiled": compiled, **figures, "batch": args.batch, "size": args.size}


def our_ms(name: str, compiled: bool, args: argparse.Namespace) -> float:
    """Return the milliseconds of an iteration of unshuffle's trainer, from reading the data to the updated weights."""
    changes = {
        "tasks": "I",
        "images": args.images,
        "device": args.device,
        "model": {"backbone": name, "compile": compiled},
        "instance": {
            "batch_size": args.batch,
            "crop_size": args.size,
            "hidden": HIDDEN,
            "output": OUTPUT,
            "temperature": TEMPERATURE,
        },
        "data": {"val_size": 20},
    }
    config, _ = fit_crop_sizes(with_world(without_test(merge(small(), changes))))
    return whole_iterations(build_trainer(config, prepare(config)), args.iterations)["ms_per_iteration"]


def plain_ms(name: str, compiled: bool, args: argparse.Namespace) -> float:
    """Return the milliseconds of an iteration of the plain loop."""
    device = torch.device(args.device)
    prefer_speed()
    network, features = plain_network(name, args.size)
    model = nn.Sequential(network, projection_head(features, HIDDEN, OUTPUT)).to(device).train()
    model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=device.type == "cuda")
    step = torch.compile(model) if compiled else model
    shape = (POOL, 2 * args.batch, 3, args.size, args.size)
    pool = [views.contiguous(memory_format=torch.channels_last) for views in torch.randn(shape, device=device)]

    def learn(views: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            projections = step(views)
        loss = nt_xent(F.normalize(projections.float(), dim=1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    for number in range(10):
        learn(pool[number % POOL])
    wait_for(device)
    begin = time.perf_counter()
    for number in range(args.iterations):
        learn(pool[number % POOL])
    wait_for(device)
    seconds = time.perf_counter() - begin
    return 1e3 * seconds / int(args.iterations)


def plain_network(name: str, size: int) -> tuple[nn.Module, int]:
    """Return a network for views of this size and the number of its features."""
    if not name.startswith("timm:"):
        backbone = build_backbone(name)
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(1, 3, size, size)).numel()
        return nn.Sequential(backbone, nn.Flatten()), features
    import timm

    member = name.removeprefix("timm:")
    options: dict[str, Any] = {"img_size": size} if member.startswith(("vit", "swin")) else {}
    network: Any = timm.create_model(member, pretrained=False, num_classes=0, **options)
    return network, network.num_features


def nt_xent(projections: Tensor) -> Tensor:
    """NT-Xent of (2B, D) projections, of which 2i and 2i + 1 belong together."""
    similarities = projections @ projections.T / TEMPERATURE
    similarities.fill_diagonal_(-torch.inf)
    partners = torch.arange(len(projections), device=projections.device) ^ 1
    return F.cross_entropy(similarities, partners)


if __name__ == "__main__":
    main()
