import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unshuffle.config import HeadConfig
from unshuffle.models.heads import ConcatHead, Head, LstmHead, build_head, centred

KINDS = ["concat", "lstm"]


def head(kind: str, **options) -> Head:
    torch.manual_seed(0)
    return build_head(7, 4, 5, HeadConfig(kind, fc6=6, hidden=8, **options)).eval()  # type: ignore[arg-type]


def test_centred_against_numpy() -> None:
    vectors = torch.randn(4, 5, 3) * 3 + 7
    centred_vectors = centred(vectors).numpy()
    for sample, actual in zip(vectors.double().numpy(), centred_vectors, strict=True):
        residual = sample - sample.mean(axis=0)
        np.testing.assert_allclose(actual, residual / np.sqrt((residual**2).mean()), atol=1e-4)
        assert (actual**2).mean() == pytest.approx(1, abs=1e-4)


def test_centred_removes_the_mean_and_the_scale() -> None:
    vectors = torch.randn(3, 5, 4)
    offset = torch.randn(3, 1, 4)
    scale = torch.tensor([0.5, 2.0, 30.0])[:, None, None]
    np.testing.assert_allclose(centred(scale * vectors + offset), centred(vectors), atol=1e-4)


def test_equal_parts_become_zeros() -> None:
    assert torch.equal(centred(torch.full((2, 4, 3), 0.5)), torch.zeros(2, 4, 3))


@given(st.integers(2, 9).flatmap(lambda parts: st.permutations(range(parts))))
@settings(max_examples=40, deadline=None)
def test_centred_is_symmetric_in_the_parts(psi: list[int]) -> None:
    vectors = torch.from_numpy(np.random.default_rng(len(psi)).normal(size=(2, len(psi), 3)))
    np.testing.assert_allclose(centred(vectors[:, psi]), centred(vectors)[:, psi], atol=1e-10)


def test_build_head_follows_the_config() -> None:
    assert isinstance(head("concat"), ConcatHead) and isinstance(head("lstm"), LstmHead)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_embed_is_fc6_of_each_part(kind: str, centre: bool) -> None:
    network = head(kind, centre=centre)
    features = torch.randn(3, 4, 7)
    linear = network.fc6[0]
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    expected = np.maximum(features.double().numpy() @ weight.T + bias, 0)
    if centre:
        expected -= expected.mean(axis=1, keepdims=True)
        expected /= np.sqrt((expected**2).mean(axis=(1, 2), keepdims=True) + 1e-6)
    np.testing.assert_allclose(network.embed(features).detach(), expected, atol=1e-5)


