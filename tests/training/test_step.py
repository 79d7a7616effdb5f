"""A training step against a loop, and a captured step against a plain one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
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
from unshuffle.training import optim
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import GraphedStep, Step, are_finite

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
    optimisers: Any = SimpleNamespace(
        zero_grad=lambda: calls.append("zero_grad"), step=lambda iteration, skipped: calls.append(iteration)
    )
    step = Step(network, weights, cast(Optimisers, optimisers), "fp32")
    outcomes, skipped = step({task: Inputs(torch.zeros(1), {"labels": labels[task]}) for task in tasks}, 7)
    assert not skipped
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


def config(architecture: str, optimiser: OptimiserConfig = FAST) -> Config:
    head = HeadConfig("lstm", 16, 16)
    return Config(
        model=ModelConfig(architecture),
        optim=OptimConfig(batch_size=8, warmup=0, milestones=(), backbone=optimiser),
        spatial=SpatialConfig(crop_size=75, grid=2, permutations=5, head=head, optimiser=optimiser),
        temporal=TemporalConfig(crop_size=75, frames=4, permutations=4, head=head, optimiser=optimiser),
        rotation=RotationConfig(crop_size=91, hidden=16, optimiser=optimiser),
        permutations=PermutationConfig(per_sample=2),
        policy=PolicyConfig(sampler="uniform"),
    )


def step_of_tasks(
    kind: type[Step],
    precision: str,
    device: torch.device,
    architecture: str = "tiny",
    optimiser: OptimiserConfig = FAST,
) -> Step:
    """A step of the same new network every time."""
    torch.manual_seed(0)
    settings = config(architecture, optimiser)
    tasks = build_tasks(settings, LOSS_WEIGHTS, device)
    network = Network(build_backbone(architecture), tasks).to(device)
    return kind(network, LOSS_WEIGHTS, Optimisers(network, settings), precision)


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
        outcomes, _ = selecting({"spatial": Inputs(crops["spatial"], with_candidates), **others}, iteration)
        permutations, groups = (outcomes["spatial"].sampled[name] for name in ("permutations", "groups"))
        assert outcomes["temporal"].sampled.keys() == {"permutations"} and outcomes["rotation"].sampled == {}
        assert torch.equal(outcomes["temporal"].sampled["permutations"], targets["temporal"]["permutations"])
        assert permutations.shape == groups.shape == (8, 2) and set(groups.unique().tolist()) <= {0, 1, 2}
        for selected, candidates in zip(permutations.tolist(), with_candidates["permutations"].tolist(), strict=True):
            assert set(selected) <= set(candidates)
        expected, _ = plain({"spatial": Inputs(crops["spatial"], {"permutations": permutations}), **others}, iteration)
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


# steps that are not finite


OPTIMISERS = {
    "sgd": replace(FAST, momentum=0.0),
    "momentum": FAST,
    "adamw": OptimiserConfig("adamw", lr=0.01, weight_decay=0.1),
}


def batches(device: torch.device, dtype: torch.dtype, count: int) -> list[dict[str, Inputs]]:
    generator = torch.Generator(device).manual_seed(0)
    return [
        {
            task: Inputs(
                crops_of(task, generator, dtype, 4),
                {} if task == "rotation" else {"permutations": labels_of(task, generator, samples=4)},
            )
            for task in LOSS_WEIGHTS
        }
        for _ in range(count)
    ]


def with_nan_in_a_sample(inputs: Mapping[str, Inputs]) -> dict[str, Inputs]:
    crops = inputs["temporal"].crops.clone()
    crops[2, 1, 0, 5, 5] = torch.nan
    return {**inputs, "temporal": replace(inputs["temporal"], crops=crops)}


def with_infinite_loss(inputs: Mapping[str, Inputs]) -> dict[str, Inputs]:
    """The gradients of this loss are finite: those of the softmax, less 1 for the label."""
    spatial = inputs["spatial"]
    prior = torch.zeros(SETS["spatial"], device=spatial.crops.device)
    prior[spatial.targets["permutations"][0, 0]] = -torch.inf
    return {**inputs, "spatial": replace(spatial, targets={**spatial.targets, "log_prior": prior})}


def whole_state(step: Step) -> list[Tensor]:
    """Weights, running statistics and the optimisers' states."""
    states = [optimiser.state for optimiser in step.optimisers.optimisers.values()]
    memory = [tensor for state in states for values in state.values() for tensor in values.values()]
    return [tensor.clone() for tensor in (*step.network.state_dict().values(), *memory)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("what", ["sample", "loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(
    what: str, bad: int, optimiser: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with fused optimisers, those of a GPU, and also as the first step; the others learn as without it."""
    monkeypatch.setattr(optim, "are_fused", lambda parameters: fused)
    cpu = torch.device("cpu")
    step, plain = (step_of_tasks(Step, "fp32", cpu, optimiser=OPTIMISERS[optimiser]) for _ in range(2))
    for number, inputs in enumerate(batches(cpu, torch.float32, 3)):
        if number == bad:
            before = whole_state(step)
            damaged = {"sample": with_nan_in_a_sample, "loss": with_infinite_loss, "gradient": dict}[what](inputs)
            weight = next(step.network.parameters())
            poison = weight.register_hook(lambda gradient: gradient * torch.nan) if what == "gradient" else None
            _, skipped = step(damaged, 0)
            if poison is not None:
                poison.remove()
            assert skipped
            # not strict: an optimiser may have made its state in this step, which counts below
            assert all(torch.equal(one, other) for one, other in zip(before, whole_state(step), strict=False))
        else:
            for each in (step, plain):
                _, skipped = each(inputs, 0)
                assert not skipped
    assert all(torch.equal(one, other) for one, other in zip(whole_state(step), whole_state(plain), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("damage", [with_nan_in_a_sample, with_infinite_loss])
@pytest.mark.parametrize("architecture", ["caffenet", "tiny"])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_captured_step_that_is_not_finite_changes_nothing(
    bad: int, architecture: str, damage: Callable[[Mapping[str, Inputs]], dict[str, Inputs]], optimiser: str
) -> None:
    device = torch.device("cuda")
    step = step_of_tasks(GraphedStep, "bf16", device, architecture, OPTIMISERS[optimiser])
    for number, inputs in enumerate(batches(device, torch.bfloat16, 4)):
        before = step.network.state_dict()
        before = {name: value.clone() for name, value in before.items()}
        _, skipped = step(damage(inputs) if number == bad else inputs, number)
        assert bool(skipped) == (number == bad)
        after = step.network.state_dict()
        same = {name for name, value in before.items() if torch.equal(value, after[name])}
        assert (same == before.keys()) == (number == bad)
        assert all(bool(tensor.isfinite().all()) for tensor in whole_state(step))


def test_finite_gradients() -> None:
    """As far as their squares are; one that is not there does not count."""
    large = torch.full((3,), 1e18)
    assert are_finite([large, None, torch.zeros(0, 2), torch.zeros(())])
    for bad in (torch.nan, torch.inf, -torch.inf, 1e30):
        assert not are_finite([large, torch.tensor([[0.0, bad]])])


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
            for outcome in step(inputs, iteration)[0].values():
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
        sampled = step(inputs, iteration)[0]["spatial"].sampled
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
