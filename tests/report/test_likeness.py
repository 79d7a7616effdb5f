import torch

from unshuffle.evaluation.features import extract
from unshuffle.report.likeness import find_alike, nearest_others
from unshuffle.report.snapshot import Snapshot


def slow_others(vectors: torch.Tensor, count: int) -> list[list[int]]:
    found = []
    for own in range(len(vectors)):
        cosine = {
            other: float(torch.cosine_similarity(vectors[own], vectors[other], dim=0))
            for other in range(len(vectors))
            if other != own
        }
        found.append(sorted(cosine, key=lambda other: -cosine[other])[:count])
    return found


def test_nearest_others_against_a_slow_search() -> None:
    vectors = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    assert nearest_others(vectors, 4) == slow_others(vectors, 4)


def test_a_copy_is_a_neighbour_and_oneself_is_not() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert [row[0] for row in nearest_others(vectors, 1)[:2]] == [1, 0]


def test_images_are_compared_by_the_network(snapshot: Snapshot) -> None:
    found = find_alike(snapshot, 3)
    assert found is not None and found.names == list(snapshot.held_out["spatial"].names)
    features = extract(snapshot.network.backbone, found.frames.numpy(), torch.device("cpu"))
    assert found.nearest["this network"] == slow_others(features, 3)


def test_one_image_has_no_neighbour(snapshot: Snapshot) -> None:
    one = {"spatial": type(snapshot.held_out["spatial"])(snapshot.held_out["spatial"].pixels[:1], ["a"])}
    alone = Snapshot(snapshot.config, 0, snapshot.network, snapshot.permutations, one, snapshot.device)
    assert find_alike(alone) is None
