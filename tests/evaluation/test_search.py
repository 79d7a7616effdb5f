from collections.abc import Callable

import numpy as np
import pytest
import torch

from unshuffle.evaluation import search as search_module
from unshuffle.evaluation.search import Search, nearest, top_k_accuracy

CPU = torch.device("cpu")
Cosine = Callable[[list[float], list[float]], float]
Nearest = Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]


@pytest.mark.parametrize("k", [1, 4, 15])
def test_nearest_against_loops(k: int, slow_nearest: Nearest) -> None:
    generator = torch.Generator().manual_seed(k)
    queries, gallery = torch.randn(9, 5, generator=generator), torch.randn(15, 5, generator=generator)
    gallery *= torch.rand(15, 1, generator=generator) * 10  # lengths must not matter
    assert nearest(queries, gallery, k).tolist() == slow_nearest(queries, gallery, k)


def test_more_queries_than_pass_at_once(slow_nearest: Nearest) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, gallery = torch.randn(2500, 3, generator=generator), torch.randn(7, 3, generator=generator)
    found = nearest(queries, gallery, 2)
    assert found.shape == (2500, 2)
    for row in (0, 1023, 1024, 2047, 2048, 2499):
        assert found[row].tolist() == slow_nearest(queries[row][None], gallery, 2)[0]


def test_every_vector_is_nearest_to_itself() -> None:
    vectors = torch.randn(20, 8)
    assert nearest(3 * vectors, vectors, 1).flatten().tolist() == list(range(20))


def test_top_k_against_loops() -> None:
    rng = np.random.default_rng(0)
    neighbours = np.stack([rng.permutation(30)[:12] for _ in range(40)])
    queries, gallery = rng.integers(0, 8, 40), rng.integers(0, 8, 30)
    scores = top_k_accuracy(*(torch.from_numpy(array) for array in (neighbours, queries, gallery)))
    expected = {}
    for k in (1, 5, 10):
        hits = sum(
            any(gallery[item] == query for item in row[:k]) for row, query in zip(neighbours, queries, strict=True)
        )
        expected[f"top{k}"] = pytest.approx(100 * hits / 40)
    assert scores == expected, "top20 needs twenty neighbours"
    assert 0 < scores["top1"] < scores["top5"] < scores["top10"] <= 100


@pytest.mark.parametrize("k", [1, 7, 60])
def test_a_gallery_in_pieces_gives_the_answers_of_brute_force(
    k: int, monkeypatch: pytest.MonkeyPatch, cosine: Cosine, slow_nearest: Nearest
) -> None:
    monkeypatch.setattr(search_module, "QUERIES", 5)
    monkeypatch.setattr(search_module, "GALLERY", 8)
    generator = torch.Generator().manual_seed(k)
    queries, gallery = torch.randn(13, 6, generator=generator), torch.randn(50, 6, generator=generator)
    search = Search(queries, k, CPU)
    for part in gallery.split([1, 20, 3, 26]):
        search.add(part)
    assert search.neighbours.tolist() == slow_nearest(queries, gallery, k)
    expected = [
        [cosine(q, gallery[i].tolist()) for i in row]
        for q, row in zip(queries.tolist(), search.neighbours, strict=True)
    ]
    assert search.similarities.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


def test_of_equal_vectors_the_first_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "GALLERY", 2)
    search = Search(torch.tensor([[1.0, 0.0]]), 2, CPU)
    search.add(torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4))
    assert search.neighbours.tolist() == [[0, 2]]


def test_an_empty_feature_is_similar_to_nothing() -> None:
    search = Search(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 3, CPU)
    search.add(torch.tensor([[0.0, 0.0], [-1.0, 0.1], [1.0, 0.1]]))
    assert search.similarities.isfinite().all()
    assert search.neighbours[1].tolist() == [2, 0, 1]
