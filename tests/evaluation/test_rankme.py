from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.effective_rank import effective_rank
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.items import class_folders
from unshuffle.evaluation.rankme import RankMe

QUIET = Console(quiet=True)


def test_a_folder_without_labels(classes: tuple[Path, Path]) -> None:
    result = RankMe(weights="random:tiny", device="cpu", images=classes[0], workers=1, batch_size=7).run(QUIET)
    assert result.metrics["images"] == 24 and result.metrics["skipped"] == 1
    items = replace(class_folders(classes[0]), side=96)
    read = [torch.from_numpy(pixels) for i in range(len(items)) if (pixels := items.read_or_skip(i)) is not None]
    assert result.metrics["rankme"] == pytest.approx(
        effective_rank(pool5(find_backbone("random:tiny"), torch.cat(read), 96)), rel=1e-3
    )
    assert 1 < result.metrics["rankme"] < 24


def test_a_limit(classes: tuple[Path, Path]) -> None:
    few = RankMe(weights="random:tiny", device="cpu", images=classes[0] / "chess", workers=1, limit=5)
    assert few.run(QUIET).metrics["images"] == 5
    with pytest.raises(UserError, match="give --images"):
        RankMe(weights="random:tiny").run(QUIET)
