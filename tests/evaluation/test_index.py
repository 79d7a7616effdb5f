import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from rich.console import Console

import unshuffle
from unshuffle.data.dataset import LabelledDataset, synthetic_dataset
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation import index
from unshuffle.evaluation.features import preprocess
from unshuffle.evaluation.index import FEW, Index, Search, Shortlist, build_index, nearest
from unshuffle.models import Backbone, build_backbone

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


@pytest.mark.parametrize("k", [1, 7, 60])
def test_a_gallery_in_pieces_gives_the_answers_of_brute_force(
    k: int, monkeypatch: pytest.MonkeyPatch, cosine: Cosine, slow_nearest: Nearest
) -> None:
    monkeypatch.setattr(index, "QUERIES", 5)
    monkeypatch.setattr(index, "GALLERY", 8)
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
    monkeypatch.setattr(index, "GALLERY", 2)
    search = Search(torch.tensor([[1.0, 0.0]]), 2, CPU)
    search.add(torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4))
    assert search.neighbours.tolist() == [[0, 2]]


def test_an_empty_feature_is_similar_to_nothing() -> None:
    search = Search(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 3, CPU)
    search.add(torch.tensor([[0.0, 0.0], [-1.0, 0.1], [1.0, 0.1]]))
    assert search.similarities.isfinite().all()
    assert search.neighbours[1].tolist() == [2, 0, 1]


# ---- features of a dataset


def index_of(features: torch.Tensor) -> Index:
    """An index of given features; the items themselves are of no importance."""
    dataset = synthetic_dataset(synthetic_images(len(features), 16, 0))
    return Index(features, dataset, build_backbone("tiny"), "random:tiny", "avg")


def centred(features: torch.Tensor) -> torch.Tensor:
    return features - features.mean(dim=0) * len(features) / (len(features) + FEW)


@pytest.mark.parametrize("k", [1, 4, 12, 30])
def test_the_neighbours_of_an_item_are_the_nearest_others(k: int, slow_nearest: Nearest) -> None:
    features = torch.randn(20, 6, generator=torch.Generator().manual_seed(k)) + 3
    index = index_of(features)
    vectors, near = centred(features), index.neighbours(k)
    for item, row in enumerate(slow_nearest(vectors, vectors, 20)):
        assert near.items[item].tolist() == [other for other in row if other != item][:k]
    expected = torch.cosine_similarity(vectors[:, None], vectors[near.items], dim=2)
    torch.testing.assert_close(near.similarities, expected)


def test_an_item_is_not_its_own_neighbour_among_many_equals() -> None:
    index = index_of(torch.cat([torch.ones(15, 3), torch.eye(3)]))
    items = index.neighbours(10).items
    assert items.shape == (18, 10) and all(item not in row for item, row in enumerate(items.tolist()))
    assert all(len(set(row)) == 10 for row in items.tolist())


def test_search_finds_the_item_itself() -> None:
    features = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)) + 5
    index = index_of(features)
    found = index.search(features[[4, 9]], k=3)
    assert found.items[:, 0].tolist() == [4, 9]
    torch.testing.assert_close(found.similarities[:, 0], torch.ones(2))


