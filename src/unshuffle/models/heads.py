"""The classifiers on top of the trunk: fc6 for each part, then all parts together, then one of |Ψ| permutations."""

import torch
from torch import Tensor, nn

from unshuffle.config import HeadConfig


class Head(nn.Module):
    """fc6 of each part, and a classifier of their order.

    The two steps are apart because fc6 does not depend on the order: `embed` runs once for a sample, `classify` once
    for each permutation of it.
    """

    def __init__(self, features: int, config: HeadConfig) -> None:
        super().__init__()
        self.centre = config.centre
        self.fc6 = nn.Sequential(nn.Linear(features, config.fc6), nn.ReLU(), nn.Dropout(config.dropout))

    def embed(self, features: Tensor) -> Tensor:
        """(B, P, features) of the trunk to (B, P, fc6)."""
        fc6: Tensor = self.fc6(features)
        return centred(fc6) if self.centre else fc6

    def classify(self, ordered: Tensor) -> Tensor:
        """(N, P, fc6) in the order to be recognised to (N, |Ψ|) logits φ."""
        raise NotImplementedError

    def classify_orders(self, vectors: Tensor, orders: Tensor) -> Tensor:
        """Logits (B, K, |Ψ|) of all K orders, (K, P), of each sample's (B, P, fc6) vectors; for validation."""
        ordered = vectors[:, orders]
        return self.classify(ordered.flatten(0, 1)).view(len(vectors), len(orders), -1)


def centred(vectors: Tensor) -> Tensor:
    """Take a sample's mean from its (B, P, D) vectors and divide by their rms.

    What the parts share drowns what tells their order; both operations are symmetric in the parts, so they cannot
    leak it.
    """
    # the difference of nearly equal numbers: in bf16 little would be left of it
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    rest = vectors - vectors.mean(dim=1, keepdim=True)
    return rest * torch.rsqrt(rest.square().mean(dim=(1, 2), keepdim=True) + 1e-6)


class ConcatHead(Head):
    """All fc6 vectors side by side into fc7."""

    def __init__(self, features: int, parts: int, num_permutations: int, config: HeadConfig) -> None:
        super().__init__(features, config)
        self.fc7 = nn.Sequential(nn.Linear(parts * config.fc6, config.hidden), nn.ReLU(), nn.Dropout(config.dropout))
        self.fc8 = nn.Linear(config.hidden, num_permutations)

    def classify(self, ordered: Tensor) -> Tensor:
        """Logits from fc7."""
        logits: Tensor = self.fc8(self.fc7(ordered.flatten(1)))
        return logits

    def classify_orders(self, vectors: Tensor, orders: Tensor) -> Tensor:
        """As the base class, with fc7 computed once for each part at each position instead of once for each order.

        fc7 of an order is Σ_t W_t · f_ψ(t): the P · P products are shared by all orders, which only add P of them up.
        """
        linear = self.fc7[0]
        assert isinstance(linear, nn.Linear)
        samples, parts, width = vectors.shape
        weight = linear.weight.view(-1, parts, width)
        fc7 = linear.bias.expand(samples, len(orders), -1).clone()
        for position in range(parts):
            products = vectors @ weight[:, position].T
            fc7 += products[:, orders[:, position]]
        logits: Tensor = self.fc8(fc7.relu_())
        return logits


class LstmHead(Head):
    """The fc6 vectors in turn into an LSTM, whose last state is classified."""

    def __init__(self, features: int, num_permutations: int, config: HeadConfig) -> None:
        super().__init__(features, config)
        self.lstm = nn.LSTM(config.fc6, config.hidden, batch_first=True)
        self.dropout = nn.Dropout(config.dropout)
        self.fc8 = nn.Linear(config.hidden, num_permutations)

    def classify(self, ordered: Tensor) -> Tensor:
        """Logits from the state after the last part."""
        states, _ = self.lstm(ordered)
        logits: Tensor = self.fc8(self.dropout(states[:, -1]))
        return logits


def build_head(features: int, parts: int, num_permutations: int, config: HeadConfig) -> Head:
    """The head that the config names."""
    if config.kind == "lstm":
        return LstmHead(features, num_permutations, config)
    return ConcatHead(features, parts, num_permutations, config)
