"""A step's figures and its gradients against a loop."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import GroupConfig, HeadConfig, demo
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.ordering import OrderingNetwork, trunk_features
from unshuffle.policy.samplers import Proposal
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import GraphedStep, Step


class Lookup(nn.Module):
    """A network whose logits are its weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(shape))

    def forward(self, crops: dict[str, Tensor], orders: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"spatial": self.logits}


@pytest.mark.parametrize("with_prior", [False, True])
def test_loss_accuracy_and_gradient_are_those_of_a_loop(with_prior: bool) -> None:
    torch.manual_seed(0)
    network, labels = Lookup((4, 2, 5)), torch.randint(5, (4, 2))
    prior = torch.randn(5) if with_prior else None
    still: Any = SimpleNamespace(zero_grad=lambda: None, step=lambda iteration: None)
    step = Step(network, {"spatial": torch.zeros(5, 3, dtype=torch.int64)}, cast(Optimisers, still), "fp32")
    outcome = step({"spatial": torch.zeros(4, 3)}, {"spatial": Proposal(labels, prior)}, 0)["spatial"]
    rows = network.logits.detach().clone().requires_grad_()
    total, hits = torch.zeros(()), 0
    for sample in range(4):
        for draw in range(2):
            one = rows[sample, draw]
            shifted = one if prior is None else one + prior
            total = total - F.log_softmax(shifted, 0)[labels[sample, draw]] / 8
            hits += int(one.argmax() == labels[sample, draw])  # the prior is no part of the answer
    total.backward()  # type: ignore[no-untyped-call]
    assert float(outcome.loss) == pytest.approx(total.item())
    assert float(outcome.accuracy) == pytest.approx(hits / 8)
    torch.testing.assert_close(network.logits.grad, rows.grad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backbone", ["caffenet", "tiny"])
def test_a_recorded_step_learns_what_a_plain_one_learns(backbone: str) -> None:
    """Several steps, with priors and without, and with changing tasks: S, T, both."""
    device, sets, results = torch.device("cuda"), {"spatial": 5, "temporal": 4}, []
    fast = GroupConfig("sgd", lr=0.05, weight_decay=0.0)
    config = replace(demo().optim, batch_size=8, warmup=0, trunk=fast, spatial=fast, temporal=fast)
    for kind in (Step, GraphedStep):
        torch.manual_seed(0)
        trunk = build_backbone(backbone)
        features = trunk_features(trunk, 75)
        heads = {task: build_head(features, 4, count, HeadConfig("lstm", 16, 16)) for task, count in sets.items()}
        network = OrderingNetwork(trunk, heads).to(device)
        orders = {task: torch.argsort(torch.rand(count, 4, device=device)) for task, count in sets.items()}
        step = kind(network, orders, Optimisers(network, config), "bf16")
        losses, start = [], {name: weight.clone() for name, weight in network.state_dict().items()}
        for iteration in range(8):
            tasks = [["spatial"], ["temporal"], ["spatial", "temporal"]][iteration % 3]
            crops = {task: torch.randn(8, 4, 3, 75, 75, device=device, dtype=torch.bfloat16) for task in tasks}
            prior = torch.randn(5, device=device) if iteration > 4 else None
            drawn = {
                task: Proposal(torch.randint(sets[task], (8, 2), device=device), prior if task == "spatial" else None)
                for task in tasks
            }
            losses += [float(outcome.loss) for outcome in step(crops, drawn, iteration).values()]
        moved = {name: (weight - start[name]).float() for name, weight in network.state_dict().items()}
        results.append((losses, moved))
    (plain, plain_moves), (recorded, recorded_moves) = results
    assert recorded == pytest.approx(plain, rel=0.05)
    for name, move in plain_moves.items():
        if "bias" not in name:  # those under a normalisation move by rounding alone
            difference = (recorded_moves[name] - move).norm() / move.norm()
            assert move.norm() > 0 and difference < 0.3, f"{name}: {difference}"  # bf16, eight steps, other sums
