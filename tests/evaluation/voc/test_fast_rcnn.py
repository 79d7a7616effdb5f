import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.ops import box_iou, clip_boxes_to_image

from unshuffle.evaluation.voc.fast_rcnn import (
    BACKGROUND,
    FastRCNN,
    RegionTargets,
    centred_layers,
    decode_boxes,
    detect,
    detection_loss,
    encode_boxes,
    sample_regions,
)
from unshuffle.models import build_backbone
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.chain import Geometry, first_convolution, geometry

Box = tuple[int, int, int, int]
BOX = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20)).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
BOXES = st.lists(BOX, min_size=1, max_size=5)


def box_pixels(box: Box) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


@given(BOXES, BOXES)
def test_iou_of_boxes_against_counting_pixels(boxes: list[Box], others: list[Box]) -> None:
    ious = box_iou(torch.tensor(boxes).float(), torch.tensor(others).float())
    for i, box in enumerate(boxes):
        for j, other in enumerate(others):
            expected = len(box_pixels(box) & box_pixels(other)) / len(box_pixels(box) | box_pixels(other))
            assert float(ious[i, j]) == pytest.approx(expected, abs=1e-6)


@given(BOX, BOX)
def test_offsets_against_the_formulas_of_fast_rcnn(box: Box, target: Box) -> None:
    offsets = encode_boxes(torch.tensor([box]).float(), torch.tensor([target]).float())
    (x, y, w, h), (gx, gy, gw, gh) = (
        ((b[0] + b[2]) / 2, (b[1] + b[3]) / 2, b[2] - b[0], b[3] - b[1]) for b in (box, target)
    )
    expected = [(gx - x) / w / 0.1, (gy - y) / h / 0.1, math.log(gw / w) / 0.2, math.log(gh / h) / 0.2]
    assert offsets[0].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    decoded = decode_boxes(torch.tensor([box]).float(), offsets)
    assert decoded[0].tolist() == pytest.approx(target, abs=1e-3)


def test_extreme_offsets_decode_to_finite_boxes() -> None:
    decoded = decode_boxes(torch.tensor([[0.0, 0.0, 16.0, 16.0]]), torch.full((1, 4), 1e4))
    assert torch.isfinite(decoded).all()


def test_boxes_are_clipped_to_height_and_width() -> None:
    assert clip_boxes_to_image(torch.tensor([[-3.0, 2.0, 50.0, 60.0]]), (30, 40)).tolist() == [[0, 2, 40, 30]]


def random_boxes(rng: np.random.Generator, count: int) -> Tensor:
    corner, size = rng.integers(0, 60, (count, 2)), rng.integers(16, 40, (count, 2))
    return torch.from_numpy(np.concatenate([corner, corner + size], axis=1)).float()


