import numpy as np
import pytest
import torch

from unshuffle.evaluation.detection_precision import Truth, count_objects, mark_hits

Box = tuple[int, int, int, int]


def pixel_overlap(one: Box, other: Box) -> float:
    """As the devkit computes it, with last pixels included, which for our boxes are one less."""
    width = min(one[2], other[2]) - 1 - max(one[0], other[0]) + 1
    height = min(one[3], other[3]) - 1 - max(one[1], other[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - 1 - box[0] + 1) * (box[3] - 1 - box[1] + 1) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def slow_hits(detections: list[tuple[int, Box, float]], truths: dict[int, list[tuple[Box, bool]]]) -> list[bool]:
    """The devkit's loop over detections."""
    used: set[tuple[int, int]] = set()
    outcomes = []
    for image, box, _ in sorted(detections, key=lambda detection: -detection[2]):
        best, owner = -1.0, None
        for number, (other, _difficult) in enumerate(truths.get(image, [])):
            if pixel_overlap(box, other) > best:
                best, owner = pixel_overlap(box, other), number
        if best >= 0.5 and owner is not None:
            if not truths[image][owner][1]:
                outcomes.append((image, owner) not in used)
                used.add((image, owner))
        else:
            outcomes.append(False)
    return outcomes


def random_box(rng: np.random.Generator) -> Box:
    left, top = rng.integers(0, 8, 2).tolist()
    width, height = rng.integers(4, 10, 2).tolist()
    return left, top, left + width, top + height


@pytest.mark.parametrize("seed", range(20))
def test_hits_against_the_devkits_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truths = {
        image: [(random_box(rng), bool(rng.random() < 0.4)) for _ in range(rng.integers(1, 4))] for image in (0, 2, 3)
    }
    detections = [(int(rng.integers(0, 4)), random_box(rng), float(rng.random())) for _ in range(40)]
    ours = mark_hits(
        [image for image, _, _ in detections],
        torch.tensor([box for _, box, _ in detections]).float(),
        np.array([score for _, _, score in detections]),
        {
            image: Truth(torch.tensor([box for box, _ in objects]).float(), [hard for _, hard in objects])
            for image, objects in truths.items()
        },
    )
    expected = slow_hits(detections, truths)
    assert ours.tolist() == expected
    assert sum(expected) > 0 or seed != 0, "the test would mean nothing without hits"


def test_difficult_objects_are_neither_found_nor_missed() -> None:
    truth = {0: Truth(torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), [True, False])}
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [20, 20, 30, 29]])
    hits = mark_hits([0, 0, 0, 0], boxes, np.array([0.9, 0.8, 0.7, 0.6]), truth)
    assert hits.tolist() == [True, False] and count_objects(truth) == 1


def test_nothing_detected() -> None:
    assert mark_hits([], torch.zeros(0, 4), np.zeros(0), {0: Truth(torch.ones(1, 4), [False])}).tolist() == []
