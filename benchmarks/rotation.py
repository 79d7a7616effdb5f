"""A yardstick from outside: the same backbone learns which way up an image is (rotation prediction, Gidaris et al. 2018).

    python benchmarks/rotation.py --images FOLDER --out FILE.safetensors [--iterations 6000] [--seed 0] [--device cuda]

Same images, colours, optimiser and drops of the rate as the preset `small`. A step has 228 images in all four
orientations, at 112 px: about the arithmetic of 128 images and 128 clips in crops of 75 px, and as many pixels under a
filter as when the backbone is evaluated. What the backbone is worth then: `unshuffle evaluate retrieval --weights FILE ...`.
"""

import argparse
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unshuffle.data.prepare import prepare

from unshuffle.accelerator import choose_device, choose_precision, has_kernels, prefer_speed
from unshuffle.config import Config, preset_config
from unshuffle.data import shuffle
from unshuffle.data.batches import Batch, BatchStream, Prefetcher, ahead
from unshuffle.data.squares import Squares, make_resident
from unshuffle.models.registry import Backbone, backbone_features, build_backbone
from unshuffle.models.weights import save_backbone
from unshuffle.options import merge
from unshuffle.randomness import seed_everything, torch_generator
from unshuffle.training.optim import build_optimiser, rate_factor

IMAGES, CROP, HIDDEN, REPORT = 228, 112, 1024, 500


class RotationNetwork(nn.Module):
    """A backbone and a classifier of four orientations."""

    def __init__(self, backbone: Backbone, crop: int) -> None:
        super().__init__()
        self.backbone = backbone
        features = backbone_features(backbone, crop)
        self.head = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 4))

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, 4)."""
        logits: Tensor = self.head(self.backbone.training_pass(images).flatten(1))
        return logits


def main() -> None:
    """Train, and write the backbone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--images_a_step", type=int, default=IMAGES)
    parser.add_argument("--crop", type=int, default=CROP)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    optim = {"iterations": args.iterations, "milestones": [round(0.7 * args.iterations), round(0.9 * args.iterations)]}
    changes = {"images": args.images, "tasks": "S", "seed": args.seed, "device": args.device, "optim": optim}
    config = merge(preset_config("small"), changes | {"shuffle": {"crop_size": args.crop, "frames": 1}})
    backbone = train(config, args.images_a_step)
    save_backbone(backbone, args.out, crop_size=args.crop, permutations={})
    print(args.out)


def train(config: Config, images: int) -> Backbone:
    """A backbone that has learned to tell orientations apart."""
    device = choose_device(config.device)
    precision = choose_precision(config.optim.precision, device)
    if precision == "bf16":
        prefer_speed()
    seed_everything(config.seed)
    backbone = build_backbone(config.model.backbone)
    network = RotationNetwork(backbone, config.shuffle.crop_size).to(device)
    rates = {network.backbone: config.optim.backbone, network.head: config.optim.spatial}
    optimisers = {build_optimiser(part.parameters(), rate): rate.lr for part, rate in rates.items()}
    hits = torch.zeros((), device=device)
    with closing(batches(config, images, device)) as coming:
        for iteration, squares in enumerate(coming):
            crops = cut(squares, config, device, precision, iteration)
            turned = torch.cat([crops.rot90(turn, (2, 3)) for turn in range(4)])
            labels = torch.arange(4, device=device).repeat_interleave(len(crops))
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                logits = network(turned.contiguous(memory_format=torch.channels_last))
            network.zero_grad(set_to_none=True)
            F.cross_entropy(logits.float(), labels).backward()
            for optimiser, rate in optimisers.items():
                for group in optimiser.param_groups:
                    group["lr"] = rate * rate_factor(config.optim, iteration)
                optimiser.step()
            hits += (logits.argmax(dim=1) == labels).float().mean()
            if (iteration + 1) % REPORT == 0 or iteration + 1 == config.optim.iterations:
                print(f"{iteration + 1}: training accuracy {float(hits) / ((iteration % REPORT) + 1):.3f}", flush=True)
                hits.zero_()
    return backbone


def batches(config: Config, images: int, device: torch.device) -> Generator[Squares]:
    """Squares of images on the device, for every iteration."""
    samples = prepare(config).training["spatial"]
    resident = make_resident(samples.source, device, config.data.gpu_share)
    stream = BatchStream(samples, images, config.seed, "spatial", resident, gpu=device.type == "cuda")

    def load(step: int) -> Batch:
        return {"spatial": stream.batch(step)}

    loader = Prefetcher(load, 0, config.optim.iterations, config.data.workers)
    for batch in ahead(loader, device):
        yield batch["spatial"]


def cut(squares: Squares, config: Config, device: torch.device, precision: str, iteration: int) -> Tensor:
    """A random, coloured crop of each square, (N, 3, S, S)."""
    generator = torch_generator(device, config.seed, "rotation", iteration)
    jittered = merge(config, {"shuffle": {"frame_jitter": True}}).shuffle
    cuts = shuffle.frame_cuts(len(squares), squares.side, jittered, device, generator)
    if not has_kernels(device):
        return shuffle.render(squares.pixels(), cuts, jittered.crop_size).flatten(0, 1)
    from unshuffle.kernels import crops  # needs Triton

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return crops.render(squares, cuts, jittered.crop_size, dtype).flatten(0, 1)


if __name__ == "__main__":
    main()