@pytest.mark.parametrize("name", ["caffenet", "alexnet", "tiny", "caffenet-lrn"])
def test_cell_i_is_centred_at_pixel_stride_times_i(name: str) -> None:
    layers = centred_layers(build_backbone(name).for_evaluation())
    grid = geometry(layers)
    assert grid == (Geometry(4, 1) if name == "tiny" else Geometry(16, 0)), "2 x 2 pooling cannot be centred"
    side = 160
    assert layers.eval()(torch.zeros(1, 3, side, side)).shape[2] in (side // grid.stride, side // grid.stride + 1)
    if name == "caffenet":
        conv1, pools = first_convolution(layers), [layer for layer in layers if isinstance(layer, nn.MaxPool2d)]
        assert conv1.padding == (5, 5) and [pool.padding for pool in pools] == [1, 1]


@pytest.mark.parametrize("seed", range(10))
def test_sampled_regions_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    proposals, objects, labels = random_boxes(rng, 150), random_boxes(rng, 3), torch.tensor([4, 7, 9])
    targets = sample_regions(proposals, objects, labels, 64, rng)
    candidates = torch.cat([objects, proposals])
    ious = box_iou(candidates, objects).tolist()
    expected = {}
    for box, row in zip(candidates.tolist(), ious, strict=True):
        best = max(row)
        if best >= 0.5:
            expected[tuple(box)] = (int(labels[row.index(best)]), row.index(best))
        elif best >= 0.1:
            expected[tuple(box)] = (BACKGROUND, row.index(best))
    for box, label, offsets in zip(targets.boxes, targets.labels.tolist(), targets.offsets, strict=True):
        expected_label, nearest = expected[tuple(box.tolist())]
        assert label == expected_label
        torch.testing.assert_close(offsets[None], encode_boxes(box[None], objects[nearest][None]))
    foreground = sum(label != BACKGROUND for label, _ in expected.values())
    count = int((targets.labels != BACKGROUND).sum())
    assert count == min(16, foreground) > 0
    assert len(targets.labels) == count + min(64 - count, sum(label == BACKGROUND for label, _ in expected.values()))


def test_loss_against_loops() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([2, BACKGROUND, 0, BACKGROUND, 19])
    logits, offsets, target_offsets = torch.randn(5, 21), torch.randn(5, 20, 4), 2 * torch.randn(5, 4)
    expected = 0.0
    for row, label in enumerate(labels.tolist()):
        expected -= float(logits[row].log_softmax(0)[label])
        if label != BACKGROUND:
            for predicted, target in zip(offsets[row, label].tolist(), target_offsets[row].tolist(), strict=True):
                error = abs(predicted - target)
                expected += error * error / 2 if error < 1 else error - 0.5
    loss = detection_loss(logits, offsets, RegionTargets(torch.zeros(5, 4), labels, target_offsets))
    assert float(loss) == pytest.approx(expected / 5, rel=1e-5)


def test_background_alone_has_a_finite_loss() -> None:
    assert BACKGROUND == 20, "the label after the classes"
    targets = RegionTargets(torch.zeros(2, 4), torch.full((2,), BACKGROUND), torch.zeros(2, 4))
    assert torch.isfinite(detection_loss(torch.randn(2, 21), torch.randn(2, 20, 4), targets))


def test_suppression_is_per_class() -> None:
    proposals = torch.tensor([[0.0, 0, 20, 20], [0, 0, 20, 19], [50, 50, 80, 80]])
    logits = torch.full((3, 21), -20.0)
    logits[0, 3], logits[1, 3], logits[2, 3], logits[1, 5] = 5, 4, 4, 3
    detections = detect(logits, torch.zeros(3, 20, 4), proposals, (70, 70))
    boxes = detections.boxes[(detections.labels == 3) & (detections.scores > 0.1)]
    assert boxes.tolist() == [[0, 0, 20, 20], [50, 50, 70, 70]], (
        "the lower score of two overlapping boxes is suppressed; all are clipped"
    )
    assert detections.boxes[(detections.labels == 5) & (detections.scores > 0.1)].tolist() == [[0, 0, 20, 19]]


def test_regions_pool_the_part_of_the_image_they_cover() -> None:
    torch.manual_seed(0)
    network = FastRCNN(fold_batch_norm(build_backbone("tiny").for_evaluation()), 32, 0.05, freeze_conv1=True).eval()
    image = torch.randint(90, 160, (96, 128, 3), dtype=torch.uint8)
    changed = image.clone()
    changed[:32, :32] = changed[:32, :32].flip(0)  # far from the second box, and the means stay as they are
    boxes = torch.tensor([[0.0, 0, 32, 32], [80, 48, 128, 96]])
    with torch.no_grad():
        (before, _), (after, _) = (network([pixels], [boxes]) for pixels in (image, changed))
        together, _ = network([image, changed], [boxes, boxes])
    assert not torch.allclose(before[0], after[0], atol=1e-6) and torch.allclose(before[1], after[1], atol=1e-6)
    torch.testing.assert_close(together, torch.cat([before, after]))


@pytest.mark.parametrize("frozen", [True, False])
def test_conv1_is_frozen_on_request(frozen: bool) -> None:
    network = FastRCNN(fold_batch_norm(build_backbone("tiny").for_evaluation()), 8, 0.05, freeze_conv1=frozen)
    frozen_names = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    assert frozen_names == (["layers.0.weight", "layers.0.bias"] if frozen else [])
