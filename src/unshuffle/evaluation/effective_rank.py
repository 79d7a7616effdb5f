"""RankMe (Garrido et al., ICML 2023): how many dimensions the features really use, without any label."""

import torch
from torch import Tensor

EPSILON = 1e-7


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the normalised singular values of (N, D) features; between 1 and min(N, D)."""
    # The singular values of a matrix are the roots of its smaller Gram matrix' eigenvalues, which are far cheaper.
    wide = features if len(features) <= features.shape[1] else features.T
    values = wide.double() if wide.device.type != "mps" else wide.cpu().double()
    singular = torch.linalg.eigvalsh(values @ values.T).clamp(min=0).sqrt()
    shares = singular / singular.sum().clamp(min=torch.finfo(singular.dtype).tiny) + EPSILON
    return float((-shares * shares.log()).sum().exp())
