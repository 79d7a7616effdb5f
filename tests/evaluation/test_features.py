from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.data.dataset import FileSource, LabelledDataset, Square, open_dataset
from unshuffle.errors import UserError
from unshuffle.evaluation import features
from unshuffle.evaluation.features import (
    FeatureCache,
    FeatureChunk,
    colour_histograms,
    extract,
    extract_features,
    find_backbone,
    mean_per_item,
    merge_chunks,
    preprocess,
    raw_pixels,
    readable_items,
    weights_digest,
)
from unshuffle.models import build_backbone
from unshuffle.models.caffenet import CaffeNet
from unshuffle.models.registry import IMAGENET, PER_IMAGE
from unshuffle.models.weights import save_backbone

CPU = torch.device("cpu")


def smooth(number: int, side: int, seed: int = 0) -> np.ndarray:
    """Pictures without fine detail, on which all ways to resize nearly agree."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (number, 4, 4, 3), dtype=np.uint8)
    return np.stack([
        np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC)) for picture in coarse
    ])  # fmt: skip


def similarity(first: Tensor, second: Tensor) -> float:
    return float(F.cosine_similarity(first.flatten(), second.flatten(), dim=0))


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


def test_preprocess_of_grayscale_images() -> None:
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
    for ours_row, expected_row in zip(ours, expected, strict=True):
        assert similarity(ours_row, expected_row) > 0.995


def test_extract_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, pixels = build_backbone("tiny"), smooth(5, 96)
    whole = extract(backbone, pixels, CPU)
    monkeypatch.setattr(features, "FEATURE_BATCH", 2)
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


def test_random_weights_are_those_of_the_seed() -> None:
    weights, same, other = (find_backbone("random:tiny", seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(weights["conv1.0.weight"], same["conv1.0.weight"])
    assert not torch.equal(weights["conv1.0.weight"], other["conv1.0.weight"])
    backbone = find_backbone("random")
    assert isinstance(backbone, CaffeNet) and backbone.conv1[0].stride == (4, 4) and not backbone.training
    assert find_backbone("random:torchvision:resnet18").normalisation == PER_IMAGE


@pytest.mark.parametrize("name", ["backbone.safetensors", "mine.safetensors"])
def test_folders_and_files(name: str, tmp_path: Path) -> None:
    backbone = build_backbone("tiny").eval()
    save_backbone(backbone, tmp_path / name, crop_sizes={"spatial": 24}, permutations={})
    path = tmp_path if name.startswith("backbone") else tmp_path / name
    found = find_backbone(str(path))
    assert found.architecture == "tiny" and not found.training
    assert torch.equal(found.state_dict()["conv4.0.weight"], backbone.state_dict()["conv4.0.weight"])


def test_a_name_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"alexnet are not on this machine and nothing is downloaded.*random:alexnet"):
        find_backbone("alexnet")
    weights = build_backbone("alexnet").state_dict()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(weights, tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")
    for name in ("alexnet", "torchvision:alexnet"):
        found = find_backbone(name)
        assert torch.equal(found.state_dict()["features.0.weight"], weights["features.0.weight"])
        assert found.normalisation == IMAGENET and found.eval_size == 224


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "give --weights"),
        ("nowhere", "no weights at nowhere"),
        ("random:vgg", "no backbone 'vgg'"),
        ("torchvision:vgg11", "no backbone 'vgg11'"),
        ("resnet1", "no backbone 'resnet1'"),
    ],
)
def test_mistakes(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_backbone(spec)


def test_a_backbone_is_not_its_weights() -> None:
    with pytest.raises(UserError, match=r"caffenet has no weights of its own: .* random:caffenet"):
        find_backbone("caffenet")
    with pytest.raises(UserError, match="no weights at nowhere, and there is no backbone of that name"):
        find_backbone("nowhere")


QUIET, CPU = Console(quiet=True), torch.device("cpu")


@pytest.fixture
def dataset(classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> LabelledDataset:
    monkeypatch.setattr(features, "PART", 4)
    return open_dataset(classes[0], square=Square(32))


def means(pixels: Tensor) -> Tensor:
    return pixels.float().mean(dim=(1, 2))


def run(dataset: LabelledDataset, compute: Callable[[Tensor], Tensor] = means, **options: object) -> FeatureChunk:
    return merge_chunks(list(extract_features(dataset, compute, CPU, QUIET, "images", **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_features_follow_the_order_of_the_items(dataset: LabelledDataset, batch: int) -> None:
    extracted = run(dataset, batch=batch, workers=2)
    broken = next(index for index, path in enumerate(dataset.paths()) if path.name == "broken.jpg")
    assert extracted.items.tolist() == [index for index in range(25) if index != broken]
    for value, index in zip(extracted.values, extracted.items.tolist(), strict=True):
        np.testing.assert_allclose(value, dataset.load(index).astype(float).mean(axis=(0, 1, 2)), rtol=1e-4)
    assert [(Path(file).name, bool(reason)) for file, reason in dataset.skipped] == [("broken.jpg", True)]


class OnDevice(Tensor):
    """Stands for a tensor on another device, which cannot be concatenated with one on the CPU."""

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)


def test_features_lie_on_the_cpu_wherever_they_were_computed(dataset: LabelledDataset) -> None:
    """Cached parts come from there, and are concatenated with new ones."""
    assert type(run(dataset, lambda pixels: means(pixels).as_subclass(OnDevice)).values) is Tensor


def test_frames_of_videos(class_clips: tuple[Path, Path]) -> None:
    videos = open_dataset(class_clips[0], square=Square(32), frames=3)
    extracted = run(videos)
    assert extracted.items.tolist() == [index for index in range(9) for _ in range(3)] and len(videos.skipped) == 1


def test_mean_per_item_against_loops() -> None:
    values, items = torch.randn(7, 3), torch.tensor([2, 2, 2, 4, 5, 5, 5])
    means = mean_per_item(FeatureChunk(values, items))
    assert means.items.tolist() == [2, 4, 5]
    for row, item in enumerate((2, 4, 5)):
        assert torch.allclose(means.values[row], values[items == item].mean(dim=0))


def test_means_are_of_whole_items(class_clips: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "PART", 6)
    videos = open_dataset(class_clips[0], square=Square(32), frames=3)
    frames, whole = run(videos, batch=3), run(replace(videos, skipped=[]), batch=3, item_means=True)
    assert whole.items.tolist() == list(range(9))
    torch.testing.assert_close(whole.values, frames.values.view(9, 3, 3).mean(dim=1))


class Killed(BaseException):
    """What a kill is to a program."""


def test_an_interrupted_extraction_resumes(dataset: LabelledDataset, tmp_path: Path) -> None:
    whole = run(dataset)
    seen: list[int] = []

    def killed(pixels: Tensor) -> Tensor:
        if len(seen) == 3:
            raise Killed
        seen.append(len(pixels))
        return means(pixels)

    def cache() -> FeatureCache:
        return FeatureCache(tmp_path / "cache", dataset.identity())

    with pytest.raises(Killed):
        run(dataset, killed, cache=cache(), workers=1)
    assert sorted(path.name for path in (tmp_path / "cache").glob("*.npz")) == [f"{at:09}.npz" for at in (0, 4, 8)]
    computed: list[int] = []

    def counted(pixels: Tensor) -> Tensor:
        computed.append(len(pixels))
        return means(pixels)

    again = replace(dataset, skipped=[])
    extracted = run(again, counted, cache=cache(), batch=2)
    assert torch.equal(extracted.values, whole.values) and torch.equal(extracted.items, whole.items)
    assert sum(computed) == 24 - 12 and again.skipped == dataset.skipped[:1], "cached parts are not computed again"
    assert torch.equal(run(replace(dataset, skipped=[]), cache=cache()).values, whole.values)
    with pytest.raises(UserError, match="other files, weights or options"):
        FeatureCache(tmp_path / "cache", "another job")


def images_of(folder: Path, names: Sequence[str], side: int = 32) -> LabelledDataset:
    source = FileSource(folder, [folder / name for name in names], "images")
    return LabelledDataset(str(folder), source, range(len(names)), [0] * len(names), ["a"], "images", Square(side))


def test_nothing_readable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(UserError, match=r"none of the images can be read \(1 image; first problem: .*a.png"):
        run(images_of(tmp_path, ["a.png"]))


def test_readable_items_are_kept_in_order(dataset: LabelledDataset, tmp_path: Path) -> None:
    readable = [path for path in dataset.paths() if path.name != "broken.jpg"]
    for cache in (None, FeatureCache(tmp_path, "job"), FeatureCache(tmp_path, "job")):
        good = readable_items(replace(dataset, skipped=[]), QUIET, workers=2, cache=cache)
        assert good.paths() == readable
        assert len(good.skipped) == 1


def test_a_part_without_a_readable_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "PART", 1)
    (tmp_path / "a.png").write_text("no image")
    Image.new("RGB", (40, 40)).save(tmp_path / "b.png")
    for _ in range(2):
        dataset = images_of(tmp_path, ["a.png", "b.png"])
        assert run(dataset, cache=FeatureCache(tmp_path / "cache", "job")).items.tolist() == [1]
    assert FeatureCache(tmp_path / "cache", "job").join().items.tolist() == [1]


def test_joined_parts_are_mapped_from_one_file(dataset: LabelledDataset, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "job")
    whole, skipped = run(dataset, cache=cache), list(dataset.skipped)
    for _ in range(2):
        joined = cache.join()
        assert torch.equal(joined.values, whole.values) and torch.equal(joined.items, whole.items)
        assert joined.skipped == skipped != []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.txt", "joined.npz", "values.npy"]
    again = replace(dataset, skipped=[])
    read = run(again, lambda _: pytest.fail("it is computed again"), cache=FeatureCache(tmp_path, "job"))
    assert torch.equal(read.values, whole.values) and again.skipped == skipped


def test_the_digest_follows_every_weight() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("tiny").for_evaluation()
    before = weights_digest(backbone)
    assert weights_digest(backbone) == before
    with torch.no_grad():
        next(backbone.parameters()).view(-1)[3] += 1e-6
    assert weights_digest(backbone) != before


def test_two_processes_may_join_the_same_parts(
    dataset: LabelledDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "PART", 8)
    whole = run(dataset, cache=FeatureCache(tmp_path, "job"))
    first, second = FeatureCache(tmp_path, "job"), FeatureCache(tmp_path, "job")
    parts, looked = first._parts(), list[FeatureCache]()

    def listed(cache: FeatureCache) -> list[Path]:
        if cache is second and second not in looked:  # the other joins them after the list was made
            looked.append(second)
            first.join()
        return parts

    monkeypatch.setattr(FeatureCache, "_parts", listed)
    assert len(parts) > 1 and torch.equal(second.join().values, whole.values)
    assert not any(file.exists() for file in parts)
