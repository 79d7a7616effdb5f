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
    ours = centred(vectors).numpy()
    for sample, mine in zip(vectors.double().numpy(), ours, strict=True):
        rest = sample - sample.mean(axis=0)
        np.testing.assert_allclose(mine, rest / np.sqrt((rest**2).mean()), atol=1e-4)
        assert (mine**2).mean() == pytest.approx(1, abs=1e-4)


def test_centred_takes_away_what_the_parts_share_and_their_scale() -> None:
    vectors = torch.randn(3, 5, 4)
    shared = torch.randn(3, 1, 4)
    scale = torch.tensor([0.5, 2.0, 30.0])[:, None, None]
    np.testing.assert_allclose(centred(scale * vectors + shared), centred(vectors), atol=1e-4)


def test_equal_parts_become_zeros() -> None:
    assert torch.equal(centred(torch.full((2, 4, 3), 0.5)), torch.zeros(2, 4, 3))


@given(st.integers(2, 9).flatmap(lambda parts: st.permutations(range(parts))))
@settings(max_examples=40, deadline=None)
def test_centred_is_symmetric_in_the_parts(psi: list[int]) -> None:
    vectors = torch.from_numpy(np.random.default_rng(len(psi)).normal(size=(2, len(psi), 3)))
    np.testing.assert_allclose(centred(vectors[:, psi]), centred(vectors)[:, psi], atol=1e-10)


def test_kinds() -> None:
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
    for row, mine in zip(ordered.double().numpy(), network.classify(ordered).detach(), strict=True):
        side_by_side = np.concatenate(list(row))
        fc7 = np.maximum(weights["fc7.0.weight"] @ side_by_side + weights["fc7.0.bias"], 0)
        np.testing.assert_allclose(mine, weights["fc8.weight"] @ fc7 + weights["fc8.bias"], atol=1e-5)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def test_lstm_against_numpy() -> None:
    network = head("lstm")
    assert isinstance(network, LstmHead)
    ordered = torch.randn(3, 4, 6)
    weights = {key: value.double().numpy() for key, value in network.state_dict().items()}
    for row, mine in zip(ordered.double().numpy(), network.classify(ordered).detach(), strict=True):
        hidden, cell = np.zeros(8), np.zeros(8)
        for part in row:
            gates = weights["lstm.weight_ih_l0"] @ part + weights["lstm.bias_ih_l0"]
            gates += weights["lstm.weight_hh_l0"] @ hidden + weights["lstm.bias_hh_l0"]
            enter, forget, candidate, leave = np.split(gates, 4)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
            hidden = sigmoid(leave) * np.tanh(cell)
        np.testing.assert_allclose(mine, weights["fc8.weight"] @ hidden + weights["fc8.bias"], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_only_in_training(kind: str) -> None:
    network = head(kind, dropout=0.5)
    features = torch.randn(3, 4, 7)

    def logits() -> torch.Tensor:
        return network.classify(network.embed(features)).detach()

    assert torch.equal(logits(), logits())
    network.train()
    assert not torch.equal(logits(), logits())
    undropped = head(kind).train()
    first, again = (undropped.classify(undropped.embed(features)) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_matters_to_the_logits(kind: str) -> None:
    network = head(kind)
    vectors = network.embed(torch.randn(3, 4, 7))
    assert not torch.allclose(network.classify(vectors), network.classify(vectors[:, [1, 0, 2, 3]]), atol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("parts", [4, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_all_orders_at_once_are_the_same_as_one_by_one(kind: str, parts: int, dropout: float) -> None:
    torch.manual_seed(0)
    config = HeadConfig(kind, fc6=6, hidden=8, dropout=dropout)  # type: ignore[arg-type]
    network = build_head(7, parts, 5, config).eval()
    vectors = torch.randn(3, parts, 6)
    orders = torch.stack([torch.randperm(parts) for _ in range(11)])
    with torch.no_grad():
        logits = network.order_classifier(vectors)(orders)
        assert logits.shape == (3, 11, 5)
        for index, order in enumerate(orders):
            ordered = torch.stack([vectors[:, part] for part in order.tolist()], dim=1)
            torch.testing.assert_close(logits[:, index], network.classify(ordered), atol=1e-5, rtol=0)
    assert not torch.allclose(logits[:, 0], logits[:, 1], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_all_orders_at_once_in_float64_are_exact(kind: str) -> None:
    network = head(kind).double()
    vectors = torch.randn(2, 4, 6, dtype=torch.float64)
    orders = torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 0, 1]])
    expected = network.classify(vectors[:, orders].flatten(0, 1)).view(2, 3, 5)
    torch.testing.assert_close(network.order_classifier(vectors)(orders), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_orders_at_once_change_nothing(kind: str) -> None:
    network = head(kind)
    vectors = torch.randn(2, 4, 6)
    kept = vectors.clone(), {key: value.clone() for key, value in network.state_dict().items()}
    classify = network.order_classifier(vectors)
    twice = [classify(torch.tensor([[3, 1, 0, 2], [2, 3, 0, 1]])) for _ in range(2)]
    assert torch.equal(*twice)
    assert torch.equal(vectors, kept[0])
    assert all(torch.equal(value, kept[1][key]) for key, value in network.state_dict().items())