def test_concat_against_numpy() -> None:
    network = head("concat")
    assert isinstance(network, ConcatHead)
    ordered = torch.randn(3, 4, 6)
    weights = {key: value.double().numpy() for key, value in network.state_dict().items()}
    for row, actual in zip(ordered.double().numpy(), network.classify(ordered).detach(), strict=True):
        concatenated = np.concatenate(list(row))
        fc7 = np.maximum(weights["fc7.0.weight"] @ concatenated + weights["fc7.0.bias"], 0)
        np.testing.assert_allclose(actual, weights["fc8.weight"] @ fc7 + weights["fc8.bias"], atol=1e-5)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def test_lstm_against_numpy() -> None:
    network = head("lstm")
    assert isinstance(network, LstmHead)
    ordered = torch.randn(3, 4, 6)
    weights = {key: value.double().numpy() for key, value in network.state_dict().items()}
    for row, actual in zip(ordered.double().numpy(), network.classify(ordered).detach(), strict=True):
        hidden, cell = np.zeros(8), np.zeros(8)
        for part in row:
            gates = weights["lstm.weight_ih_l0"] @ part + weights["lstm.bias_ih_l0"]
            gates += weights["lstm.weight_hh_l0"] @ hidden + weights["lstm.bias_hh_l0"]
            input_gate, forget_gate, candidate, output_gate = np.split(gates, 4)
            cell = sigmoid(forget_gate) * cell + sigmoid(input_gate) * np.tanh(candidate)
            hidden = sigmoid(output_gate) * np.tanh(cell)
        np.testing.assert_allclose(actual, weights["fc8.weight"] @ hidden + weights["fc8.bias"], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_applies_in_training_only(kind: str) -> None:
    network = head(kind, dropout=0.5)
    features = torch.randn(3, 4, 7)

    def logits() -> torch.Tensor:
        return network.classify(network.embed(features)).detach()

    assert torch.equal(logits(), logits())
    network.train()
    assert not torch.equal(logits(), logits())
    without_dropout = head(kind).train()
    first, second = (without_dropout.classify(without_dropout.embed(features)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_depend_on_the_permutation(kind: str) -> None:
    network = head(kind)
    vectors = network.embed(torch.randn(3, 4, 7))
    assert not torch.allclose(network.classify(vectors), network.classify(vectors[:, [1, 0, 2, 3]]), atol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("parts", [4, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_all_permutations_at_once_equal_one_by_one(kind: str, parts: int, dropout: float) -> None:
    torch.manual_seed(0)
    config = HeadConfig(kind, fc6=6, hidden=8, dropout=dropout)  # type: ignore[arg-type]
    network = build_head(7, parts, 5, config).eval()
    vectors = torch.randn(3, parts, 6)
    permutations = torch.stack([torch.randperm(parts) for _ in range(11)])
    with torch.no_grad():
        logits = network.order_classifier(vectors)(permutations)
        assert logits.shape == (3, 11, 5)
        for index, permutation in enumerate(permutations):
            ordered = torch.stack([vectors[:, part] for part in permutation.tolist()], dim=1)
            torch.testing.assert_close(logits[:, index], network.classify(ordered), atol=1e-5, rtol=0)
    assert not torch.allclose(logits[:, 0], logits[:, 1], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_all_permutations_at_once_are_exact_in_float64(kind: str) -> None:
    network = head(kind).double()
    vectors = torch.randn(2, 4, 6, dtype=torch.float64)
    permutations = torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 0, 1]])
    expected = network.classify(vectors[:, permutations].flatten(0, 1)).view(2, 3, 5)
    torch.testing.assert_close(network.order_classifier(vectors)(permutations), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_other_permutations_for_each_sample_equal_one_by_one(kind: str) -> None:
    network = head(kind).double()
    vectors = torch.randn(3, 4, 6, dtype=torch.float64)
    permutations = torch.stack([torch.stack([torch.randperm(4) for _ in range(5)]) for _ in range(3)])
    logits = network.order_classifier(vectors)(permutations)
    assert logits.shape == (3, 5, 5)
    for sample, rows in enumerate(permutations.tolist()):
        for index, row in enumerate(rows):
            expected = network.classify(vectors[sample, row][None])[0]
            torch.testing.assert_close(logits[sample, index], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_order_classifier_under_autocast(kind: str) -> None:
    network = head(kind)
    vectors, permutations = torch.randn(2, 4, 6), torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]])
    expected = network.order_classifier(vectors)(permutations)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = network.order_classifier(vectors)(permutations)
    torch.testing.assert_close(logits.float(), expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_order_classifier_leaves_its_inputs_unchanged(kind: str) -> None:
    network = head(kind)
    vectors = torch.randn(2, 4, 6)
    vectors_before, weights_before = (
        vectors.clone(),
        {key: value.clone() for key, value in network.state_dict().items()},
    )
    classify = network.order_classifier(vectors)
    twice = [classify(torch.tensor([[3, 1, 0, 2], [2, 3, 0, 1]])) for _ in range(2)]
    assert torch.equal(*twice)
    assert torch.equal(vectors, vectors_before)
    assert all(torch.equal(value, weights_before[key]) for key, value in network.state_dict().items())
