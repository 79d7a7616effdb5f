"""Cost of one validation: a full forward pass for every (permutation, sample) pair, and the shared-backbone route.

    python benchmarks/validation_cost.py [--device cuda] [--permutations 1000] [--samples 100] [--pairs 256]

The direct route runs on some random pairs, and its time is scaled to all of them. On those pairs the two routes must
agree; otherwise nothing is written. Results go to results/validation_cost_DEVICE.csv.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from table import peak_memory_gb, write_table
from torch import Tensor

from unshuffle.accelerator import wait_for
from unshuffle.config import paper
from unshuffle.data.crops import permute
from unshuffle.models import build_backbone
from unshuffle.models.heads import Head
from unshuffle.options import merge
from unshuffle.policy.state import softmax_ratios
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Network
from unshuffle.tasks.ordering import OrderingTask

CHUNK = 50
DIRECT_BATCH = 128


def main() -> None:
    """Measure both ordering tasks of the preset `paper`."""
    args = arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # its 10 bits would hide whether the routes agree
    device = torch.device(args.device)
    rows = [measure(name, device, args.permutations, args.samples, args.pairs) for name in ("spatial", "temporal")]
    write_table(f"validation_cost_{device.type}", rows, device.type, "fp32")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--permutations", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=256)
    return parser.parse_args()


def measure(name: str, device: torch.device, count: int, samples: int, pairs: int) -> dict[str, str]:
    config = merge(paper(), {name: {"permutations": count}})
    task = build_tasks(config, [name], device)[name]
    assert isinstance(task, OrderingTask)
    network = Network(build_backbone(config.model.backbone), {name: task}).to(device).eval()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    size = task.settings.crop_size
    crops = torch.randn(samples, task.parts, 3, size, size, device=device)
    sharpen(network, task, crops[:8])
    chosen = torch.randperm(count * samples)[:pairs]
    labels, rows = (chosen % count).to(device), (chosen // count).to(device)

    state, shared = timed(lambda: task.validate(network, crops.split(CHUNK)).state, device)
    memory = peak_memory_gb(device)
    ratios, direct = timed(lambda: direct_ratios(network, task, crops, labels, rows), device)
    difference = float((ratios.cpu() - state[labels.cpu(), rows.cpu()]).abs().max())
    if difference > 1e-4:
        sys.exit(f"the routes disagree by {difference} on the {name} task")
    whole = direct * count * samples / pairs
    return {
        "task": name,
        "permutations": str(count),
        "samples": str(samples),
        "direct_seconds_scaled": f"{whole:.3f}",
        "direct_pairs_measured": str(pairs),
        "shared_seconds": f"{shared:.4f}",
        "times_faster": f"{whole / shared:.0f}",
        "largest_difference": f"{difference:.1e}",
        "peak_memory_gb": f"{memory:.2f}",
    }


def embed(network: Network, name: str, crops: Tensor) -> tuple[Head, Tensor]:
    """Return the head of a task and the fc6 embeddings of (B, P, 3, S, S) crops."""
    head = network.heads[name]
    assert isinstance(head, Head)
    return head, head.embed(network.features({name: crops})[name])


@torch.no_grad()
def sharpen(network: Network, task: OrderingTask, crops: Tensor) -> None:
    """Scale the logits of a new network to a standard deviation of 3: near 0 all ratios are 1, whatever the route."""
    head, embeddings = embed(network, task.name, crops)
    logits = head.order_classifier(embeddings)(task.permutations[:8])
    for parameter in head.get_submodule("fc8").parameters():
        parameter.mul_(3 / logits.std())


@torch.no_grad()
def direct_ratios(network: Network, task: OrderingTask, crops: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Return the softmax ratios of (label, row) pairs, each from a full forward pass on its permuted crops."""
    ratios = []
    for some_labels, some_rows in zip(labels.split(DIRECT_BATCH), rows.split(DIRECT_BATCH), strict=True):
        shuffled = permute(crops[some_rows], task.permutations[some_labels][:, None])[:, 0]
        head, embeddings = embed(network, task.name, shuffled)
        ratios.append(softmax_ratios(head.classify(embeddings)[:, None], some_labels[:, None])[:, 0])
    return torch.cat(ratios)


def timed(work: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float]:
    """Return the result and the seconds: on a GPU the median of three runs after a warm-up, on a CPU of one run."""
    result, seconds = work() if device.type == "cuda" else torch.empty(0), []
    for _ in range(3 if device.type == "cuda" else 1):
        wait_for(device)
        begin = time.perf_counter()
        result = work()
        wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return result, sorted(seconds)[len(seconds) // 2]


if __name__ == "__main__":
    main()
