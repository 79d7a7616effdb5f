"""Logistic regression by L-BFGS, the objective of scikit-learn's, on any device."""

import torch
from torch import Tensor
from torch.nn import functional as F


def logistic_regression(
    features: Tensor, labels: Tensor, classes: int, *, c: float = 1.0, iterations: int = 500, tolerance: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Weights (classes, D) and biases of the least C · Σ cross-entropy + ½ ‖weights‖²; biases are not penalised."""
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=10,
        tolerance_grad=tolerance / len(features),
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        # Divided by C · N, so that the tolerance means the same for any number of images.
        loss = F.cross_entropy(features @ weight.T + bias, labels) + weight.square().sum() / (2 * c * len(features))
        loss.backward()
        return loss

    optimiser.step(objective)  # type: ignore[arg-type]
    return weight.detach(), bias.detach()


class Standardisation:
    """Each dimension to mean 0 and deviation 1, then all to vectors of length 1 or so."""

    def __init__(self, features: Tensor) -> None:
        deviation, self.mean = torch.std_mean(features, dim=0, correction=0)
        # A dimension that is constant in training says nothing; a tiny deviation would blow it up in the test.
        self.scale = torch.where(deviation > 1e-6, 1 / deviation, 0) / features.shape[1] ** 0.5

    def __call__(self, features: Tensor) -> Tensor:
        """Apply it."""
        standard: Tensor = (features - self.mean) * self.scale
        return standard
