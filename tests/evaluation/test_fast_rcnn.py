import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unshuffle.evaluation.boxes import encode, overlaps
from unshuffle.evaluation.fast_rcnn import (
    BACKGROUND,
    FastRcnn,
    Targets,
    centred_layers,
    detect,
    detection_loss,
    sample_regions,
)
from unshuffle.models import build_backbone
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.chain import Geometry, first_convolution, geometry


def random_boxes(rng: np.random.Generator, count: int) -> Tensor:
    corner, size = rng.integers(0, 60, (count, 2)), rng.integers(16, 40, (count, 2))
    return torch.from_numpy(np.concatenate([corner, corner + size], axis=1)).float()


@pytest.mark.parametrize("name", ["caffenet", "alexnet", "tiny", "caffenet-lrn"])
def test_cell_i_looks_at_pixel_stride_times_i(name: str) -> None:
    layers = centred_layers(build_backbone(name).for_evaluation())
    where = geometry(layers)
    assert where == (Geometry(4, 1) if name == "tiny" else Geometry(16, 0)), "2 x 2 pooling cannot be centred"
    side = 160
    assert layers.eval()(torch.zeros(1, 3, side, side)).shape[2] in (side // where.stride, side // where.stride + 1)
    if name == "caffenet":
        conv1, pools = first_convolution(layers), [layer for layer in layers if isinstance(layer, nn.MaxPool2d)]
        assert conv1.padding == (5, 5) and [pool.padding for pool in pools] == [1, 1]


@pytest.mark.parametrize("seed", range(10))
def test_regions_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    proposals, objects, labels = random_boxes(rng, 150), random_boxes(rng, 3), torch.tensor([4, 7, 9])
    targets = sample_regions(proposals, objects, labels, 64, rng)
    everything = torch.cat([objects, proposals])
    table = overlaps(everything, objects).tolist()
    expected = {}
    for box, row in zip(everything.tolist(), table, strict=True):
        best = max(row)
        if best >= 0.5:
            expected[tuple(box)] = (int(labels[row.index(best)]), row.index(best))
        elif best >= 0.1:
            expected[tuple(box)] = (BACKGROUND, row.index(best))
    for box, label, offsets in zip(targets.boxes, targets.labels.tolist(), targets.offsets, strict=True):
        wanted, owner = expected[tuple(box.tolist())]
        assert label == wanted
        torch.testing.assert_close(offsets[None], encode(box[None], objects[owner][None]))
    on_objects = sum(label != BACKGROUND for label, _ in expected.values())
    count = int((targets.labels != BACKGROUND).sum())
    assert count == min(16, on_objects) > 0
    assert len(targets.labels) == count + min(64 - count, sum(label == BACKGROUND for label, _ in expected.values()))


def test_loss_against_loops() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([2, BACKGROUND, 0, BACKGROUND, 19])
    logits, offsets, goals = torch.randn(5, 21), torch.randn(5, 20, 4), 2 * torch.randn(5, 4)
    expected = 0.0
    for row, label in enumerate(labels.tolist()):
        expected -= float(logits[row].log_softmax(0)[label])
        if label != BACKGROUND:
            for ours, goal in zip(offsets[row, label].tolist(), goals[row].tolist(), strict=True):
                miss = abs(ours - goal)
                expected += miss * miss / 2 if miss < 1 else miss - 0.5
    loss = detection_loss(logits, offsets, Targets(torch.zeros(5, 4), labels, goals))
    assert float(loss) == pytest.approx(expected / 5, rel=1e-5)


def test_background_alone_has_a_loss() -> None:
    targets = Targets(torch.zeros(2, 4), torch.full((2,), BACKGROUND), torch.zeros(2, 4))
    assert torch.isfinite(detection_loss(torch.randn(2, 21), torch.randn(2, 20, 4), targets))


def test_each_class_suppresses_its_own() -> None:
    proposals = torch.tensor([[0.0, 0, 20, 20], [0, 0, 20, 19], [50, 50, 80, 80]])
    logits = torch.full((3, 21), -20.0)
    logits[0, 3], logits[1, 3], logits[2, 3], logits[1, 5] = 5, 4, 4, 3
    found = detect(logits, torch.zeros(3, 20, 4), proposals, (70, 70))
    mine = found.boxes[(found.labels == 3) & (found.scores > 0.1)]
    assert mine.tolist() == [[0, 0, 20, 20], [50, 50, 70, 70]], "the lesser of two alike goes; all are clipped"
    assert found.boxes[(found.labels == 5) & (found.scores > 0.1)].tolist() == [[0, 0, 20, 19]]


def test_regions_pool_the_part_of_the_image_they_cover() -> None:
    torch.manual_seed(0)
    network = FastRcnn(fold_batch_norm(build_backbone("tiny").for_evaluation()), 32, 0.05, freeze_conv1=True).eval()
    image = torch.randint(90, 160, (96, 128, 3), dtype=torch.uint8)
    changed = image.clone()
    changed[:32, :32] = changed[:32, :32].flip(0)  # far from the second box, and the means stay as they are
    boxes = torch.tensor([[0.0, 0, 32, 32], [80, 48, 128, 96]])
    with torch.no_grad():
        (one, _), (other, _) = (network([some], [boxes]) for some in (image, changed))
        together, _ = network([image, changed], [boxes, boxes])
    assert not torch.allclose(one[0], other[0], atol=1e-6) and torch.allclose(one[1], other[1], atol=1e-6)
    torch.testing.assert_close(together, torch.cat([one, other]))


@pytest.mark.parametrize("frozen", [True, False])
def test_conv1_is_frozen_on_request(frozen: bool) -> None:
    network = FastRcnn(fold_batch_norm(build_backbone("tiny").for_evaluation()), 8, 0.05, freeze_conv1=frozen)
    still = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    assert still == (["layers.0.weight", "layers.0.bias"] if frozen else [])
