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
from unshuffle.policy.state import ErrorHistory, PermutationValidation, merge_validations, softmax_ratios, validate

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


# the reward (appendix E)


def reward(points: list[tuple[int, float]]) -> float | None:
    """The reward of the last error."""
    history = ErrorHistory()
    for iteration, error in points[:-1]:
        history.add(iteration, error)
    iteration, error = points[-1]
    baseline = history.baseline(iteration)
    return None if baseline is None else baseline - error


spacings = st.lists(st.integers(1, 10_000), min_size=3, max_size=6)


@given(st.integers(0, 10**6), spacings, st.floats(-1, 1), st.floats(-1e-3, 1e-3))
@settings(max_examples=100, deadline=None)
def test_no_reward_on_a_straight_line(begin: int, steps: list[int], intercept: float, slope: float) -> None:
    iterations = begin + np.cumsum(steps)
    points = [(int(u), intercept + slope * int(u)) for u in iterations]
    assert reward(points) == pytest.approx(0, abs=1e-8)


@given(spacings, st.floats(0.1, 1), st.floats(-1e-4, 0), st.floats(1e-3, 0.1))
@settings(max_examples=50, deadline=None)
def test_a_faster_fall_is_rewarded(steps: list[int], intercept: float, slope: float, more: float) -> None:
    points = [(int(u), intercept + slope * int(u)) for u in np.cumsum(steps)]
    (last, error), before = points[-1], points[:-1]
    assert reward([*before, (last, error - more)]) == pytest.approx(more, abs=1e-6)
    assert reward([*before, (last, error + more)]) == pytest.approx(-more, abs=1e-6)


def test_equal_steps_give_the_papers_formula() -> None:
    history = ErrorHistory()
    history.add(100, 0.9)
    history.add(200, 0.8)
    assert history.baseline(300) == pytest.approx(2 * 0.8 - 0.9)
    assert history.baseline(210) == pytest.approx(0.79), "a tenth of the way, a tenth of the fall"


def test_no_baseline_before_two_errors() -> None:
    history = ErrorHistory()
    assert history.baseline(10) is None
    history.add(0, 0.9)
    assert history.baseline(10) is None
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)


def test_a_drop_of_the_learning_rate_starts_a_new_line() -> None:
    """The error at the milestone itself belongs to the higher learning rate."""
    history = ErrorHistory(milestones=[20])
    history.add(0, 0.9)
    history.add(10, 0.8)
    assert history.baseline(20) == pytest.approx(0.7)
    assert history.baseline(21) is None
    history.add(20, 0.3)
    assert history.baseline(30) is None
    history.add(30, 0.2)
    assert history.baseline(40) is None
    history.add(40, 0.15)
    assert history.baseline(50) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("earlier", "later", "same"), [(0, 19, True), (0, 20, True), (19, 21, False), (20, 21, False), (21, 90, True)]
)
def test_which_iterations_are_comparable(earlier: int, later: int, same: bool) -> None:
    assert ErrorHistory([20]).comparable(earlier, later) == same
    assert ErrorHistory().comparable(earlier, later)


def test_only_the_last_two_errors_count() -> None:
    assert reward([(0, 0.1), (5, 0.2), (10, 0.9), (20, 0.8), (30, 0.7)]) == pytest.approx(0)


def test_two_errors_at_one_iteration_are_one() -> None:
    history = ErrorHistory()
    for iteration, error in [(0, 0.9), (10, 0.5), (10, 0.8)]:
        history.add(iteration, error)
    assert history.baseline(20) == pytest.approx(0.7)
    history = ErrorHistory()
    history.add(10, 0.5)
    history.add(10, 0.5)
    assert history.baseline(20) is None
