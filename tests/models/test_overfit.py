"""Sanity check: the network must be able to memorise a few samples."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import HeadConfig, ShuffleConfig
from unshuffle.data.shuffle import CUTS, render
from unshuffle.data.synthetic import synthetic_clips, synthetic_images
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.models.registry import backbone_features
from unshuffle.permutations import permutation_set
from unshuffle.policy.state import validate

SAMPLES, PERMUTATIONS = 16, 10
STEPS = 60


def crops(task: str) -> Tensor:
    world = synthetic_images(SAMPLES, 72, seed=0) if task == "spatial" else synthetic_clips(SAMPLES, 24, 5, seed=0)
    pixels = torch.from_numpy(world.pixels).flatten(0, 1)
    cuts = CUTS[task](SAMPLES, pixels.shape[1], ShuffleConfig(crop_size=16, frames=5), pixels.device)
    return render(pixels, cuts, 16)


@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("task", ["spatial", "temporal"])
def test_sixteen_samples_are_memorised(task: str, kind: str) -> None:
    torch.manual_seed(0)
    parts = crops(task)
    psi = torch.from_numpy(permutation_set(parts.shape[1], PERMUTATIONS))
    backbone = build_backbone("tiny")
    config = HeadConfig(kind, fc6=64, hidden=128, centre=True)  # type: ignore[arg-type]
    head = build_head(backbone_features(backbone, 16), parts.shape[1], PERMUTATIONS, config)
    network = OrderingNetwork(backbone, {task: head}).train()
    untrained = validate(network, task, [parts], psi)
    assert untrained.error > 0.7, "an untrained network must not solve the task"

    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    every = psi.expand(SAMPLES, -1, -1)
    labels = torch.arange(PERMUTATIONS).repeat(SAMPLES)
    for _ in range(STEPS):
        logits = network({task: parts}, {task: every})[task].flatten(0, 1)
        optimiser.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimiser.step()
    assert (logits.argmax(dim=1) == labels).double().mean() == 1.0
    for module in network.modules():  # the running statistics lag behind after 60 steps
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        network({task: parts}, {task: every})
    assert validate(network, task, [parts], psi).error == 0
