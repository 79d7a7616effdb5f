"""Step times of several backbones: unshuffle's trainer against a plain timm loop that does the same work.

    python benchmarks/backbones.py [--backbones caffenet timm:resnet18 ...] [--batch 256] [--size 112]
                                   [--modes eager compiled] [--precisions bf16 fp32] [--images DATA]
                                   [--results FOLDER] [--device cuda]

The work is a step of instance discrimination: two views of each image through the backbone, a projection head,
NT-Xent, backward pass and AdamW. The plain loop is what a careful user writes around a timm model: bf16 autocast,
channels-last, a fused optimiser, once as it is and once with torch.compile. Its views are rendered beforehand and cost
it nothing; those of unshuffle are cropped and augmented in every step, which is part of its time. On a GPU unshuffle's
step is recorded as a CUDA graph in bf16, once as it is and once with model.compile, which has no effect on a CPU. Views
have the size that suits the network. `caffenet` is not in timm: the plain loop trains our plain modules. All are
measured in one run, each after a warm-up; run it alone on the machine. Results go to results/backbones_DEVICE.csv, or
into the folder --results, after each measurement.
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
from unshuffle.config import Config, small
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
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp32"), default=["bf16"])
    parser.add_argument("--images", help="images of unshuffle's steps; by default the synthetic world")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    kind = torch.device(args.device).type
    rows = []
    for name in args.backbones:
        for precision in args.precisions:
            for mode in args.modes or (["eager"] if kind == "cpu" else ["eager", "compiled"]):
                config = config_of(name, mode == "compiled", precision, args)
                for loop, milliseconds in (("plain loop", plain_ms), ("unshuffle", our_ms)):
                    rows.append(row(loop, config, milliseconds(config, args.iterations)))
                    save_table(rows, args.results / f"backbones_{kind}.csv", args.device)


def row(loop: str, config: Config, milliseconds: float) -> dict[str, Any]:
    """Return and print a row of the table."""
    batch = config.batch_size("instance")
    values = {
        "backbone": config.model.backbone,
        "loop": loop,
        "compiled": config.model.compile,
        "ms": round(milliseconds, 2),
        "images_per_second": round(1e3 * batch / milliseconds),
        "batch": batch,
        "size": config.instance.crop_size,
        "precision": config.optim.precision,
    }
    print(*values.values(), flush=True)
    return values


def config_of(name: str, compiled: bool, precision: str, args: argparse.Namespace) -> Config:
    """Return the config of unshuffle's trainer, with the crop size that suits the network."""
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
        "optim": {"precision": precision},
    }
    return fit_crop_sizes(with_world(without_test(merge(small(), changes))))[0]


def our_ms(config: Config, iterations: int) -> float:
    """Return the milliseconds of an iteration of unshuffle's trainer, from reading the data to the updated weights."""
    return whole_iterations(build_trainer(config, prepare(config)), iterations)["ms_per_iteration"]


def plain_ms(config: Config, iterations: int) -> float:
    """Return the milliseconds of an iteration of the plain loop."""
    device, size = torch.device(config.device), config.instance.crop_size
    prefer_speed()
    network, features = plain_network(config.model.backbone, size)
    model = nn.Sequential(network, projection_head(features, HIDDEN, OUTPUT)).to(device).train()
    model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=device.type == "cuda")
    step = torch.compile(model) if config.model.compile else model
    shape = (POOL, 2 * config.batch_size("instance"), 3, size, size)
    pool = [views.contiguous(memory_format=torch.channels_last) for views in torch.randn(shape, device=device)]

    def learn(views: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.optim.precision == "bf16"):
            projections = step(views)
        loss = nt_xent(F.normalize(projections.float(), dim=1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    for number in range(10):
        learn(pool[number % POOL])
    wait_for(device)
    begin = time.perf_counter()
    for number in range(iterations):
        learn(pool[number % POOL])
    wait_for(device)
    return 1e3 * (time.perf_counter() - begin) / iterations


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
