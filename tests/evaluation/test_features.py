from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from unshuffle.errors import UserError
from unshuffle.evaluation import features
from unshuffle.evaluation.features import colour_histograms, extract, preprocess, raw_pixels
from unshuffle.models import build_backbone
from unshuffle.models.registry import IMAGENET

CPU = torch.device("cpu")


def smooth(number: int, side: int, seed: int = 0) -> np.ndarray:
    """Pictures without fine detail, on which all ways to resize nearly agree."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (number, 4, 4, 3), dtype=np.uint8)
    return np.stack([
        np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC)) for picture in coarse
    ])  # fmt: skip


def similarity(one: Tensor, other: Tensor) -> float:
    return float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0))


def test_preprocess_against_numpy() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    square = pixels[:, 5:25] / 255
    expected = (square - square.mean(axis=(0, 1))) / square.std(axis=(0, 1))
    for image in (pixels, Image.fromarray(pixels), Image.fromarray(pixels).convert("RGBA")):
        ours = preprocess(image, 20)
        assert ours.shape == (3, 20, 20) and ours.dtype == torch.float32
        np.testing.assert_allclose(ours.permute(1, 2, 0), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(50, 80), (80, 50), (20, 25)])
def test_preprocess_resizes_the_short_side(shape: tuple[int, int]) -> None:
    pixels = np.asarray(Image.fromarray(smooth(1, 40)[0]).resize(shape[::-1]))
    width, height = (round(side * 40 / min(shape)) for side in shape[::-1])
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    top, left = (height - 40) // 2, (width - 40) // 2
    expected = preprocess(resized[top : top + 40, left : left + 40].copy(), 40)
    np.testing.assert_allclose(preprocess(pixels, 40), expected, atol=1e-5)


def test_preprocess_of_a_file(tmp_path: Path) -> None:
    Image.fromarray(smooth(1, 40)[0]).save(tmp_path / "a.png")
    for file in (tmp_path / "a.png", str(tmp_path / "a.png")):
        assert torch.equal(preprocess(file, 32), preprocess(smooth(1, 40)[0], 32))
    with pytest.raises(UserError, match=r"b.png: cannot be read"):
        preprocess(tmp_path / "b.png", 32)


def test_preprocess_of_grey_images() -> None:
    grey = Image.fromarray(smooth(1, 24)[0]).convert("L")
    ours = preprocess(grey, 24)
    assert torch.equal(ours[0], ours[1]) and torch.equal(ours[0], ours[2])


@pytest.mark.parametrize("name", ["tiny", "caffenet", "resnet18"])
def test_extract_equals_preprocess_and_backbone(name: str) -> None:
    backbone = build_backbone(name)
    pixels = np.random.default_rng(0).integers(0, 256, (2, backbone.eval_size, backbone.eval_size, 3), dtype=np.uint8)
    ours = extract(backbone, pixels, CPU)
    with torch.no_grad():
        images = torch.stack([preprocess(image, backbone.eval_size) for image in pixels])
        expected = backbone.for_evaluation()(images).flatten(1)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_extract_normalises_as_the_weights_want() -> None:
    backbone, pixels = build_backbone("tiny"), smooth(2, 96)
    backbone.normalisation = IMAGENET
    with torch.no_grad():
        images = torch.stack([preprocess(image, 96, backbone.normalise) for image in pixels])
        expected = backbone.for_evaluation()(images).flatten(1)
    np.testing.assert_allclose(extract(backbone, pixels, CPU), expected, atol=1e-4)
    square = pixels[0].astype(np.float64) / 255
    reference = (square - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(images[0].permute(1, 2, 0), reference, atol=1e-5)


def test_caffenet_has_9216_features() -> None:
    assert extract(build_backbone("caffenet"), smooth(1, 40), CPU).shape == (1, 9216)


@pytest.mark.parametrize("side", [48, 96, 150])
def test_extract_takes_squares_of_any_size(side: int) -> None:
    backbone = build_backbone("tiny")
    ours = extract(backbone, smooth(3, side), CPU)
    with torch.no_grad():
        images = torch.stack([preprocess(image, backbone.eval_size) for image in smooth(3, side)])
        expected = backbone.for_evaluation()(images).flatten(1)
    for one, other in zip(ours, expected, strict=True):
        assert similarity(one, other) > 0.995


def test_extract_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, pixels = build_backbone("tiny"), smooth(5, 96)
    whole = extract(backbone, pixels, CPU)
    monkeypatch.setattr(features, "BATCH", 2)
    np.testing.assert_allclose(extract(backbone, pixels, CPU), whole, atol=1e-5)


def test_extract_leaves_the_backbone_alone() -> None:
    backbone = build_backbone("caffenet").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    result = extract(backbone, smooth(2, 40), CPU)
    assert all(module.training for module in backbone.modules())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    assert backbone.get_submodule("conv1")[0].stride == (2, 2)  # type: ignore[index]
    assert not result.requires_grad


def test_raw_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    ours = raw_pixels(pixels, side=16)
    assert ours.shape == (3, 3 * 16 * 16)
    for row, image in zip(ours, pixels, strict=True):
        np.testing.assert_allclose(row.reshape(3, 16, 16), preprocess(image, 16), atol=1e-5)
    assert raw_pixels(smooth(2, 50)).shape == (2, 3 * 32 * 32)


@pytest.mark.parametrize("bins", [2, 3, 4])
def test_colour_histograms_against_numpy(bins: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    pixels[0] = 255
    pixels[1] = 0
    ours = colour_histograms(pixels, bins)
    assert ours.shape == (4, bins**3) and ours.dtype == torch.float32
    for row, image in zip(ours, pixels, strict=True):
        expected, _ = np.histogramdd(image.reshape(-1, 3), bins=bins, range=[(0, 256)] * 3)
        np.testing.assert_array_equal(row, expected.ravel())
