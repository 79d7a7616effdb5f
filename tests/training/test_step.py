"""A step's figures and its gradients against a loop."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unshuffle.models.ordering import OrderingNetwork, backbone_features

from unshuffle.config import GroupConfig, HeadConfig, demo
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.policy.groups import gumbel
from unshuffle.policy.sampler import Proposal, Selection
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import ForwardPass, GraphedStep, Step


class Lookup(nn.Module):
    """A network whose logits are its weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(shape))

    def embed(self, crops: dict[str, Tensor]) -> dict[str, Tensor]:
        return crops

    def classify(self, task: str, features: Tensor, permutations: Tensor) -> Tensor:
        return self.logits


@pytest.mark.parametrize("with_prior", [False, True])
def test_loss_accuracy_and_gradient_are_those_of_a_loop(with_prior: bool) -> None:
    torch.manual_seed(0)
    network, labels = Lookup((4, 2, 5)), torch.randint(5, (4, 2))
    prior = torch.randn(5) if with_prior else None
    still: Any = SimpleNamespace(zero_grad=lambda: None, step=lambda iteration: None)
    forward_pass = ForwardPass(cast(OrderingNetwork, network))
    step = Step(forward_pass, {"spatial": torch.zeros(5, 3, dtype=torch.int64)}, cast(Optimisers, still), "fp32")
    outcome = step({"spatial": torch.zeros(4, 3)}, {"spatial": Proposal(labels, prior)}, 0)["spatial"]
    rows = network.logits.detach().clone().requires_grad_()
    total, hits = torch.zeros(()), 0
    for sample in range(4):
        for column in range(2):
            logits = rows[sample, column]
            shifted = logits if prior is None else logits + prior
            total = total - F.log_softmax(shifted, 0)[labels[sample, column]] / 8
            hits += int(logits.argmax() == labels[sample, column])  # the prior is no part of the answer
    total.backward()  # type: ignore[no-untyped-call]
    assert float(outcome.loss) == pytest.approx(total.item())
    assert float(outcome.accuracy) == pytest.approx(hits / 8)
    assert torch.equal(outcome.permutations, labels) and outcome.groups is None, "there were no candidates"
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
    permutations = {task: torch.argsort(torch.rand(count, 4, device=device)) for task, count in SETS.items()}
    return kind(ForwardPass(network), permutations, Optimisers(network, CONFIG), precision)


def candidates_of(task: str, log_weights: Tensor, generator: torch.Generator, samples: int = 8) -> Proposal:
    """Two of six candidates for each sample."""
    device = generator.device
    candidates = torch.randint(SETS[task], (samples, 6), generator=generator, device=device)
    return Proposal(candidates, selection=Selection(log_weights.to(device), gumbel((samples, 6), generator), 2))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_with_candidates_is_a_step_on_those_selected(precision: str) -> None:
    """Weights and figures to the bit; one task has candidates, the other a prior and none."""
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(1)
    selects, plain = (ordering_step(Step, precision, cpu) for _ in range(2))
    prior = torch.randn(4, generator=generator)
    for iteration in range(2):
        crops = {task: torch.randn(8, 4, 3, 75, 75, generator=generator) for task in SETS}
        other = Proposal(torch.randint(4, (8, 2), generator=generator), prior)
        with_candidates = candidates_of("spatial", torch.tensor([0.7, 0.2, 0.1]).log(), generator)
        outcomes = selects(crops, {"spatial": with_candidates, "temporal": other}, iteration)
        permutations, groups = outcomes["spatial"].permutations, outcomes["spatial"].groups
        assert groups is not None and outcomes["temporal"].groups is None
        assert torch.equal(outcomes["temporal"].permutations, other.permutations)
        assert permutations.shape == groups.shape == (8, 2) and set(groups.unique().tolist()) <= {0, 1, 2}
        for selected, candidates in zip(permutations.tolist(), with_candidates.permutations.tolist(), strict=True):
            assert set(selected) <= set(candidates)
        expected = plain(crops, {"spatial": Proposal(permutations), "temporal": other}, iteration)
        for task in SETS:
            assert torch.equal(outcomes[task].loss, expected[task].loss)
            assert torch.equal(outcomes[task].accuracy, expected[task].accuracy)
    for name, weight in selects.forward_pass.state_dict().items():
        assert torch.equal(weight, plain.forward_pass.state_dict()[name]), name


