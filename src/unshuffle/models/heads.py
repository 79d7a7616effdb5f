"""The classifiers on top of the backbone: fc6 for each part, then all parts together, then one of |Ψ| permutations."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import HeadConfig

OrderClassifier = Callable[[Tensor], Tensor]


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
        """(B, P, features) of the backbone to (B, P, fc6)."""
        fc6: Tensor = self.fc6(features)
        return centred(fc6) if self.centre else fc6

    def classify(self, ordered: Tensor) -> Tensor:
        """(N, P, fc6) in the order to be recognised to (N, |Ψ|) logits φ."""
        raise NotImplementedError

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """Given each sample's (B, P, fc6) vectors, what turns K orders, (K, P), into logits (B, K, |Ψ|), to validate.

        Heads override it to do once what all orders share.
        """

        def classify(orders: Tensor) -> Tensor:
            ordered = vectors[:, orders]
            return self.classify(ordered.flatten(0, 1)).view(len(vectors), len(orders), -1)

        return classify


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

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """As the base class: fc7 of an order is Σ_t W_t · f_ψ(t), so the P · P products are shared by all orders."""
        linear = self.fc7[0]
        assert isinstance(linear, nn.Linear)
        samples, parts, width = vectors.shape
        weight = linear.weight.view(-1, parts, width).permute(2, 1, 0).flatten(1)
        products = (vectors.flatten(0, 1) @ weight).view(samples * parts * parts, -1)  # sample, part, position
        sample = torch.arange(samples, device=vectors.device)[:, None, None] * parts
        position = torch.arange(parts, device=vectors.device)

        def classify(orders: Tensor) -> Tensor:
            rows = (sample + orders) * parts + position
            fc7 = F.embedding_bag(rows.flatten(0, 1), products, mode="sum") + linear.bias
            logits: Tensor = self.fc8(fc7.relu_()).view(samples, len(orders), -1)
            return logits

        return classify


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

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """As the base class: what the gates take from a part does not depend on when it comes."""
        into, again, into_bias, again_bias = self.lstm.all_weights[0]
        from_parts = F.linear(vectors, into, into_bias + again_bias)

        def classify(orders: Tensor) -> Tensor:
            state = cell = from_parts.new_zeros(len(vectors) * len(orders), self.lstm.hidden_size)
            for part in orders.T:
                gates = from_parts[:, part].flatten(0, 1).addmm_(state, again.T)
                enter, forget, new, leave = gates.chunk(4, dim=1)
                cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
                state = leave.sigmoid() * cell.tanh()
            logits: Tensor = self.fc8(state).view(len(vectors), len(orders), -1)
            return logits

        return classify


def build_head(features: int, parts: int, num_permutations: int, config: HeadConfig) -> Head:
    """The head that the config names."""
    if config.kind == "lstm":
        return LstmHead(features, num_permutations, config)
    return ConcatHead(features, parts, num_permutations, config)
