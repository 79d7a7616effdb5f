from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unshuffle.config import HeadConfig
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.heads import Head, OrderClassifier, build_head
from unshuffle.models.registry import backbone_features
from unshuffle.permutations import permutation_set
from unshuffle.policy import state
from unshuffle.policy.state import PermutationValidation, merge_validations, softmax_ratios, validate

PARTS = {"spatial": 4, "temporal": 5}
COUNT = 9


def crop_size(architecture: str) -> int:
    return 75 if architecture in ("caffenet", "caffenet-lrn", "alexnet") else 16


class HeadOnBackbone(nn.Module):
    """A backbone under the head of one task, in evaluation mode."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.eval()

    def embed(self, parts: Tensor) -> Tensor:
        """The (B, P, fc6) embeddings of (B, P, 3, S, S) crops."""
        return self.head.embed(self.backbone(parts.flatten(0, 1)).flatten(1).unflatten(0, parts.shape[:2]))

    @torch.no_grad()
    def validate(self, chunks: Iterable[Tensor], permutations: Tensor) -> PermutationValidation:
        return validate(self.head, (self.embed(parts) for parts in chunks), permutations)


def network(task: str, architecture: str = "tiny", kind: str = "concat", centre: bool = True) -> HeadOnBackbone:
    torch.manual_seed(2)
    backbone = build_backbone(architecture)
    features = backbone_features(backbone, crop_size(architecture))
    config = HeadConfig(kind, fc6=16, hidden=16, centre=centre)  # type: ignore[arg-type]
    head = build_head(features, PARTS[task], COUNT, config)
    with torch.no_grad():
        backbone.train()(crops("spatial", 4, architecture).flatten(0, 1))
        # so that the answers of an untrained network depend on its input and are sometimes right
        for name, weight in head.named_parameters():
            weight.mul_(0 if "fc8" in name and "bias" in name else 4)
    return HeadOnBackbone(backbone, head)


def crops(task: str, samples: int, architecture: str = "tiny") -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(samples, PARTS[task], 3, crop_size(architecture), crop_size(architecture), generator=generator)


def psi(task: str) -> Tensor:
    return torch.from_numpy(permutation_set(PARTS[task], COUNT))


def slow_ratio(logits: Iterable[float], label: int) -> float:
    """Eq. 3 to the letter, in float64: p is the second of the sorted, or the first where that is not l."""
    powers = np.exp(np.array(logits) - np.max(logits))
    probabilities = powers / powers.sum()
    ranked = sorted(range(len(powers)), key=lambda index: -probabilities[index])
    runner_up = ranked[1] if ranked[0] == label else ranked[0]
    return float((probabilities[label] + 1) / (probabilities[runner_up] + 1))


@torch.no_grad()
def direct_route(net: HeadOnBackbone, parts: Tensor, permutations: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Ratios (|Ψ|, B) and misses (|Ψ|,) by the long way: shuffle the crops of one sample, pass them through all."""
    ratios = np.zeros((len(permutations), len(parts)))
    misses = np.zeros(len(permutations), int)
    for label, permutation in enumerate(permutations.tolist()):
        for index, sample in enumerate(parts):
            shuffled = torch.stack([sample[part] for part in permutation])[None]
            logits = net.head.classify(net.embed(shuffled))[0]
            ratios[label, index] = slow_ratio(logits.double().tolist(), label)
            misses[label] += int(logits.argmax()) != label
    return ratios, misses


@pytest.mark.parametrize("architecture", sorted(BACKBONES))
@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("task", PARTS)
def test_validation_equals_the_direct_route(task: str, kind: str, architecture: str) -> None:
    samples = 24 if architecture == "tiny" else 2
    net = network(task, architecture, kind)
    parts, permutations = crops(task, samples, architecture), psi(task)
    ratios, misses = direct_route(net, parts, permutations)
    validation = net.validate(parts.split(10), permutations)
    assert validation.state.shape == (COUNT, samples) and validation.permutation_errors.shape == (COUNT,)
    np.testing.assert_allclose(validation.state, ratios, atol=1e-5)
    np.testing.assert_array_equal((validation.permutation_errors * samples).round(), misses)
    assert round(validation.error * samples * COUNT) == misses.sum()
    assert validation.error == pytest.approx(misses.sum() / (samples * COUNT), abs=1e-12)
    np.testing.assert_array_equal((validation.state <= 1).sum(dim=1), misses)
    np.testing.assert_allclose(validation.sample_errors, (ratios <= 1).mean(axis=0), atol=1e-12)
    assert float(validation.sample_errors.mean()) == pytest.approx(validation.error, abs=1e-12)
    assert np.ptp(ratios) > 0.1, "a test of something"
    assert architecture != "tiny" or len(set(misses.tolist())) > 1


def test_nothing_is_recognised_where_the_ratios_are_nan() -> None:
    """As the hits of `permutation_errors` have it: a rollout that diverged must not look perfect."""
    state = torch.full((COUNT, 3), 2.0)
    state[:, 1] = torch.nan
    assert PermutationValidation(state, torch.zeros(COUNT)).sample_errors.tolist() == [0, 1, 0]


@pytest.mark.parametrize("scale", [0.1, 1, 10])
def test_ratios_against_a_slow_reference(scale: float) -> None:
    logits = scale * torch.randn(6, 7, 9, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 8, 3, 3, 5, 2, 7])
    ratios = softmax_ratios(logits, labels)
    assert ratios.shape == (6, 7)
    expected = [
        [slow_ratio(row.tolist(), int(label)) for row, label in zip(sample, labels, strict=True)] for sample in logits
    ]
    np.testing.assert_allclose(ratios, expected, atol=1e-6)