def test_search_against_brute_force(slow_nearest: Nearest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.evaluation.index.BLOCK", 3)
    generator = torch.Generator().manual_seed(0)
    features, queries = torch.rand(40, 6, generator=generator) + 2, torch.rand(7, 6, generator=generator) + 2
    shift = features.mean(dim=0) * len(features) / (len(features) + FEW)
    found = index_of(features).search(queries, k=5)
    assert found.items.tolist() == slow_nearest(queries - shift, features - shift, 5)
    expected = torch.cosine_similarity((queries - shift)[:, None], (features - shift)[found.items], dim=2)
    torch.testing.assert_close(found.similarities, expected)


def test_a_shortlist_is_rescored_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXACT_VALUES": 0, "SHORTLIST": 60, "CODE": 8, "CODE_SAMPLE": 100}.items():
        monkeypatch.setattr(f"unshuffle.evaluation.index.{name}", value)
    generator = torch.Generator().manual_seed(0)
    # most of what distinguishes the items is in a few directions, as in features of images
    features = torch.randn(1000, 12, generator=generator) @ torch.randn(12, 64, generator=generator) + 3
    index = index_of(features + 0.1 * torch.randn(1000, 64, generator=generator))
    exact, found = (index.search(index.features[::50], 10, exact=exact) for exact in (True, False))
    pairs = zip(exact.items.tolist(), found.items.tolist(), strict=True)
    assert 150 <= sum(len(set(first) & set(second)) for first, second in pairs) <= 200, "of the 10 nearest of 20"
    same = exact.items == found.items
    torch.testing.assert_close(found.similarities[same], exact.similarities[same])
    assert found.items[:, 0].tolist() == list(range(0, 1000, 50))


def test_a_shortlist_of_equal_items() -> None:
    assert Shortlist.of(torch.ones(5, 3), torch.ones(3)).rows(torch.ones(3), 3).shape == (3,)


def test_one_query_as_a_vector_or_of_numpy() -> None:
    features = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)) + 5
    index = index_of(features)
    assert torch.equal(index.search(features[4], k=3).items, index.search(features[[4]], k=3).items)
    assert torch.equal(index.search(features[:2].numpy(), k=3).items, index.search(features[:2], k=3).items)  # type: ignore[arg-type]


def test_numbers_and_shapes_that_make_no_sense() -> None:
    index = index_of(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)))
    for shape in ((7,), (2, 7), (2, 3, 8), (0,)):
        with pytest.raises(UserError, match=r"must be \(queries, 8\)"):
            index.search(torch.zeros(shape))
    for number in (0, -1):
        with pytest.raises(UserError, match=f"k is {number}, but must be a whole number of 1 or more"):
            index.search(index.features, k=number)
        with pytest.raises(UserError, match=f"k is {number}, but must be a whole number of 1 or more"):
            index.neighbours(number)
        with pytest.raises(UserError, match=f"count is {number}, but must be a whole number of 1 or more"):
            index.outliers(number)
    assert index.neighbours(50).items.shape == (30, 29), "fewer where there are not as many"


def test_groups_of_near_duplicates_and_outliers() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 64, generator=generator) + 2
    for copy, original in ((7, 3), (21, 3), (30, 12)):
        features[copy] = features[original] + 0.05 * torch.randn(64, generator=generator)
    features[5] = 2 - 4 * (features[[1, 2, 4, 6]].mean(dim=0) - 2)  # away from everything else
    index = index_of(features)
    assert index.near_duplicates() == [[3, 7, 21], [12, 30]]
    assert index.near_duplicates(threshold=1.1) == []
    outliers = index.outliers(3)
    assert len(outliers) == 3 and [value for _, value in outliers] == sorted(value for _, value in outliers)
    means = index.neighbours(5).similarities.mean(dim=1)
    assert outliers[0][0] == int(means.argmin()) and 3 not in [item for item, _ in outliers]


@pytest.mark.parametrize("count", [2, 3])
def test_copies_alone_in_a_folder_are_near_duplicates(count: int) -> None:
    features = torch.rand(1, 16) + 0.01 * torch.rand(count, 16)
    assert index_of(features).near_duplicates() == [list(range(count))]
    assert index_of(features[:1]).neighbours().items.shape == (1, 0)


def test_copies_of_photographs_are_found(photos: LabelledDataset) -> None:
    backbone = build_backbone("tiny").for_evaluation()
    index = build_index(
        backbone, photos, "random:tiny", pool="flat", device=CPU, console=Console(quiet=True), workers=1
    )
    names = [[index.names[item] for item in group] for group in index.near_duplicates()]
    assert names == [["00.jpg", "bright.jpg", "small.jpg"]]


