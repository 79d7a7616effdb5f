import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.config import (
    Config,
    HeadConfig,
    OptimConfig,
    OptimiserConfig,
    PolicyConfig,
    SpatialConfig,
    TemporalConfig,
)
from unshuffle.models import build_backbone
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Network
from unshuffle.training import optim
from unshuffle.training.optim import Optimisers, lr_factor

TASKS = ["spatial", "temporal"]
HEAD = HeadConfig("concat", fc6=4, hidden=5)
CONFIG = Config(
    optim=OptimConfig(
        warmup=2,
        milestones=(3,),
        backbone=OptimiserConfig("sgd", lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    spatial=SpatialConfig(
        crop_size=16,
        grid=2,
        permutations=3,
        head=HEAD,
        optimiser=OptimiserConfig("sgd", lr=0.03, momentum=0.5, weight_decay=0.0),
    ),
    temporal=TemporalConfig(
        crop_size=16,
        frames=3,
        permutations=3,
        head=HEAD,
        optimiser=OptimiserConfig("adamw", lr=0.02, momentum=0.8, weight_decay=0.1),
    ),
    policy=PolicyConfig(sampler="uniform"),
)
SCHEDULE = CONFIG.optim


def network() -> Network:
    torch.manual_seed(0)
    return Network(build_backbone("tiny"), build_tasks(CONFIG, TASKS))


def group_of(name: str) -> str:
    return "backbone" if name.startswith("backbone.") else name.split(".")[1]


def set_gradients(net: Network, step: int, groups: list[str]) -> None:
    generator = torch.Generator().manual_seed(step)
    for name, weight in net.named_parameters():
        gradient = torch.randn(weight.shape, generator=generator)
        weight.grad = gradient if group_of(name) in groups else None


def weights(net: Network) -> dict[str, np.ndarray]:
    return {name: weight.detach().double().numpy().copy() for name, weight in net.named_parameters()}


def slow_lr_factor(config: OptimConfig, iteration: int) -> float:
    """Step by step from the beginning."""
    factor = 1.0
    for now in range(iteration + 1):
        for milestone in config.milestones:
            if now == milestone:
                factor *= config.decay
    if iteration < config.warmup:
        factor *= (iteration + 1) / config.warmup
    return factor


@given(
    warmup=st.integers(0, 20),
    milestones=st.lists(st.integers(1, 60), max_size=3, unique=True),
    decay=st.sampled_from([0.1, 0.5, 1.0]),
    iteration=st.integers(0, 80),
)
@settings(max_examples=200, deadline=None)
def test_the_learning_rate_against_steps(warmup: int, milestones: list[int], decay: float, iteration: int) -> None:
    optim = OptimConfig(warmup=warmup, milestones=tuple(milestones), decay=decay)
    assert lr_factor(Config(optim=optim), iteration) == pytest.approx(slow_lr_factor(optim, iteration))


@pytest.mark.parametrize(("iteration", "factor"), [(0, 1), (199_999, 1), (200_000, 0.1), (349_999, 0.1)])
def test_the_papers_learning_rates(iteration: int, factor: float) -> None:
    assert lr_factor(Config(), iteration) == pytest.approx(factor)


@pytest.mark.parametrize("warmup", [0, 5])
def test_the_cosine_is_torchs(warmup: int) -> None:
    config = Config(tasks="S", optim=OptimConfig(schedule="cosine", iterations=40, warmup=warmup, milestones=(10,)))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    expected = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=40 - warmup)
    for iteration in range(warmup, 40):
        assert lr_factor(config, iteration) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-9)
        optimiser.step()
        expected.step()
    assert [lr_factor(config, iteration) for iteration in range(warmup)] == [(i + 1) / 5 for i in range(warmup)]
    assert config.lr_changes == (), "it never drops"


