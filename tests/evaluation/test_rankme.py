from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.evaluation import rankme
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.effective_rank import effective_rank
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.items import class_folders
from unshuffle.evaluation.rankme import RankMe

QUIET = Console(quiet=True)


def test_a_folder_without_labels(classes: tuple[Path, Path]) -> None:
    result = RankMe(weights="random:tiny", device="cpu", images=classes[0], workers=1, batch_size=7).run(QUIET)
    assert result.metrics["images"] == 24 and result.metrics["skipped"]["count"] == 1
    items = replace(class_folders(classes[0]), side=96)
    good = [at for at, item in enumerate(items.items) if item.path.name != "broken.jpg"]
    read = [torch.from_numpy(items.read(at)) for at in good]
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

    def broken_off(features: torch.Tensor) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rankme, "effective_rank", broken_off)
        replace(evaluation, out=tmp_path).run(QUIET)
    monkeypatch.setattr(rankme, "pool5", None)  # not called any more
    assert replace(evaluation, out=tmp_path).run(QUIET).metrics == whole.metrics
