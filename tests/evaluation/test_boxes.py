import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unshuffle.evaluation.boxes import clip, decode, encode, mirror, overlaps

Box = tuple[int, int, int, int]
BOX = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20)).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
BOXES = st.lists(BOX, min_size=1, max_size=5)


def cells(box: Box) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


@given(BOXES, BOXES)
def test_overlaps_by_counting_pixels(boxes: list[Box], others: list[Box]) -> None:
    ours = overlaps(torch.tensor(boxes).float(), torch.tensor(others).float())
    for i, one in enumerate(boxes):
        for j, other in enumerate(others):
            expected = len(cells(one) & cells(other)) / len(cells(one) | cells(other))
            assert float(ours[i, j]) == pytest.approx(expected, abs=1e-6)


@given(BOX, BOX)
def test_offsets_against_the_papers_formulas(box: Box, target: Box) -> None:
    ours = encode(torch.tensor([box]).float(), torch.tensor([target]).float())
    (x, y, w, h), (gx, gy, gw, gh) = (
        ((b[0] + b[2]) / 2, (b[1] + b[3]) / 2, b[2] - b[0], b[3] - b[1]) for b in (box, target)
    )
    plain = [(gx - x) / w / 0.1, (gy - y) / h / 0.1, math.log(gw / w) / 0.2, math.log(gh / h) / 0.2]
    assert ours[0].tolist() == pytest.approx(plain, rel=1e-4, abs=1e-4)
    back = decode(torch.tensor([box]).float(), ours)
    assert back[0].tolist() == pytest.approx(target, abs=1e-3)


def test_wild_outputs_stay_finite() -> None:
    wild = decode(torch.tensor([[0.0, 0.0, 16.0, 16.0]]), torch.full((1, 4), 1e4))
    assert torch.isfinite(wild).all()


@given(BOX)
def test_mirrored_boxes_hold_the_mirrored_pixels(box: Box) -> None:
    image = torch.zeros(40, 45)
    image[box[1] : box[3], box[0] : box[2]] = 1
    left, top, right, bottom = mirror(torch.tensor([box]), 45)[0].tolist()
    assert image.flip(1)[top:bottom, left:right].all() and (bottom - top) * (right - left) == image.sum()


def test_clip() -> None:
    assert clip(torch.tensor([[-3.0, 2.0, 50.0, 60.0]]), (30, 40)).tolist() == [[0, 2, 40, 30]]
