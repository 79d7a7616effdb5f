import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from unshuffle.evaluation.logistic import Standardisation, choose_c, logistic_regression


@pytest.mark.parametrize("c", [0.1, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_scikit_learn(c: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 120)
    features = rng.normal(size=(120, 30)) + rng.normal(size=(4, 30))[labels]
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=5000).fit(features, labels)
    weight, bias = logistic_regression(
        torch.from_numpy(features).to(dtype),
        torch.from_numpy(labels),
        4,
        c=c,
        tolerance=1e-7 if dtype == torch.float32 else 1e-10,
    )
    asked = torch.from_numpy(rng.normal(size=(50, 30))).to(dtype)
    ours = (asked @ weight.T + bias).softmax(dim=1).double()
    assert np.abs(ours.numpy() - theirs.predict_proba(asked.double().numpy())).max() < 2e-3
    assert np.abs(weight.double().numpy() - theirs.coef_).max() < 5e-3


def test_standardisation() -> None:
    features = torch.randn(50, 16) * torch.arange(16) + 3  # the first dimension is constant
    standard = Standardisation(features)
    scaled = standard(features) * 4
    assert scaled.mean(dim=0).abs().max() < 1e-5
    assert torch.allclose(scaled[:, 1:].std(dim=0, correction=0), torch.ones(15), atol=1e-4)
    assert (standard(torch.full((2, 16), 1e9))[:, 0] == 0).all()


def test_the_penalty_is_chosen_by_images_that_were_held_back() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, generator=generator) < 0.3).long()
    noisy = torch.randn(200, 100, generator=generator)  # one dimension of a hundred tells something
    noisy[:, 0] += 2 * labels
    assert choose_c(noisy, labels, 2, torch.Generator().manual_seed(0)) == 1.0
    faint = 0.02 * labels[:, None] + 0.002 * torch.randn(200, 4, generator=generator)  # a penalty hides it
    assert choose_c(faint, labels, 2, torch.Generator().manual_seed(0)) > 1.0
