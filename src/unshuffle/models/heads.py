"""Heads on the backbone.

That of an ordering task has fc6 of each tile or frame (part), then a classifier of all parts into |Ψ| permutations;
that of instance discrimination projects each view.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import HeadConfig

OrderClassifier = Callable[[Tensor], Tensor]


class Head(nn.Module):
    """fc6 of each part, and a classifier of the permutation of the parts.

    The two steps are separate because fc6 does not depend on the permutation: `embed` runs once for a sample,
    `classify` once for each permutation of it.
    """

    def __init__(self, features: int, config: HeadConfig) -> None:
        super().__init__()
        self.centre = config.centre
        self.fc6 = nn.Sequential(nn.Linear(features, config.fc6), nn.ReLU(), nn.Dropout(config.dropout))

    def embed(self, features: Tensor) -> Tensor:
        """Return the (B, P, fc6) embeddings of (B, P, features) of the backbone."""
        fc6: Tensor = self.fc6(features)
        return centred(fc6) if self.centre else fc6

    def classify(self, ordered: Tensor) -> Tensor:
        """Return the (N, |Ψ|) logits φ of (N, P, fc6) embeddings in permuted order."""
        raise NotImplementedError

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """Return a function that maps permutations to (B, K, |Ψ|) logits as `classify` does, without dropout.

        `vectors` are each sample's (B, P, fc6) embeddings. The permutations are (K, P), the same for all samples, or
        (B, K, P). What they have in common is computed only once, which pays if K exceeds P.
        """
        raise NotImplementedError


def centred(vectors: Tensor) -> Tensor:
    """Subtract each sample's mean over the parts from its (B, P, D) vectors and divide by their root mean square.

    Without it, what the parts have in common outweighs what depends on their positions. Both operations are symmetric
    in the parts, so they cannot reveal the permutation.
    """
    # bf16 would lose most digits in the difference of nearly equal numbers
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    residual = vectors - vectors.mean(dim=1, keepdim=True)
    return residual * torch.rsqrt(residual.square().mean(dim=(1, 2), keepdim=True) + 1e-6)


class ConcatHead(Head):
    """A classifier of the concatenated fc6 embeddings: fc7, then fc8."""

    def __init__(self, features: int, parts: int, num_permutations: int, config: HeadConfig) -> None:
        super().__init__(features, config)
        self.fc7 = nn.Sequential(nn.Linear(parts * config.fc6, config.hidden), nn.ReLU(), nn.Dropout(config.dropout))
        self.fc8 = nn.Linear(config.hidden, num_permutations)

    def classify(self, ordered: Tensor) -> Tensor:
        """Return the logits of fc8."""
        logits: Tensor = self.fc8(self.fc7(ordered.flatten(1)))
        return logits

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """Return the logits by fc7 of ψ as Σ_t W_t · f_ψ(t): the permutations share the P · P products."""
        linear = self.fc7[0]
        assert isinstance(linear, nn.Linear)
        samples, parts, width = vectors.shape
        weight = linear.weight.view(-1, parts, width).permute(2, 1, 0).flatten(1)
        products = (vectors.flatten(0, 1) @ weight).view(samples * parts * parts, -1)  # sample, part, position
        sample = torch.arange(samples, device=vectors.device)[:, None, None] * parts
        position = torch.arange(parts, device=vectors.device)

        def classify(permutations: Tensor) -> Tensor:
            rows = (sample + permutations) * parts + position
            fc7 = F.embedding_bag(rows.flatten(0, 1), products, mode="sum") + linear.bias
            logits: Tensor = self.fc8(fc7.relu_()).view(samples, permutations.shape[-2], -1)
            return logits

        return classify


class LstmHead(Head):
    """An LSTM over the fc6 embeddings, and a classifier of its last state."""

    def __init__(self, features: int, num_permutations: int, config: HeadConfig) -> None:
        super().__init__(features, config)
        self.lstm = nn.LSTM(config.fc6, config.hidden, batch_first=True)
        self.dropout = nn.Dropout(config.dropout)
        self.fc8 = nn.Linear(config.hidden, num_permutations)

    def classify(self, ordered: Tensor) -> Tensor:
        """Return the logits of the state after the last part."""
        states, _ = self.lstm(ordered)
        logits: Tensor = self.fc8(self.dropout(states[:, -1]))
        return logits

    def order_classifier(self, vectors: Tensor) -> OrderClassifier:
        """Return the logits; the input term of the gates is shared, as it does not depend on a part's position."""
        weight_ih, weight_hh, bias_ih, bias_hh = self.lstm.all_weights[0]
        input_gates = F.linear(vectors, weight_ih, bias_ih + bias_hh)
        recurrent = weight_hh.T.to(input_gates)  # autocast converts no weights of operations in place
        sample = torch.arange(len(vectors), device=vectors.device)[:, None]

        def classify(permutations: Tensor) -> Tensor:
            count = permutations.shape[-2]
            hidden = cell = input_gates.new_zeros(len(vectors) * count, self.lstm.hidden_size)
            for part in permutations.unbind(dim=-1):
                gates = input_gates[sample, part].flatten(0, 1).addmm_(hidden, recurrent)
                input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
                cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
                hidden = output_gate.sigmoid() * cell.tanh()
            logits: Tensor = self.fc8(hidden).view(len(vectors), count, -1)
            return logits

        return classify


def build_head(features: int, parts: int, num_permutations: int, config: HeadConfig) -> Head:
    """Return the head that the config names."""
    if config.kind == "lstm":
        return LstmHead(features, num_permutations, config)
    return ConcatHead(features, parts, num_permutations, config)


def projection_head(features: int, hidden: int, output: int) -> nn.Sequential:
    """Return SimCLR's projection head: two linear layers, each with batch normalisation, and a ReLU between them."""
    return nn.Sequential(
        nn.Linear(features, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, output, bias=False),
        nn.BatchNorm1d(output),
    )