def test_the_first_step_of_a_warmup_moves_and_the_last_is_full() -> None:
    config = Config(optim=OptimConfig(warmup=4, milestones=()))
    assert [lr_factor(config, iteration) for iteration in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_the_learning_rates_of_two_stages_by_hand() -> None:
    """Of the schedule 1/4, 1/2, 3/4, 1, 1, 1, 1/2, 1/2, 1/4 and 1/4 each half takes every second factor."""
    optim = OptimConfig(iterations=10, warmup=4, milestones=(6, 8), decay=0.5)
    stage = [1 / 4, 3 / 4, 1, 1 / 2, 1 / 4]
    config = Config(tasks="S&T", optim=optim)
    assert [lr_factor(config, iteration) for iteration in range(10)] == stage + stage
    assert config.lr_changes == (3, 4, 5, 8, 9)


@given(
    iterations=st.integers(3, 90),
    warmup=st.integers(0, 20),
    milestones=st.lists(st.integers(1, 100), max_size=3, unique=True),
)
@settings(max_examples=100, deadline=None)
def test_each_of_three_stages_goes_through_the_whole_schedule(
    iterations: int, warmup: int, milestones: list[int]
) -> None:
    whole = Config(tasks="S", optim=OptimConfig(iterations, warmup=warmup, milestones=tuple(milestones), decay=0.5))
    staged = replace(whole, tasks="S&R&T")
    factors = [lr_factor(staged, iteration) for iteration in range(iterations)]
    begin = 0
    for end in staged.stage_ends:
        length = end - begin
        scaled = [lr_factor(whole, math.floor(Fraction(step * iterations, length))) for step in range(length)]
        assert factors[begin:end] == scaled
        begin = end
    assert begin == iterations


@given(
    tasks=st.sampled_from(["S", "S&T", "S&R&T"]),
    iterations=st.integers(3, 90),
    milestones=st.lists(st.integers(1, 100), max_size=3, unique=True),
)
@settings(max_examples=100, deadline=None)
def test_changes_are_where_the_factor_changes_or_a_stage_begins(
    tasks: str, iterations: int, milestones: list[int]
) -> None:
    config = Config(tasks=tasks, optim=OptimConfig(iterations, milestones=tuple(milestones), decay=0.5))
    factors = [lr_factor(config, iteration) for iteration in range(iterations)]
    steps = {now for now in range(1, iterations) if factors[now] != factors[now - 1]}
    assert steps | set(config.stage_ends[:-1]) == {change for change in config.lr_changes if change < iterations}


def test_changes_of_one_stage_are_its_milestones() -> None:
    """Also those beyond the last iteration, which a branch may reach."""
    config = Config(tasks="S+T", optim=OptimConfig(iterations=10, milestones=(4, 12)))
    assert config.lr_changes == (4, 12)
    assert replace(config, tasks="S&T").lr_changes == (2, 5, 7, 11)


def test_steps_against_the_formulas() -> None:
    net = network()
    optimisers = Optimisers(net, CONFIG)
    expected = weights(net)
    memory: dict[str, Any] = dict.fromkeys(expected, (0.0, 0.0))
    for step in range(5):
        set_gradients(net, step, ["backbone", *TASKS])
        gradients = {name: weight.grad.double().numpy() for name, weight in net.named_parameters()}  # type: ignore[union-attr]
        optimisers.step(step)
        for name, value in expected.items():
            first, second = memory[name]
            if group_of(name) == "temporal":
                lr = 0.02 * slow_lr_factor(SCHEDULE, step)
                first = 0.8 * first + 0.2 * gradients[name]
                second = 0.999 * second + 0.001 * gradients[name] ** 2
                direction = first / (1 - 0.8 ** (step + 1))
                size = np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
                expected[name] = value - lr * 0.1 * value - lr * direction / size
            else:
                lr, momentum, decay = (0.1, 0.9, 0.01) if group_of(name) == "backbone" else (0.03, 0.5, 0.0)
                first = momentum * first + gradients[name] + decay * value
                expected[name] = value - lr * slow_lr_factor(SCHEDULE, step) * first
            memory[name] = (first, second)
        for name, value in weights(net).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_weight_is_in_exactly_one_group() -> None:
    net = network()
    optimisers = Optimisers(net, CONFIG).optimisers
    assert list(optimisers) == ["backbone", *TASKS]
    held = [id(w) for optimiser in optimisers.values() for group in optimiser.param_groups for w in group["params"]]
    assert len(held) == len(set(held)) and set(held) == {id(weight) for weight in net.parameters()}


@pytest.mark.parametrize("task", TASKS)
def test_a_head_without_gradient_stays_as_it_is(task: str) -> None:
    """Not even momentum or weight decay of earlier steps may move it: in S&T the heads take turns."""
    net = network()
    optimisers = Optimisers(net, CONFIG)
    set_gradients(net, 0, ["backbone", *TASKS])
    optimisers.step(0)
    before = weights(net)
    for step in (1, 2):
        optimisers.zero_grad()
        set_gradients(net, step, ["backbone", *(other for other in TASKS if other != task)])
        optimisers.step(step)
    for name, value in weights(net).items():
        assert np.array_equal(value, before[name]) == (group_of(name) == task), name


def test_zero_grad_forgets() -> None:
    net = network()
    set_gradients(net, 0, ["backbone", *TASKS])
    Optimisers(net, CONFIG).zero_grad()
    assert all(weight.grad is None for weight in net.parameters())


def test_the_state_resumes() -> None:
    straight, resumed = network(), network()
    one, other = Optimisers(straight, CONFIG), Optimisers(resumed, CONFIG)
    for step in range(2):
        for net, optimisers in ((straight, one), (resumed, other)):
            set_gradients(net, step, ["backbone", *TASKS])
            optimisers.step(step)
    fresh = Optimisers(resumed, CONFIG)
    fresh.load_state_dict(other.state_dict())
    for net, optimisers in ((straight, one), (resumed, fresh)):
        set_gradients(net, 2, ["backbone", *TASKS])
        optimisers.step(2)
    for name, value in weights(straight).items():
        np.testing.assert_array_equal(value, weights(resumed)[name])


def test_fused_sgd_begins_with_a_momentum_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would leave it uninitialised if its first step were skipped; a checkpoint may have none."""
    monkeypatch.setattr(optim, "are_fused", lambda parameters: True)
    net = network()
    empty = {name: optimiser.state_dict() for name, optimiser in Optimisers(net, CONFIG).optimisers.items()}
    for resumed in (False, True):
        optimisers = Optimisers(net, CONFIG)
        if resumed:
            optimisers.load_state_dict({name: {**state, "state": {}} for name, state in empty.items()})
        momenta = [optimisers.optimisers["backbone"].state[weight] for weight in net.backbone.parameters()]
        assert momenta and all(not state["momentum_buffer"].any() for state in momenta)
