"""A training step against a loop, and a captured step against a plain one."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import (
    Config,
    HeadConfig,
    ModelConfig,
    OptimConfig,
    OptimiserConfig,
    PermutationConfig,
    PolicyConfig,
    RotationConfig,
    SpatialConfig,
    TemporalConfig,
)
from unshuffle.models import build_backbone
from unshuffle.policy.groups import gumbel
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Inputs, Network, Outcome
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import GraphedStep, Step

SETS = {"spatial": 5, "temporal": 4}
CROP_SIZES = {"spatial": 75, "temporal": 75, "rotation": 91}
LOSS_WEIGHTS = {"spatial": 1.0, "temporal": 1.0, "rotation": 0.5}
FAST = OptimiserConfig("sgd", lr=0.05, weight_decay=0.0)


class Lookup(nn.Module):
    """A network whose logits are its weights; each task has a label for each row."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        super().__init__()
        self.logits = nn.ParameterDict({task: torch.randn(count, 5) for task, count in rows.items()})

    def forward(self, inputs: Mapping[str, Inputs]) -> dict[str, Outcome]:
        outcomes = {}
        for task, batch in inputs.items():
            labels = batch.targets["labels"]
            loss = F.cross_entropy(self.logits[task], labels)
            accuracy = (self.logits[task].argmax(dim=1) == labels).float().mean()
            outcomes[task] = Outcome(loss, accuracy, {"labels": labels})
        return outcomes


@pytest.mark.parametrize("tasks", [["one"], ["other"], ["one", "other"]])
def test_loss_accuracy_and_gradient_are_those_of_a_loop(tasks: list[str]) -> None:
    torch.manual_seed(0)
    rows, weights = {"one": 4, "other": 3}, {"one": 2.0, "other": 0.25}
    network = Lookup(rows)
    labels = {task: torch.randint(5, (count,)) for task, count in rows.items()}
    calls: list[Any] = []
    optimisers: Any = SimpleNamespace(zero_grad=lambda: calls.append("zero_grad"), step=calls.append)
    step = Step(network, weights, cast(Optimisers, optimisers), "fp32")
    outcomes = step({task: Inputs(torch.zeros(1), {"labels": labels[task]}) for task in tasks}, 7)
    assert calls == ["zero_grad", 7] and list(outcomes) == tasks
    for task in rows:
        logits = network.logits[task].detach().clone().requires_grad_()
        total, hits = torch.zeros(()), 0
        for row, label in zip(logits, labels[task].tolist(), strict=True):
            total = total - F.log_softmax(row, 0)[label] / rows[task]
            hits += int(row.argmax() == label)
        (weights[task] * total).backward()
        if task not in tasks:
            assert network.logits[task].grad is None
            continue
        assert not outcomes[task].loss.requires_grad
        assert float(outcomes[task].loss) == pytest.approx(total.item()), "without its weight"
        assert float(outcomes[task].accuracy) == pytest.approx(hits / rows[task])
        assert torch.equal(outcomes[task].sampled["labels"], labels[task])
        torch.testing.assert_close(network.logits[task].grad, logits.grad)


def config(architecture: str) -> Config:
    head = HeadConfig("lstm", 16, 16)
    return Config(
        model=ModelConfig(architecture),
        optim=OptimConfig(batch_size=8, warmup=0, milestones=(), backbone=FAST),
        spatial=SpatialConfig(crop_size=75, grid=2, permutations=5, head=head, optimiser=FAST),
        temporal=TemporalConfig(crop_size=75, frames=4, permutations=4, head=head, optimiser=FAST),
        rotation=RotationConfig(crop_size=91, hidden=16, optimiser=FAST),
        permutations=PermutationConfig(per_sample=2),
        policy=PolicyConfig(sampler="uniform"),
    )


