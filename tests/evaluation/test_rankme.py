from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from unshuffle.data.dataset import Square, open_dataset
from unshuffle.errors import UserError
from unshuffle.evaluation import rankme
from unshuffle.evaluation.features import find_backbone, pool5
from unshuffle.evaluation.rankme import RankMe, effective_rank


def reference(features: np.ndarray) -> float:
    singular = np.linalg.svd(features, compute_uv=False)
    fractions = singular / singular.sum() + 1e-7
    return float(np.exp(-(fractions * np.log(fractions)).sum()))


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


QUIET = Console(quiet=True)


def test_a_folder_without_labels(classes: tuple[Path, Path]) -> None:
    result = RankMe(weights="random:tiny", device="cpu", images=classes[0], workers=1, batch_size=7).run(QUIET)
    assert result.metrics["images"] == 24 and result.metrics["skipped"]["count"] == 1
    dataset = open_dataset(classes[0], square=Square(96))
    good = [index for index, path in enumerate(dataset.paths()) if path.name != "broken.jpg"]
    read = [torch.from_numpy(dataset.load(index)) for index in good]
    assert result.metrics["rankme"] == pytest.approx(
        effective_rank(pool5(find_backbone("random:tiny"), torch.cat(read), 96)), rel=1e-3
    )
    assert 1 < result.metrics["rankme"] < 24


def test_a_limit(classes: tuple[Path, Path]) -> None:
    few = RankMe(weights="random:tiny", device="cpu", images=classes[0] / "chess", workers=1, limit=5)
    assert few.run(QUIET).metrics["images"] == 5
    with pytest.raises(UserError, match="give --images"):
        RankMe(weights="random:tiny").run(QUIET)


def test_features_are_not_computed_again(
    classes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = RankMe(weights="random:tiny", device="cpu", images=classes[0], workers=1)
    whole = evaluation.run(QUIET)

    def interrupted(features: torch.Tensor) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rankme, "effective_rank", interrupted)
        replace(evaluation, out=tmp_path).run(QUIET)
    monkeypatch.setattr(rankme, "pool5", None)  # not called any more
    assert replace(evaluation, out=tmp_path).run(QUIET).metrics == whole.metrics