def test_ratios_with_different_labels_for_each_sample() -> None:
    source = torch.Generator().manual_seed(1)
    logits, labels = 3 * torch.randn(6, 7, 9, generator=source), torch.randint(9, (6, 7), generator=source)
    ratios = softmax_ratios(logits, labels)
    for sample in range(6):
        for place in range(7):
            expected = slow_ratio(logits[sample, place].tolist(), int(labels[sample, place]))
            assert float(ratios[sample, place]) == pytest.approx(expected, abs=1e-6)
    assert len(labels.unique(dim=0)) == 6, "a test of something"


@given(st.lists(st.integers(-40, 40), min_size=2, max_size=8, unique=True), st.data())
@settings(max_examples=60, deadline=None)
def test_a_ratio_is_bounded_and_above_one_where_recognised(values: list[int], data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(values) - 1))
    logits = torch.tensor(values, dtype=torch.float64) / 4
    ratio = float(softmax_ratios(logits[None, None], torch.tensor([label])))
    assert 0.5 <= ratio <= 2
    assert (ratio > 1) == (label == int(logits.argmax()))
    assert ratio == pytest.approx(slow_ratio(logits.tolist(), label), abs=1e-12)


@pytest.mark.parametrize(("logits", "ratio"), [([200, 0, 0], 2), ([0, 200, 0], 0.5), ([5, 5, 5], 1), ([3, 3, -200], 1)])
def test_extreme_ratios(logits: list[float], ratio: float) -> None:
    assert float(softmax_ratios(torch.tensor([[logits]], dtype=torch.float32), torch.tensor([0]))) == ratio


@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("pairs", [1, 7, 24, 100])
@pytest.mark.parametrize("chunk", [1, 5, 24])
def test_chunks_do_not_change_the_result(kind: str, pairs: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, parts = network("spatial", kind=kind), crops("spatial", 24)
    whole = net.validate([parts], psi("spatial"))
    monkeypatch.setattr(state, "PAIRS_AT_ONCE", {"cpu": pairs})
    chunked = net.validate(iter(parts.split(chunk)), psi("spatial"))
    torch.testing.assert_close(chunked.state, whole.state, atol=1e-6, rtol=0)
    assert torch.equal(chunked.permutation_errors, whole.permutation_errors)


@pytest.mark.parametrize("kind", ["concat", "lstm"])
def test_the_number_of_pairs_at_once_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, calls = network("spatial", kind=kind), []
    real = net.head.order_classifier

    def order_classifier(features: Tensor) -> OrderClassifier:
        classify = real(features)

        def counted(permutations: Tensor) -> Tensor:
            calls.append(len(features) * len(permutations))
            return classify(permutations)

        return counted

    monkeypatch.setattr(net.head, "order_classifier", order_classifier)
    monkeypatch.setattr(state, "PAIRS_AT_ONCE", {"cpu": 20})
    net.validate([crops("spatial", 6)], psi("spatial"))
    assert max(calls) <= 20 and sum(calls) == 6 * COUNT


class Sizes(TorchDispatchMode):
    """Records the size of the largest result; meta tensors are not copied."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._to_copy.default and args[0].is_meta:
            return args[0]
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, list | tuple) else [results]:
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
        return results


def test_a_thousand_permutations_of_a_thousand_samples_fit_into_memory() -> None:
    # meta tensors: 10⁹ logits would take a while
    with torch.device("meta"), Sizes() as results:
        head = build_head(1, 9, 1000, HeadConfig("concat", fc6=16, hidden=2000))
        permutations = torch.zeros(1000, 9, dtype=torch.int64)
        validation = validate(head.eval(), (torch.zeros(200, 9, 16) for _ in range(5)), permutations)
    assert validation.state.shape == (1000, 1000) and validation.permutation_errors.shape == (1000,)
    assert 10**6 <= results.largest <= state.PAIRS_AT_ONCE["cpu"] * 2000, "of 10⁹ logits"


def test_a_network_that_always_answers_the_same_is_at_chance() -> None:
    net = network("spatial")
    fc8 = net.head.get_submodule("fc8")
    with torch.no_grad():
        for weight in fc8.parameters():
            weight.zero_()
        fc8.get_parameter("bias")[3] = 1
    validation = net.validate([crops("spatial", 5)], psi("spatial"))
    assert validation.permutation_errors.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert validation.error == pytest.approx(validation.chance)
    assert ((validation.state > 1).sum(dim=1) == torch.tensor([0, 0, 0, 5, 0, 0, 0, 0, 0])).all()


@pytest.mark.parametrize(("count", "chance"), [(2, 0.5), (10, 0.9), (1000, 0.999)])
def test_chance(count: int, chance: float) -> None:
    assert PermutationValidation(torch.ones(count, 3), torch.zeros(count)).chance == pytest.approx(chance)


def test_error_is_the_mean() -> None:
    assert PermutationValidation(torch.ones(4, 2), torch.tensor([0.0, 1.0, 0.5, 0.5])).error == 0.5


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 2, 3)])
def test_validations_of_slices_are_merged_into_that_of_the_whole(sizes: tuple[int, ...]) -> None:
    net, parts = network("spatial"), crops("spatial", 7)
    whole = net.validate([parts], psi("spatial"))
    slices = parts.split(sizes)  # type: ignore[no-untyped-call]
    merged = merge_validations([net.validate([part], psi("spatial")) for part in slices])
    torch.testing.assert_close(merged.state, whole.state)
    assert torch.equal(merged.permutation_errors, whole.permutation_errors)