@torch.no_grad()
def test_the_groups_of_a_step_follow_from_the_logits_of_the_candidates() -> None:
    """Two of each group of three: by the ratios of the network before the step."""
    step, generator = ordering_step(Step, "fp32", torch.device("cpu")), torch.Generator().manual_seed(1)
    step.forward_pass.eval()
    crops = {"spatial": torch.randn(8, 4, 3, 75, 75, generator=generator)}
    proposal = candidates_of("spatial", torch.tensor([0.0, -torch.inf]), generator)
    candidates_only = {"spatial": Proposal(proposal.permutations)}
    answers = step.forward_pass(crops, step.permutations, candidates_only)["spatial"][0].softmax(dim=2)
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
@pytest.mark.parametrize("with_candidates", [False, True])
@pytest.mark.parametrize("architecture", ["caffenet", "tiny"])
def test_a_recorded_step_learns_what_a_plain_one_learns(architecture: str, with_candidates: bool) -> None:
    """Several steps, with priors and without, and with changing tasks: S, T, both.

    The selection has equal weights: with others, bf16 makes differences of its own.
    """
    device, results = torch.device("cuda"), []
    for kind in (Step, GraphedStep):
        step = ordering_step(kind, "bf16", device, architecture)
        generator = torch.Generator(device).manual_seed(0)
        losses, trained_on, start = (
            [],
            [],
            {name: weight.clone() for name, weight in step.forward_pass.state_dict().items()},
        )
        for iteration in range(8):
            tasks = [["spatial"], ["temporal"], ["spatial", "temporal"]][iteration % 3]
            crops = {task: torch.randn(8, 4, 3, 75, 75, device=device, dtype=torch.bfloat16) for task in tasks}
            prior = torch.randn(5, device=device) if iteration > 4 else None
            proposals = {
                task: Proposal(torch.randint(SETS[task], (8, 2), device=device), prior if task == "spatial" else None)
                for task in tasks
            }
            if with_candidates and "temporal" in proposals:
                proposals["temporal"] = candidates_of("temporal", torch.zeros(3), generator)
            outcomes = step(crops, proposals, iteration)
            losses += [float(outcome.loss) for outcome in outcomes.values()]
            trained_on += [outcome.permutations.tolist() for outcome in outcomes.values()]
        moved = {name: (weight - start[name]).float() for name, weight in step.forward_pass.state_dict().items()}
        results.append((losses, moved, trained_on))
    (plain, plain_moves, plain_permutations), (recorded, recorded_moves, recorded_permutations) = results
    assert recorded == pytest.approx(plain, rel=0.05)
    assert recorded_permutations == plain_permutations
    for name, move in plain_moves.items():
        if "bias" not in name:  # those under a normalisation move by rounding alone
            difference = (recorded_moves[name] - move).norm() / move.norm()
            assert move.norm() > 0 and difference < 0.3, f"{name}: {difference}"  # bf16, eight steps, other sums


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_selects_by_the_weights_and_candidates_of_its_batch() -> None:
    device = torch.device("cuda")
    step, generator = ordering_step(GraphedStep, "bf16", device), torch.Generator(device).manual_seed(0)
    crops = {"spatial": torch.randn(8, 4, 3, 75, 75, device=device, dtype=torch.bfloat16)}
    for iteration, group in enumerate([0, 2, 1, 0]):
        proposal = candidates_of("spatial", torch.eye(3)[group].log(), generator)
        outcome = step(crops, {"spatial": proposal}, iteration)["spatial"]
        assert outcome.groups is not None and (outcome.groups == group).all()
        assert all(
            set(selected) <= set(candidates)
            for selected, candidates in zip(outcome.permutations.tolist(), proposal.permutations.tolist(), strict=True)
        )
