from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle import cli
from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.neighbours import rows
from unshuffle.data.dataset import LabelledImages
from unshuffle.errors import UserError
from unshuffle.evaluation.retrieval import Neighbours, Retrieval
from unshuffle.models import build_backbone

Analyse = Callable[..., AnalysisResult]


@pytest.fixture
def sides(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    for side, count in (("train", 4), ("test", 2)):
        for name, colour in (("red", (220, 20, 20)), ("blue $x$", (20, 20, 220))):
            (tmp_path / side / name).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(-20, 20, (96, 96, 3))
                Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(
                    tmp_path / side / name / f"{number}.png"
                )
    return {side: tmp_path / side for side in ("train", "test")}


def test_rows_by_hand() -> None:
    pixels = np.zeros((4, 8, 8, 3), np.uint8)
    queries = LabelledImages(pixels[:2], torch.tensor([1, 0]), ("a", "b"), ("q0", "q1"))
    neighbours = LabelledImages(pixels, torch.tensor([1, 0, 0, 0]), ("a", "b"), ("f0", "f1", "f2", "f3"))
    lines = [tuple(row.values()) for row in rows({"m": Neighbours(queries, neighbours)})]
    assert lines == [
        ("q0", "b", "m", 1, "f0", "b"),
        ("q0", "b", "m", 2, "f1", "a"),
        ("q1", "a", "m", 1, "f2", "a"),
        ("q1", "a", "m", 2, "f3", "a"),
    ]


def test_each_model_is_a_retrieval(sides: dict[str, Path], analyse: Analyse) -> None:
    options = {**sides, "device": "cpu", "workers": 1}
    models = ("random:tiny", "random:resnet18")
    analysis = analyse("neighbours", weights=models, count=1, **options)
    assert [*analysis.metrics] == [*models]
    alone = Retrieval(weights="random:tiny", **options).run(Console(quiet=True))
    assert analysis.metrics["random:tiny"] == alone.metrics
    assert len(analysis.rows) == 2 * 5 and len({row["query"] for row in analysis.rows}) == 1
    assert [row["rank"] for row in analysis.rows] == [1, 2, 3, 4, 5] * 2
    assert len(analysis.figure().axes) == 1 + 2 * 5


def test_the_architecture_of_each_file(sides: dict[str, Path], analyse: Analyse, tmp_path: Path) -> None:
    torch.save({**build_backbone("tiny").state_dict(), "mine.weight": torch.zeros(2, 2)}, tmp_path / "w.pth")
    options = {**sides, "device": "cpu", "workers": 1, "count": 1}
    models = (str(tmp_path / "w.pth"), "random:tiny")
    analysis = analyse("neighbours", weights=models, architecture=("tiny", "auto"), **options)
    assert len(analysis.metrics) == 2
    with pytest.raises(UserError, match="one architecture for each of the 2 weights"):
        analyse("neighbours", weights=models, architecture=("tiny",), **options)


def test_the_command(sides: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = (str(path) for path in sides.values())
    line = [
        "neighbours",
        "random:tiny",
        "--train",
        train,
        "--test",
        test,
        "--out",
        str(tmp_path / "o"),
        "--device",
        "cpu",
    ]
    assert cli.run(["analyze", *line]) == 0
    assert "2 of 4 queries" in capsys.readouterr().out
    assert "blue $x$" in (tmp_path / "o" / "neighbours.svg").read_text()
    assert cli.run(["analyze", "neighbours", "random:tiny"]) == 2
    assert "there is nothing to retrieve" in capsys.readouterr().err
    assert cli.run(["analyze", *line, "--count", "0"]) == 2
