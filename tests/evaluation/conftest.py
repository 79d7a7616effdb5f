"""Slow references of similarity search, and a check of what every evaluation measures."""

import math
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from unshuffle.ablation.ablation import HEADLINES
from unshuffle.analysis.analysis import flat_numbers
from unshuffle.evaluation.protocol import EVALUATIONS, Evaluation, Result


@pytest.fixture
def cosine() -> Callable[[list[float], list[float]], float]:
    """Cosine similarity by its definition."""

    def similarity(query: list[float], vector: list[float]) -> float:
        dot = sum(a * b for a, b in zip(query, vector, strict=True))
        return dot / math.sqrt(sum(a * a for a in query) * sum(b * b for b in vector))

    return similarity


@pytest.fixture
def slow_nearest(
    cosine: Callable[[list[float], list[float]], float],
) -> Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]:
    """The k most similar gallery vectors of each query, by sorting them all."""

    def nearest(queries: torch.Tensor, gallery: torch.Tensor, k: int) -> list[list[int]]:
        return [
            sorted(range(len(gallery)), key=lambda item: -cosine(query, gallery[item].tolist()))[:k]
            for query in queries.tolist()
        ]

    return nearest


@pytest.fixture(autouse=True)
def cache_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the states of interrupted evaluations out of the user's cache."""
    monkeypatch.setattr("unshuffle.data.dataset.CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def headlines_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every evaluation that runs here has a metric that the ablation makes a column of."""
    names = {entry.name: name for name, entry in EVALUATIONS.items()}
    evaluate = Evaluation.run

    def run(self: Evaluation, console: Console) -> Result:
        result = evaluate(self, console)
        measured = flat_numbers(result.metrics)
        assert any(name in measured for name in HEADLINES[names[type(self).__name__]]), list(measured)
        return result

    monkeypatch.setattr(Evaluation, "run", run)