@pytest.fixture
def photos(tmp_path: Path) -> LabelledDataset:
    """Twelve synthetic images, one of them three times: also smaller, and brighter."""
    source = synthetic_images(12, 96, 1)
    for item in range(12):
        Image.fromarray(source.read(item, [0])[0]).save(tmp_path / f"{item:02}.jpg", quality=95)
    first = Image.open(tmp_path / "00.jpg")
    first.resize((64, 64)).save(tmp_path / "small.jpg", quality=80)
    ImageEnhance.Brightness(first).enhance(1.15).save(tmp_path / "bright.jpg", quality=80)
    return index.open_unlabelled(build_backbone("tiny"), tmp_path)


# ---- in Python


@pytest.fixture
def backbone() -> Backbone:
    torch.manual_seed(0)
    return build_backbone("tiny").for_evaluation()


@pytest.mark.parametrize("pool", ["avg", "max", "grid", "flat"])
def test_embedding_in_python(pool: str, backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    embedded = unshuffle.embed(pictures, "random:tiny", pool=pool, size=48, workers=1, device="cpu")  # type: ignore[arg-type]
    assert len(embedded) == len(embedded.names) == 7 and len(embedded.dataset.skipped) == 2
    assert repr(embedded).startswith(f"<Index of 7 images of {pictures}: ") and len(repr(embedded).splitlines()) == 1
    with torch.no_grad():
        maps = backbone(preprocess(pictures / embedded.names[0], 48)[None])
    thirds = [slice(0, 2), slice(2, 4), slice(4, 6)]  # of a map of 6 x 6
    cells = torch.stack([maps[0, :, rows, columns].mean(dim=(1, 2)) for rows in thirds for columns in thirds], dim=1)
    expected = {
        "avg": maps[0].mean(dim=(1, 2)),
        "max": maps[0].amax(dim=(1, 2)),
        "grid": cells.flatten(),
        "flat": maps[0].flatten(),
    }[pool]
    torch.testing.assert_close(embedded.embed(pictures / embedded.names[0]), expected)
    assert float(torch.cosine_similarity(embedded.features[0], expected, dim=0)) > 0.999
    for name in ("rows", "rows.v2.npy", "rows.csv"):
        file = embedded.write(tmp_path / name)
        assert file == tmp_path / ("rows.npy" if name == "rows" else name)
    assert np.array_equal(np.load(tmp_path / "rows.npy"), embedded.features.numpy())
    assert list(csv.reader((tmp_path / "rows.names.csv").open())) == [["file"], *([name] for name in embedded.names)]
    with pytest.raises(UserError, match=r"rows\.npy exists"):
        embedded.write(tmp_path / "rows")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_single_file(pictures: Path, clips: Path) -> None:
    image = next(path for path in sorted(pictures.iterdir()) if path.suffix == ".png")
    alone = unshuffle.embed(image, "random:tiny", workers=1, device="cpu")
    among = unshuffle.embed(pictures, "random:tiny", workers=1, device="cpu")
    assert alone.names == [image.name] and alone.features.shape == (1, 864)
    torch.testing.assert_close(alone.features[0], among.features[among.names.index(image.name)])
    clip = next(path for path in sorted(clips.iterdir()) if path.suffix in (".mp4", ".avi"))
    assert unshuffle.embed(clip, "random:tiny", workers=1, device="cpu", frames=3).names == [clip.name]
    nameless = image.rename(image.with_name("photo"))
    assert len(unshuffle.embed(nameless, "random:tiny", workers=1, device="cpu")) == 1, "recognised by its content"
    text = image.with_name("notes.of")
    text.write_text("no picture")
    with pytest.raises(UserError, match=r"notes.of is neither an image nor a video: .* --kind"):
        unshuffle.embed(text, "random:tiny")
    with pytest.raises(UserError, match="a short side of 0 pixels is too small"):
        unshuffle.embed(nameless, "random:tiny", size=0)
