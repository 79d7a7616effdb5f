"""A step's figures and its gradients against a loop."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.policy.samplers import Proposal
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import Step


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
