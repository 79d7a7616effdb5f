import numpy as np
import pytest
import torch
from torch import Tensor

from unshuffle.config import HeadConfig
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.ordering import OrderingNetwork, trunk_features
from unshuffle.permutations import permutation_set
from unshuffle.policy import state
from unshuffle.policy.state import Validation, validate

CROP = {"tiny": 16, "caffenet": 75}
PARTS = {"spatial": 4, "temporal": 5}
COUNT = 9


def network(task: str, backbone: str = "tiny", kind: str = "concat", centre: bool = True) -> OrderingNetwork:
    torch.manual_seed(2)
    trunk = build_backbone(backbone)
    features = trunk_features(trunk, CROP[backbone])
    config = HeadConfig(kind, fc6=16, hidden=16, centre=centre)  # type: ignore[arg-type]
    head = build_head(features, PARTS[task], COUNT, config)
    with torch.no_grad():
        trunk.train()(crops("spatial", 4, backbone).flatten(0, 1))
        # so that the answers of an untrained network depend on what it sees, and it is sometimes right
        for name, weight in head.named_parameters():
            weight.mul_(0 if "fc8" in name and "bias" in name else 4)
    return OrderingNetwork(trunk, {task: head})


def crops(task: str, samples: int, backbone: str = "tiny") -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(samples, PARTS[task], 3, CROP[backbone], CROP[backbone], generator=generator)


def psi(task: str) -> Tensor:
    return torch.from_numpy(permutation_set(PARTS[task], COUNT))


@torch.no_grad()
def direct_misses(net: OrderingNetwork, task: str, parts: Tensor, permutations: Tensor) -> np.ndarray:
    """(|Ψ|,) by the long way: shuffle the crops of one sample, pass them through everything, look at the answer."""
    net.eval()
    misses = np.zeros(len(permutations), int)
    identity = torch.arange(parts.shape[1])[None, None]
    for label, permutation in enumerate(permutations.tolist()):
        for sample in parts:
            shuffled = torch.stack([sample[part] for part in permutation])[None]
            logits = net({task: shuffled}, {task: identity})[task]
            misses[label] += int(logits[0, 0].argmax()) != label
    return misses


@pytest.mark.parametrize(("backbone", "samples"), [("tiny", 24), ("caffenet", 4)])
@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("task", PARTS)
def test_equals_the_direct_route(task: str, kind: str, backbone: str, samples: int) -> None:
    net = network(task, backbone, kind)
    parts, permutations = crops(task, samples, backbone), psi(task)
    expected = direct_misses(net, task, parts, permutations)
    validation = validate(net, task, parts.split(10), permutations)
    assert validation.permutation_errors.shape == (COUNT,)
    np.testing.assert_array_equal((validation.permutation_errors * samples).round(), expected)
    np.testing.assert_allclose(validation.permutation_errors, expected / samples, atol=1e-6)
    assert validation.error == pytest.approx(expected.sum() / (samples * COUNT), abs=1e-6)
    assert len(set(expected.tolist())) > 1, "a test of something"


@pytest.mark.parametrize("rows", [1, 7, 24, 100])
@pytest.mark.parametrize("chunk", [1, 5, 24])
def test_chunks_do_not_matter(rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, parts = network("spatial"), crops("spatial", 24)
    whole = validate(net, "spatial", [parts], psi("spatial")).permutation_errors
    monkeypatch.setattr(state, "ROWS_AT_ONCE", rows)
    some = validate(net, "spatial", iter(parts.split(chunk)), psi("spatial")).permutation_errors
    assert torch.equal(some, whole)


def test_the_rows_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    net, seen = network("spatial"), []
    real = net.head("spatial").classify

    def classify(ordered: Tensor) -> Tensor:
        seen.append(len(ordered))
        return real(ordered)

    monkeypatch.setattr(net.head("spatial"), "classify", classify)
    monkeypatch.setattr(state, "ROWS_AT_ONCE", 20)
    validate(net, "spatial", [crops("spatial", 6)], psi("spatial"))
    assert max(seen) <= 20 and sum(seen) == 6 * COUNT


@pytest.mark.parametrize("training", [True, False])
def test_leaves_the_network_as_it_was(training: bool) -> None:
    net = network("spatial").train(training)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    validate(net, "spatial", [crops("spatial", 4)], psi("spatial"))
    assert all(module.training == training for module in net.modules())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in net.parameters())


def test_training_mode_does_not_change_the_answer() -> None:
    net = network("spatial")
    parts = crops("spatial", 12)
    errors = [validate(net.train(mode), "spatial", [parts], psi("spatial")) for mode in (True, False)]
    assert torch.equal(errors[0].permutation_errors, errors[1].permutation_errors)


def test_a_network_that_always_answers_the_same_is_at_chance() -> None:
    net = network("spatial")
    fc8 = net.head("spatial").get_submodule("fc8")
    with torch.no_grad():
        for weight in fc8.parameters():
            weight.zero_()
        fc8.get_parameter("bias")[3] = 1
    validation = validate(net, "spatial", [crops("spatial", 5)], psi("spatial"))
    assert validation.permutation_errors.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert validation.error == pytest.approx(validation.chance)


@pytest.mark.parametrize(("count", "chance"), [(2, 0.5), (10, 0.9), (1000, 0.999)])
def test_chance(count: int, chance: float) -> None:
    assert Validation(torch.zeros(count)).chance == pytest.approx(chance)


def test_error_is_the_mean() -> None:
    assert Validation(torch.tensor([0.0, 1.0, 0.5, 0.5])).error == 0.5
