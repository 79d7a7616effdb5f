import numpy as np
import pytest
import torch

from unshuffle.evaluation.effective_rank import effective_rank


def reference(features: np.ndarray) -> float:
    singular = np.linalg.svd(features, compute_uv=False)
    shares = singular / singular.sum() + 1e-7
    return float(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (1, 5), (20, 20)])
def test_against_numpys_svd(shape: tuple[int, int]) -> None:
    features = np.random.default_rng(0).normal(size=shape) * np.linspace(0.1, 3, shape[1])
    assert effective_rank(torch.from_numpy(features)) == pytest.approx(reference(features), rel=1e-6)
    single = features.astype(np.float32)
    assert effective_rank(torch.from_numpy(single)) == pytest.approx(reference(single), rel=1e-4)


def test_known_ranks() -> None:
    assert effective_rank(torch.eye(12)) == pytest.approx(12, rel=1e-4)
    line = torch.randn(40, 1) @ torch.randn(1, 25)
    assert effective_rank(line) == pytest.approx(1, abs=0.01)
    assert effective_rank(torch.zeros(4, 4)) == pytest.approx(1, abs=0.01), "collapsed"