def step_of_tasks(kind: type[Step], precision: str, device: torch.device, architecture: str = "tiny") -> Step:
    """A step of the same new network every time."""
    torch.manual_seed(0)
    tasks = build_tasks(config(architecture), LOSS_WEIGHTS, device)
    network = Network(build_backbone(architecture), tasks).to(device)
    return kind(network, LOSS_WEIGHTS, Optimisers(network, config(architecture)), precision)


def crops_of(task: str, generator: torch.Generator, dtype: torch.dtype = torch.float32, samples: int = 8) -> Tensor:
    side, device = CROP_SIZES[task], generator.device
    return torch.randn(samples, 4, 3, side, side, generator=generator, device=device, dtype=dtype)


def labels_of(task: str, generator: torch.Generator, count: int = 2, samples: int = 8) -> Tensor:
    return torch.randint(SETS[task], (samples, count), generator=generator, device=generator.device)


def candidates_of(task: str, log_weights: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Targets with six candidates for each sample, of which two are selected."""
    return {
        "permutations": labels_of(task, generator, 6),
        "log_weights": log_weights.to(generator.device),
        "noise": gumbel((8, 6), generator),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_with_candidates_is_a_step_on_those_selected(precision: str) -> None:
    """Equal weights and figures to the bit; one task has candidates, another a prior, the third no permutations."""
    generator = torch.Generator().manual_seed(1)
    selecting, plain = (step_of_tasks(Step, precision, torch.device("cpu")) for _ in range(2))
    prior = torch.randn(4, generator=generator)
    for iteration in range(2):
        crops = {task: crops_of(task, generator) for task in LOSS_WEIGHTS}
        with_candidates = candidates_of("spatial", torch.tensor([0.7, 0.2, 0.1]).log(), generator)
        targets: dict[str, dict[str, Tensor]] = {
            "temporal": {"permutations": labels_of("temporal", generator), "log_prior": prior},
            "rotation": {},
        }
        others = {task: Inputs(crops[task], targets[task]) for task in targets}
        outcomes = selecting({"spatial": Inputs(crops["spatial"], with_candidates), **others}, iteration)
        permutations, groups = (outcomes["spatial"].sampled[name] for name in ("permutations", "groups"))
        assert outcomes["temporal"].sampled.keys() == {"permutations"} and outcomes["rotation"].sampled == {}
        assert torch.equal(outcomes["temporal"].sampled["permutations"], targets["temporal"]["permutations"])
        assert permutations.shape == groups.shape == (8, 2) and set(groups.unique().tolist()) <= {0, 1, 2}
        for selected, candidates in zip(permutations.tolist(), with_candidates["permutations"].tolist(), strict=True):
            assert set(selected) <= set(candidates)
        expected = plain({"spatial": Inputs(crops["spatial"], {"permutations": permutations}), **others}, iteration)
        for task in LOSS_WEIGHTS:
            assert torch.equal(outcomes[task].loss, expected[task].loss)
            assert torch.equal(outcomes[task].accuracy, expected[task].accuracy)
    for name, weight in selecting.network.state_dict().items():
        assert torch.equal(weight, plain.network.state_dict()[name]), name


@torch.no_grad()
def test_the_groups_of_a_step_follow_from_the_logits_of_the_candidates() -> None:
    """Two of each group of three, by the ratios of the network before the step."""
    step, generator = step_of_tasks(Step, "fp32", torch.device("cpu")), torch.Generator().manual_seed(1)
    network = step.network.eval()
    assert isinstance(network, Network)
    crops = crops_of("spatial", generator)
    targets = candidates_of("spatial", torch.tensor([0.0, -torch.inf]), generator)
    head: Any = network.heads["spatial"]
    task: Any = network.tasks["spatial"]
    embeddings = head.embed(network.features({"spatial": crops})["spatial"])
    probabilities = task._classify(head, embeddings, targets["permutations"]).softmax(dim=2)
    with torch.enable_grad():
        outcome = step.forward({"spatial": Inputs(crops, targets)})["spatial"]
    assert not outcome.sampled["groups"].any()
    for sample, candidates in enumerate(targets["permutations"].tolist()):
        ratios = []
        for column, label in enumerate(candidates):
            row = probabilities[sample, column].tolist()
            rival = max(value for index, value in enumerate(row) if index != label)
            ratios.append((row[label] + 1) / (rival + 1))
        hardest = {candidates[column] for column in sorted(range(6), key=ratios.__getitem__)[:3]}
        assert set(outcome.sampled["permutations"][sample].tolist()) <= hardest


TURNS = [["spatial"], ["temporal"], ["spatial", "temporal"], ["spatial", "temporal", "rotation"], ["rotation"]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("with_candidates", [False, True])
@pytest.mark.parametrize("architecture", ["caffenet", "tiny"])
def test_a_captured_step_learns_what_a_plain_one_learns(architecture: str, with_candidates: bool) -> None:
    """Several steps, with priors and without, and with changing tasks, one of them with larger crops.

    The selection has equal weights: with others, bf16 makes differences of its own.
    """
    device, results = torch.device("cuda"), []
    for kind in (Step, GraphedStep):
        step = step_of_tasks(kind, "bf16", device, architecture)
        generator = torch.Generator(device).manual_seed(0)
        start = {name: weight.clone() for name, weight in step.network.state_dict().items()}
        losses: list[float] = []
        sampled: list[Any] = []
        for iteration in range(10):
            inputs = {}
            for task in TURNS[iteration % len(TURNS)]:
                targets = {} if task == "rotation" else {"permutations": labels_of(task, generator)}
                if task == "spatial" and iteration > 4:
                    targets["log_prior"] = torch.randn(5, generator=generator, device=device)
                if task == "temporal" and with_candidates:
                    targets = candidates_of(task, torch.zeros(3), generator)
                inputs[task] = Inputs(crops_of(task, generator, torch.bfloat16), targets)
            for outcome in step(inputs, iteration).values():
                losses.append(float(outcome.loss))
                sampled.append({name: tensor.tolist() for name, tensor in outcome.sampled.items() if name != "groups"})
        moves = {name: (weight - start[name]).float() for name, weight in step.network.state_dict().items()}
        results.append((losses, moves, sampled))
    (plain, plain_moves, plain_sampled), (captured, captured_moves, captured_sampled) = results
    assert captured == pytest.approx(plain, rel=0.05)
    assert captured_sampled == plain_sampled
    for name, move in plain_moves.items():
        if "bias" not in name:  # those under a normalisation move by rounding alone
            difference = (captured_moves[name] - move).norm() / move.norm()
            assert move.norm() > 0 and difference < 0.3, f"{name}: {difference}"  # bf16, ten steps, other sums


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_selects_by_the_weights_and_candidates_of_its_batch() -> None:
    device = torch.device("cuda")
    step, generator = step_of_tasks(GraphedStep, "bf16", device), torch.Generator(device).manual_seed(0)
    crops = {task: crops_of(task, generator, torch.bfloat16) for task in ("spatial", "rotation")}
    for iteration, group in enumerate([0, 2, 1, 0]):
        targets = candidates_of("spatial", torch.eye(3)[group].log(), generator)
        inputs = {"spatial": Inputs(crops["spatial"], targets), "rotation": Inputs(crops["rotation"])}
        sampled = step(inputs, iteration)["spatial"].sampled
        assert (sampled["groups"] == group).all()
        for selected, candidates in zip(
            sampled["permutations"].tolist(), targets["permutations"].tolist(), strict=True
        ):
            assert set(selected) <= set(candidates)


def test_a_captured_step_is_set_up_like_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    network = nn.Linear(2, 3)
    step = GraphedStep(network, {}, cast(Optimisers, None), "bf16")
    assert step._graphs == {} and [id(one) for one in step._parameters] == [id(one) for one in network.parameters()]
