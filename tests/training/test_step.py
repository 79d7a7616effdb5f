"""A step's figures and its gradients against a loop."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unshuffle.models.ordering import OrderingNetwork, backbone_features
from unshuffle.policy.pairs import Choice, Pick, gumbel

from unshuffle.config import GroupConfig, HeadConfig, demo
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.policy.sampler import Proposal
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import GraphedStep, Step


class Lookup(nn.Module):
    """A network whose logits are its weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(shape))

    def forward(self, crops: dict[str, Tensor], orders: dict[str, Tensor], picks: dict[str, Pick]) -> dict[str, Tensor]:
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
    assert outcome.chosen is None, "there was no choice"
    torch.testing.assert_close(network.logits.grad, rows.grad)


SETS = {"spatial": 5, "temporal": 4}
FAST = GroupConfig("sgd", lr=0.05, weight_decay=0.0)
CONFIG = replace(demo().optim, batch_size=8, warmup=0, backbone=FAST, spatial=FAST, temporal=FAST)


def ordering_step(kind: type[Step], precision: str, device: torch.device, architecture: str = "tiny") -> Step:
    """A step of the same new network every time."""
    torch.manual_seed(0)
    backbone = build_backbone(architecture)
    features = backbone_features(backbone, 75)
    heads = {task: build_head(features, 4, count, HeadConfig("lstm", 16, 16)) for task, count in SETS.items()}
    network = OrderingNetwork(backbone, heads).to(device)
    orders = {task: torch.argsort(torch.rand(count, 4, device=device)) for task, count in SETS.items()}
    return kind(network, orders, Optimisers(network, CONFIG), precision)


def choosing(task: str, log_shares: Tensor, generator: torch.Generator, samples: int = 8) -> Proposal:
    """Two of six candidates for each sample."""
    device = generator.device
    drawn = torch.randint(SETS[task], (samples, 6), generator=generator, device=device)
    return Proposal(drawn, choice=Choice(log_shares.to(device), gumbel((samples, 6), generator), 2))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_that_chooses_is_a_step_on_what_it_chose(precision: str) -> None:
    """Weights and figures to the bit; one task has a choice, the other a prior and none."""
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(1)
    chooses, told = (ordering_step(Step, precision, cpu) for _ in range(2))
    prior = torch.randn(4, generator=generator)
    for iteration in range(2):
        crops = {task: torch.randn(8, 4, 3, 75, 75, generator=generator) for task in SETS}
        other = Proposal(torch.randint(4, (8, 2), generator=generator), prior)
        open_question = choosing("spatial", torch.tensor([0.7, 0.2, 0.1]).log(), generator)
        found = chooses(crops, {"spatial": open_question, "temporal": other}, iteration)
        assert found["spatial"].chosen is not None and found["temporal"].chosen is None
        permutations, groups = found["spatial"].chosen
        assert permutations.shape == groups.shape == (8, 2) and set(groups.unique().tolist()) <= {0, 1, 2}
        for mine, candidates in zip(permutations.tolist(), open_question.permutations.tolist(), strict=True):
            assert set(mine) <= set(candidates)
        expected = told(crops, {"spatial": Proposal(permutations), "temporal": other}, iteration)
        for task in SETS:
            assert torch.equal(found[task].loss, expected[task].loss)
            assert torch.equal(found[task].accuracy, expected[task].accuracy)
    for name, weight in chooses.network.state_dict().items():
        assert torch.equal(weight, told.network.state_dict()[name]), name


