"""What one validation costs: a full forward pass for every (permutation, sample) pair, and the shared-backbone route.

    python benchmarks/validation_cost.py [--device cuda] [--permutations 1000] [--samples 100] [--pairs 256]

The direct route runs on some random pairs and is scaled to all of them; on those pairs the two routes must agree, or
nothing is written. Results go to results/validation_cost_DEVICE.csv.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from table import write_table
from torch import Tensor
from unshuffle.models.ordering import OrderingNetwork

from unshuffle.config import paper
from unshuffle.data.crops import permute
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.registry import backbone_features
from unshuffle.permutations import permutation_set
from unshuffle.policy.state import softmax_ratios, validate

CHUNK = 50


def main() -> None:
    """Measure both tasks of the preset `paper`."""
    args = arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # its 10 bits would hide whether the routes agree
    device = torch.device(args.device)
    rows = [measure(task, device, args.permutations, args.samples, args.pairs) for task in ("spatial", "temporal")]
    write_table(f"validation_cost_{device.type}", rows, device.type, "fp32")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--permutations", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=256)
    return parser.parse_args()


def measure(task: str, device: torch.device, count: int, samples: int, pairs: int) -> dict[str, str]:
    config = replace(paper(), seed=0)
    parts = config.shuffle.tiles if task == "spatial" else config.shuffle.frames
    permutations = torch.from_numpy(permutation_set(parts, count)).to(device)
    backbone = build_backbone(config.model.backbone)
    head = build_head(backbone_features(backbone, config.shuffle.crop_size), parts, count, getattr(config.model, task))
    network = OrderingNetwork(backbone, {task: head}).to(device).eval()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    crops = torch.randn(samples, parts, 3, config.shuffle.crop_size, config.shuffle.crop_size, device=device)
    sharpen(network, task, crops[:8], permutations[:8])
    chosen = torch.randperm(count * samples)[:pairs]
    which, who = (chosen % count).to(device), (chosen // count).to(device)

    state, shared = timed(lambda: validate(network, task, crops.split(CHUNK), permutations).state, device)
    memory = peak_memory(device)
    ratios, direct = timed(lambda: direct_ratios(network, task, crops, permutations, which, who), device)
    difference = float((ratios.cpu() - state[which.cpu(), who.cpu()]).abs().max())
    if difference > 1e-4:
        sys.exit(f"the routes disagree by {difference} on the {task} task")
    whole = direct * count * samples / pairs
    return {
        "task": task,
        "permutations": str(count),
        "samples": str(samples),
        "direct_seconds_scaled": f"{whole:.3f}",
        "direct_pairs_measured": str(pairs),
        "shared_seconds": f"{shared:.4f}",
        "times_faster": f"{whole / shared:.0f}",
        "largest_difference": f"{difference:.1e}",
        "peak_memory_gb": f"{memory:.2f}",
    }


@torch.no_grad()
def sharpen(network: OrderingNetwork, task: str, crops: Tensor, orders: Tensor) -> None:
    """Give the logits of a new network a deviation of 3: all ratios would be 1 otherwise, and any two routes agree."""
    head = network.head(task)
    logits = head.order_classifier(network.embed({task: crops})[task])(orders)
    for parameter in head.get_submodule("fc8").parameters():
        parameter.mul_(3 / logits.std())


@torch.no_grad()
def direct_ratios(
    network: OrderingNetwork, task: str, crops: Tensor, permutations: Tensor, which: Tensor, who: Tensor
) -> Tensor:
    """The softmax ratios of some pairs, each by a full forward pass on its permuted crops, in batches of 128."""
    identity = torch.arange(crops.shape[1], device=crops.device).expand(1, 1, -1)
    ratios = []
    for rows, owners in zip(which.split(128), who.split(128), strict=True):
        shuffled = permute(crops[owners], permutations[rows][:, None])[:, 0]
        logits = network({task: shuffled}, {task: identity.expand(len(rows), -1, -1)})[task]
        ratios.append(
            torch.stack([softmax_ratios(one[None], row[None])[0, 0] for one, row in zip(logits, rows, strict=True)])
        )
    return torch.cat(ratios)


def timed(work: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float]:
    """The result and the seconds: on a GPU the median of three runs after one to warm up, on a CPU of one run."""
    result, seconds = work() if device.type == "cuda" else torch.empty(0), []
    for _ in range(3 if device.type == "cuda" else 1):
        wait_for(device)
        begin = time.perf_counter()
        result = work()
        wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return result, sorted(seconds)[len(seconds) // 2]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