@torch.no_grad()
def test_the_groups_of_a_step_are_by_what_the_network_makes_of_the_candidates() -> None:
    """Two of each group of three: by the ratios of the network before the step."""
    step, generator = ordering_step(Step, "fp32", torch.device("cpu")), torch.Generator().manual_seed(1)
    step.network.eval()
    crops = {"spatial": torch.randn(8, 4, 3, 75, 75, generator=generator)}
    proposal = choosing("spatial", torch.tensor([0.0, -torch.inf]), generator)
    orders = {"spatial": step.permutations["spatial"][proposal.permutations]}
    answers = step.network(crops, orders)["spatial"].softmax(dim=2)
    with torch.enable_grad():
        answer = step.forward(crops, {"spatial": proposal})["spatial"]
    assert answer.groups is not None and not answer.groups.any()
    for sample, candidates in enumerate(proposal.permutations.tolist()):
        right = [float(answers[sample, column, label]) for column, label in enumerate(candidates)]
        rival = [
            max(float(value) for place, value in enumerate(answers[sample, column]) if place != label)
            for column, label in enumerate(candidates)
        ]
        ratios = [(mine + 1) / (other + 1) for mine, other in zip(right, rival, strict=True)]
        hardest = {candidates[column] for column in sorted(range(6), key=ratios.__getitem__)[:3]}
        assert set(answer.labels[sample].tolist()) <= hardest


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("with_choice", [False, True])
@pytest.mark.parametrize("architecture", ["caffenet", "tiny"])
def test_a_recorded_step_learns_what_a_plain_one_learns(architecture: str, with_choice: bool) -> None:
    """Several steps, with priors and without, and with changing tasks: S, T, both.

    A choice is by equal shares: in others, bf16 makes differences of its own.
    """
    device, results = torch.device("cuda"), []
    for kind in (Step, GraphedStep):
        step = ordering_step(kind, "bf16", device, architecture)
        generator = torch.Generator(device).manual_seed(0)
        losses, chosen, start = [], [], {name: weight.clone() for name, weight in step.network.state_dict().items()}
        for iteration in range(8):
            tasks = [["spatial"], ["temporal"], ["spatial", "temporal"]][iteration % 3]
            crops = {task: torch.randn(8, 4, 3, 75, 75, device=device, dtype=torch.bfloat16) for task in tasks}
            prior = torch.randn(5, device=device) if iteration > 4 else None
            drawn = {
                task: Proposal(torch.randint(SETS[task], (8, 2), device=device), prior if task == "spatial" else None)
                for task in tasks
            }
            if with_choice and "temporal" in drawn:
                drawn["temporal"] = choosing("temporal", torch.zeros(3), generator)
            outcomes = step(crops, drawn, iteration)
            losses += [float(outcome.loss) for outcome in outcomes.values()]
            chosen += [outcome.chosen[0].tolist() for outcome in outcomes.values() if outcome.chosen is not None]
        moved = {name: (weight - start[name]).float() for name, weight in step.network.state_dict().items()}
        results.append((losses, moved, chosen))
    (plain, plain_moves, plain_chosen), (recorded, recorded_moves, recorded_chosen) = results
    assert recorded == pytest.approx(plain, rel=0.05)
    assert recorded_chosen == plain_chosen and len(plain_chosen) == (5 if with_choice else 0)
    for name, move in plain_moves.items():
        if "bias" not in name:  # those under a normalisation move by rounding alone
            difference = (recorded_moves[name] - move).norm() / move.norm()
            assert move.norm() > 0 and difference < 0.3, f"{name}: {difference}"  # bf16, eight steps, other sums


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_chooses_by_the_shares_and_candidates_of_its_batch() -> None:
    device = torch.device("cuda")
    step, generator = ordering_step(GraphedStep, "bf16", device), torch.Generator(device).manual_seed(0)
    crops = {"spatial": torch.randn(8, 4, 3, 75, 75, device=device, dtype=torch.bfloat16)}
    for iteration, group in enumerate([0, 2, 1, 0]):
        proposal = choosing("spatial", torch.eye(3)[group].log(), generator)
        chosen = step(crops, {"spatial": proposal}, iteration)["spatial"].chosen
        assert chosen is not None
        permutations, groups = chosen
        assert (groups == group).all()
        assert all(
            set(mine) <= set(candidates)
            for mine, candidates in zip(permutations.tolist(), proposal.permutations.tolist(), strict=True)
        )
