import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from unshuffle.cli import run as run_command
from unshuffle.data.crops import normalise
from unshuffle.data.dataset import FileSource, LabelledDataset, packed
from unshuffle.data.pack import pack
from unshuffle.errors import UserError
from unshuffle.evaluation.action import (
    ActionRecognition,
    ClipBatches,
    Crops,
    Split,
    action_classifier,
    consensus,
    consensus_loss,
    evaluation_crops,
    frame_side,
    middle_frames,
    official_split,
    predict,
    sample_crops,
    score,
    segment_frames,
    training_crops,
)
from unshuffle.evaluation.features import open_pair, resized_floats
from unshuffle.evaluation.finetuning import Recipe
from unshuffle.evaluation.protocol import Result, find_evaluation
from unshuffle.models import build_backbone

RNG = np.random.default_rng


def as_is(images: torch.Tensor) -> torch.Tensor:
    return images


def smooth(count: int, height: int, width: int) -> np.ndarray:
    coarse = RNG(0).integers(0, 256, (count, 5, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(frame).resize((width, height))) for frame in coarse])


def test_frames_are_as_much_larger_than_crops_as_256_is_than_224() -> None:
    assert frame_side(224) == 256 and frame_side(227) == 259


@pytest.mark.parametrize("length", [3, 7, 30, 31, 32])
def test_one_frame_of_each_segment(length: int) -> None:
    frames = segment_frames(np.full(2000, length), 3, RNG(0))
    for segment in range(3):
        expected = {frame for frame in range(length) if segment * length // 3 <= frame < (segment + 1) * length // 3}
        assert set(frames[:, segment].tolist()) == expected


def test_segments_of_videos_of_different_lengths() -> None:
    frames = segment_frames(np.array([300, 2, 1]), 3, RNG(0))
    assert (frames[0] // 100).tolist() == [0, 1, 2]
    assert frames[1:].tolist() == [[0, 0, 1], [0, 0, 0]], "a short video repeats frames"


@pytest.mark.parametrize("length", [1, 2, 24, 25, 26, 180, 1776])
def test_25_frames_in_the_middle_of_their_segments(length: int) -> None:
    assert middle_frames(length, 25).tolist() == [int(length / 50 + length / 25 * k + 1e-9) for k in range(25)]


def test_crops_have_13_positions_and_10_shapes() -> None:
    height, width = 259, 345
    boxes = sample_crops(np.tile([height, width], (20000, 1)), RNG(0))
    sizes = [259, 226, 194, 170]
    expected = set()
    for i, tall in enumerate(sizes):
        for wide in sizes[max(0, i - 1) : i + 2]:
            down, right = height - tall, width - wide
            for top, left in [
                *((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)),  # corners, centre
                *((0, 2), (2, 0), (2, 4), (4, 2)),  # middles of the edges
                *((1, 1), (1, 3), (3, 1), (3, 3)),  # half way from the centre to the corners
            ]:
                expected.add((down * top // 4, right * left // 4, tall, wide))
    assert len({(tall, wide) for _, _, tall, wide in expected}) == 10
    assert set(map(tuple, np.hstack([boxes.corners, boxes.sides]).tolist())) == expected
    assert 0.45 < boxes.hflip.mean() < 0.55


def test_crops_follow_the_size_of_each_video() -> None:
    frame_sizes = RNG(1).integers(16, 400, (500, 2))
    boxes = sample_crops(frame_sizes, RNG(0))
    shares = boxes.sides / frame_sizes.min(axis=1, keepdims=True)
    assert shares.max() == 1 and shares.min() > 0.6
    assert (boxes.corners >= 0).all() and (boxes.corners + boxes.sides <= frame_sizes).all()


def test_a_box_cuts_all_frames_alike() -> None:
    frames = RNG(0).integers(0, 256, (2, 9, 8, 3), dtype=np.uint8)
    boxes = Crops(np.array([[0, 0], [2, 1]]), np.array([[9, 8], [4, 5]]), np.array([0, 1]))
    np.testing.assert_array_equal(boxes.cut(1, frames), frames[:, 2:6, 1:6])


def test_crops_by_shape() -> None:
    sides = np.array([[3, 4], [4, 3], [3, 4], [3, 3], [4, 3], [3, 4]])
    groups = Crops(np.zeros((6, 2), np.int64), sides, np.zeros(6, np.int64)).by_shape()
    assert [group.tolist() for group in groups] == [[3], [0, 2, 5], [1, 4]]


def test_training_crops_are_what_pillow_makes() -> None:
    cuts = [smooth(4, 60, 70).reshape(2, 2, 60, 70, 3), smooth(2, 30, 24).reshape(1, 2, 30, 24, 3)]
    hflip = torch.tensor([False, True, True])
    crops = training_crops([torch.from_numpy(cut) for cut in cuts], hflip, 48, as_is)
    assert crops.shape == (6, 3, 48, 48)
    position = 0
    for video, flip in zip([*cuts[0], *cuts[1]], hflip.tolist(), strict=True):
        for frame in video:
            image = Image.fromarray(frame).resize((48, 48), Image.Resampling.BILINEAR)
            expected = np.asarray(image)[:, ::-1] if flip else np.asarray(image)
            np.testing.assert_allclose(crops[position].permute(1, 2, 0) * 255, expected, atol=1.01)
            position += 1


def test_ten_crops() -> None:
    rows, columns = np.mgrid[:109, :130]
    frames = np.stack([np.stack([rows, columns, rows * 0 + k], axis=-1) for k in (7, 9)]).astype(np.uint8)
    crops = (evaluation_crops(torch.from_numpy(frames), 96, 10, as_is) * 255).round().numpy()
    assert crops.shape == (20, 3, 96, 96)
    corners = [(0, 0), (0, 34), (13, 0), (13, 34), (6, 17)]
    for position, (top, left) in enumerate(corners):
        for frame in range(2):
            expected = frames[frame, top : top + 96, left : left + 96].transpose(2, 0, 1)
            np.testing.assert_array_equal(crops[2 * position + frame], expected)
            np.testing.assert_array_equal(crops[10 + 2 * position + frame], expected[:, :, ::-1])
    centre = evaluation_crops(torch.from_numpy(frames), 96, 1, as_is) * 255
    np.testing.assert_array_equal(centre.round().numpy(), crops[8:10])


@pytest.mark.parametrize(("height", "width"), [(60, 80), (240, 180)])
def test_frames_of_another_size_are_scaled_before_they_are_cut(height: int, width: int) -> None:
    frames = smooth(1, height, width)
    wide, tall = (109, 145) if height > width else (145, 109)
    scaled = np.asarray(Image.fromarray(frames[0]).resize((wide, tall), Image.Resampling.BILINEAR))
    crops = evaluation_crops(torch.from_numpy(frames), 96, 10, as_is)
    np.testing.assert_allclose(crops[3].permute(1, 2, 0) * 255, scaled[-96:, -96:], atol=1.01)


def test_crops_are_normalised_one_by_one() -> None:
    def by_mean(images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3, 32, 32)
        return images - images.mean(dim=(2, 3), keepdim=True)

    frames = torch.from_numpy(smooth(2, 36, 40))
    for crops in (
        evaluation_crops(frames, 32, 10, by_mean),
        training_crops([frames[None]], torch.tensor([True]), 32, by_mean),
    ):
        torch.testing.assert_close(crops.mean(dim=(2, 3)), torch.zeros(len(crops), 3), atol=1e-5, rtol=0)


def test_bytes_of_the_right_size_are_left_alone() -> None:
    frames = torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3)
    assert torch.equal(resized_floats(frames, 4, 4), frames.permute(0, 3, 1, 2) / 255)


CPU = torch.device("cpu")
CLASSES = ("diagonal", "flat", "upright")
QUIET = Console(quiet=True)


def stripes(kind: str, phase: int, size: tuple[int, int]) -> np.ndarray:
    """Moving stripes whose direction tells the class."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    along = {"diagonal": 0.7 * (x + y), "flat": y, "upright": x}[kind]
    wave = 127 + 100 * np.sin(along * 0.8 + phase)
    return np.repeat(wave[..., None], 3, axis=2).astype(np.uint8)


def write_clip(path: Path, kind: str, number: int, frames: int = 6, size: tuple[int, int] = (48, 36)) -> None:
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        (stream.width, stream.height), stream.pix_fmt = size, "yuvj420p"
        for frame in range(frames):
            pixels = stripes(kind, 5 * number + frame, size)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Clips of two shapes and many lengths; the classes are equally frequent in training and not in testing."""
    root = tmp_path_factory.mktemp("actions")
    for label, kind in enumerate(CLASSES):
        for number in range(6):
            size = (48, 36) if number % 2 else (36, 40)
            write_clip(root / "train" / kind / f"v{number}.avi", kind, number, frames=2 + number, size=size)
        for number in range(2 + label):
            write_clip(root / "test" / kind / f"w{number}.avi", kind, 50 + number)
    return {"train": root / "train", "test": root / "test", "cache": root / "cache"}


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.models.caffenet.Tiny.eval_size", 32)


def small(folders: dict[str, Path], **options: Any) -> ActionRecognition:
    settings: dict[str, Any] = {"epochs": 6, "lr": 0.02, "milestones": (5,), "batch_size": 6, "hidden": 32}
    settings |= {"dropout": (0.1, 0.1), "test_frames": 3, "workers": 2, "weights": "random:tiny", "device": "cpu"}
    return ActionRecognition(**(settings | folders | options))


@pytest.fixture(scope="module")
def clips(folders: dict[str, Path]) -> tuple[LabelledDataset, LabelledDataset]:
    pair = open_pair(folders["train"], folders["test"])
    train, test = packed(pair, folders["cache"], short_side=36, encoding="raw", every=1, progress=False)
    return train, test


def test_consensus_is_the_mean_of_the_logits_of_a_video() -> None:
    logits = torch.tensor([[1.0, 0.0], [2.0, 3.0], [6.0, 0.0], [5.0, 1.0], [5.0, 2.0], [5.0, 3.0]])
    assert consensus(logits, 3).tolist() == [[3, 1], [5, 2]]


def test_the_mean_over_classes_is_not_the_accuracy_over_all_videos() -> None:
    logits = torch.eye(3)[[0, 0, 0, 1, 0, 2]]
    figures = score(logits, torch.tensor([0, 0, 0, 0, 1, 2]), ("a", "b", "c"))
    assert figures["per_class"] == {"a": 75, "b": 0, "c": 100}
    assert figures["mean_class_accuracy"] == pytest.approx(175 / 3)
    assert figures["accuracy"] == pytest.approx(100 * 4 / 6)


def test_the_paper_preset_is_the_recipe_of_temporal_segment_networks() -> None:
    paper = ActionRecognition()
    assert (paper.epochs, paper.lr, paper.milestones, paper.batch_size, paper.clip) == (80, 0.001, (30, 60), 128, 20)
    assert (paper.segments, paper.test_frames, paper.test_crops, paper.split) == (3, 25, 10, "all")


def test_epochs_become_iterations(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = []

    def note(network: nn.Module, recipe: Recipe, *others: Any) -> None:
        recipes.append(recipe)

    monkeypatch.setattr("unshuffle.evaluation.action.fine_tune", note)
    small(folders, batch_size=5, milestones=(2, 5), lr=0.5, clip=3, test_crops=1).run(QUIET)
    assert recipes == [Recipe(iterations=6 * 4, lr=0.5, milestones=(8, 20), clip=3)]
    assert (recipes[0].momentum, recipes[0].weight_decay, recipes[0].decay) == (0.9, 5e-4, 0.1)


def test_only_the_backbone_is_not_new() -> None:
    backbone = build_backbone("tiny").for_evaluation()
    network = action_classifier(backbone, tuple("abcdefg"), 16, (0.5, 0.8))
    kinds = [type(layer) for layer in network.head]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert [layer.p for layer in network.head if isinstance(layer, nn.Dropout)] == [0.5, 0.8]
    assert network.backbone is backbone and network(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_an_epoch_has_every_video_once(clips: tuple[LabelledDataset, LabelledDataset]) -> None:
    stream = ClipBatches(clips[0], batch_size=4, segments=3, seed=0)
    assert stream.steps == 5
    for epoch in range(2):
        batches = [stream.batch(epoch * 5 + step) for step in range(5)]
        labels = torch.cat([batch.labels for batch in batches])
        assert [len(batch.labels) for batch in batches] == [4, 4, 4, 4, 2]
        assert torch.bincount(labels).tolist() == [6, 6, 6]
    assert not torch.equal(stream.batch(0).labels, stream.batch(5).labels)


def test_a_batch_keeps_crops_and_labels_together(clips: tuple[LabelledDataset, LabelledDataset]) -> None:
    batch = ClipBatches(clips[0], batch_size=18, segments=3, seed=1).batch(0)
    videos = [video for cut in batch.crops for video in cut.float()]
    assert len(videos) == len(batch.labels) == len(batch.hflip) and len(batch.crops) > 1
    for video, label in zip(videos, batch.labels.tolist(), strict=True):
        assert video.shape[0] == 3
        down, right = ((video[:, 1:] - video[:, :-1]).abs().mean(), (video[:, :, 1:] - video[:, :, :-1]).abs().mean())
        assert {0: 0.5 < down / right < 2, 1: down > 4 * right, 2: right > 4 * down}[label]


def test_a_batch_depends_on_seed_and_step_alone(clips: tuple[LabelledDataset, LabelledDataset]) -> None:
    def cuts(seed: int, step: int) -> list[torch.Tensor]:
        return ClipBatches(clips[0], 6, 3, seed).batch(step).crops

    for first, second in zip(cuts(0, 7), cuts(0, 7), strict=True):
        assert torch.equal(first, second)
    other_seed = cuts(1, 7)
    assert [cut.shape for cut in cuts(0, 7)] != [cut.shape for cut in other_seed]


def test_predictions_are_mean_logits_of_frames_and_crops(clips: tuple[LabelledDataset, LabelledDataset]) -> None:
    _, test = clips
    torch.manual_seed(0)
    network = action_classifier(build_backbone("tiny").for_evaluation(), ("a", "b", "c"), 16, (0.5, 0.5))
    logits = predict(network, test, 2, 10, 1, QUIET)
    assert logits.shape == (9, 3)
    item = int(test.items[4])
    pixels = test.source.read(item, [1, 4]).astype(np.float32) / 255  # 6 frames: the middles of 0-2 and of 3-5
    height, width = pixels.shape[1:3]
    total = torch.zeros(3)
    for frame in pixels:
        for top, left in [(0, 0), (0, width - 32), (height - 32, 0), (height - 32, width - 32), (2, (width - 32) // 2)]:
            crop = frame[top : top + 32, left : left + 32]
            for view in (crop, crop[:, ::-1]):
                with torch.no_grad():
                    total += network(normalise(torch.from_numpy(view.transpose(2, 0, 1).copy())[None]))[0] / 20
    torch.testing.assert_close(logits[4].float(), total, atol=1e-4, rtol=1e-4)


def printed(result: Result) -> str:
    output = StringIO()
    Console(file=output, width=200).print(result.table)
    return output.getvalue()


def test_stripes_are_recognised(folders: dict[str, Path]) -> None:
    result = small(folders).run(QUIET)
    metrics = result.metrics
    assert metrics["mean_class_accuracy"] > 70 and metrics["chance"] == pytest.approx(100 / 3)
    assert metrics["mean_class_accuracy"] == pytest.approx(np.mean(list(metrics["per_class"].values())))
    assert list(metrics["per_class"]) == list(CLASSES) and metrics["skipped"] == {"count": 0, "files": []}
    assert "own data; 18 videos to train on, 9 to test on, 3 classes; " in result.statement
    assert "chance" in printed(result) and "published" not in printed(result)


def test_a_packed_store_stands_for_its_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    pack("videos", folders["train"], tmp_path / "store", short_side=50, progress=False)
    result = small(folders, train=tmp_path / "store", epochs=1, test_crops=1).run(QUIET)
    assert "18 videos to train on" in result.statement and list(result.metrics["per_class"]) == list(CLASSES)


def test_a_training_that_diverges_gives_no_figure(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="lower the learning rate"):
        small(folders, lr=1e30).run(QUIET)


class Killed(Exception):
    """Stands for whatever breaks off an evaluation."""


def killed_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [steps]

    def stumble(*arguments: Any) -> torch.Tensor:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return consensus_loss(*arguments)

    monkeypatch.setattr("unshuffle.evaluation.action.consensus_loss", stumble)


def logits_of(evaluation: ActionRecognition, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    seen = []

    def keep(*arguments: Any, **options: Any) -> torch.Tensor:
        seen.append(predict(*arguments, **options))
        return seen[0]

    monkeypatch.setattr("unshuffle.evaluation.action.predict", keep)
    evaluation.measure(QUIET)  # which leaves the checkpoints
    return seen[0]


def test_a_resumed_evaluation_equals_an_uninterrupted_one(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = small(folders, epochs=3, milestones=(2,), dropout=(0.5, 0.5), test_crops=1)
    unbroken = logits_of(evaluation, monkeypatch)
    broken = replace(evaluation, out=tmp_path)
    with monkeypatch.context() as patched:
        killed_after(7, patched)  # in the third epoch of three steps each
        with pytest.raises(Killed):
            broken.run(QUIET)
    assert [path.name for path in (tmp_path / "unfinished" / "checkpoints" / "own-data").iterdir()] == ["00000006.pt"]
    with monkeypatch.context() as patched:
        killed_after(3, patched)  # no more than the last epoch is left to do
        torch.manual_seed(123)
        assert torch.equal(logits_of(broken, monkeypatch), unbroken)
        assert torch.equal(logits_of(replace(broken, workers=1), monkeypatch), unbroken), "only tested again"
    assert not torch.equal(logits_of(replace(evaluation, seed=1), monkeypatch), unbroken)
    for other in ({"lr": 0.5}, {"seed": 1}, {"weights": "random:resnet18"}, {"per_class": 3}):
        with pytest.raises(UserError, match="other options"):
            replace(broken, **other).run(QUIET)


def make_ucf(root: Path) -> Path:
    (root / "classInd.txt").write_text("1 Upright\n2 Flat\n")
    for number, held_back in ((1, "1"), (2, "2"), (3, "3")):
        train, test = [], []
        for label, kind in ((1, "Upright"), (2, "Flat")):
            for group in "123":
                name = f"{kind}/v_{kind}_g0{group}_c01.avi"
                write_clip(root / "UCF-101" / name, kind.lower(), 10 * int(group))
                if group == held_back:
                    test.append(name)
                else:
                    train.append(f"{name} {label}")
        (root / f"trainlist0{number}.txt").write_text("\n".join(train))
        (root / f"testlist0{number}.txt").write_text("\n".join(test))
    return root / "UCF-101"


def make_hmdb(root: Path) -> Path:
    for kind in ("flat", "upright"):
        for group in range(3):
            write_clip(root / "hmdb51" / kind / f"a_{kind}_{group}.avi", kind, 10 * group)
        for number in (1, 2, 3):
            lines = [f"a_{kind}_{group}.avi {2 if group + 1 == number else 1} \n" for group in range(3)]
            (root / f"{kind}_test_split{number}.txt").write_text("".join(lines))
    return root / "hmdb51"


@pytest.mark.parametrize(("make", "dataset"), [(make_ucf, "UCF-101"), (make_hmdb, "HMDB-51")])
def test_official_splits(tmp_path: Path, make: Callable[[Path], Path], dataset: str) -> None:
    videos = make(tmp_path)
    evaluation = small({}, list=tmp_path, videos=videos, cache=tmp_path / "cache", epochs=1, test_crops=1)
    result = evaluation.run(QUIET)
    assert len(list((tmp_path / "cache").iterdir())) == 1, "decoded once for all splits"
    splits = result.metrics["splits"]
    assert list(splits) == ["split_1", "split_2", "split_3"]
    for key in ("accuracy", "mean_class_accuracy"):
        assert result.metrics[key] == pytest.approx(np.mean([figures[key] for figures in splits.values()]))
    output = printed(result)
    assert "mean over classes" in output and "chance" in output and "50.0" in output
    assert "published" not in output, "one epoch is not the paper's protocol"
    alone = replace(evaluation, split="2").run(QUIET)
    assert alone.metrics["chance"] == 50
    assert alone.metrics["per_class"] == splits["split_2"]["per_class"] and "splits" not in alone.metrics


@pytest.mark.parametrize(
    ("changes", "dataset", "is_published"),
    [
        ({}, "UCF-101", True),
        ({}, "HMDB-51", True),
        ({}, "own data", False),
        ({"split": "2"}, "UCF-101", False),  # the paper's are means of three
        ({"classes": 10}, "UCF-101", False),
        ({"epochs": 3}, "UCF-101", False),
    ],
)
def test_published_figures_are_for_their_own_protocol(
    changes: dict[str, Any], dataset: str, is_published: bool
) -> None:
    metrics = {"mean_class_accuracy": 1.0, "accuracy": 2.0, "chance": 3.0}
    output = StringIO()
    Console(file=output, width=200).print(ActionRecognition(**changes)._table(metrics, dataset))
    assert (f"published, {dataset}" in output.getvalue()) == is_published and "chance" in output.getvalue()


def test_unreadable_videos_are_counted_and_reported(folders: dict[str, Path], tmp_path: Path) -> None:
    for kind in CLASSES:
        for number in range(8):
            write_clip(tmp_path / "many" / kind / f"v{number}.avi", kind, number, frames=2)
    (tmp_path / "many" / "flat" / "broken.avi").write_text("no video")
    console = Console(record=True, width=200, quiet=False, file=(tmp_path / "output").open("w"))
    settings = {"train": tmp_path / "many", "cache": tmp_path / "cache", "epochs": 1, "test_crops": 1}
    result: Result = small(folders, **settings).run(console)
    broken = str(tmp_path / "many/flat/broken.avi")
    assert [skipped["file"] for skipped in result.metrics["skipped"]["files"]] == [broken]
    output = console.export_text()
    assert "own data, videos to train on: 1 skipped" in output and "flat/broken.avi: cannot be decoded" in output
    assert "note: only 24 training videos for 3 classes, 8 of each" in output
    write_clip(tmp_path / "many" / "flat" / "short.avi", "flat", 0, frames=1)
    with pytest.raises(
        UserError, match=r"2 of 26 videos to train on in .* cannot be read.*flat/broken.avi \(cannot be decoded"
    ):
        small(folders, **settings).run(QUIET)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": ""}, "give --weights"),
        ({"test": None}, "give --train and --test"),
        ({"list": Path("x")}, "give --train and --test"),
        ({"train": Path("absent")}, "absent does not exist or is not a folder"),
        ({"epochs": 0}, "epochs is 0, but must be 1 or more"),
        ({"classes": 1}, "classes is 1, but must be 2 or more"),
        ({"dropout": (0.5, 1.0)}, "dropout is 1.0, but must be 0 or more and below 1"),
    ],
)
def test_bad_options(folders: dict[str, Path], options: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        small(folders, **options).run(QUIET)


def test_the_command(folders: dict[str, Path], tmp_path: Path) -> None:
    assert find_evaluation("action") is ActionRecognition
    paths = [f"--{name}={path}" for name, path in folders.items()]
    options = ["--weights=random:tiny", "--preset=quick", "--epochs=1", "--every=1", f"--json={tmp_path / 'x.json'}"]
    assert run_command(["evaluate", "action", *paths, *options]) == 0
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["command"] == "evaluate action" and written["config"]["epochs"] == 1
    assert written["metrics"].keys() >= {"mean_class_accuracy", "accuracy", "per_class"}


def touched(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def empty_videos(tmp_path: Path) -> tuple[Path, Path]:
    return (
        touched(tmp_path / "train", ["run/a.mp4", "run/b.mp4", "jump/c.mp4", "jump/deep/d.mp4"]),
        touched(tmp_path / "test", ["run/e.mp4", "jump/f.mp4"]),
    )


def split_of(train: Path, test: Path) -> Split:
    split = Split("own data", None, *open_pair(train, test))
    split.check()
    return split


def test_class_folders_are_a_split(empty_videos: tuple[Path, Path]) -> None:
    split = split_of(*empty_videos)
    assert split.name == "own data" and split.classes == ["jump", "run"]
    assert split.train.names == ["jump/c.mp4", "jump/deep/d.mp4", "run/a.mp4", "run/b.mp4"]
    assert split.train.labels == [0, 0, 1, 1]
    assert split.test.names == ["jump/f.mp4", "run/e.mp4"] and split.test.labels == [0, 1]


def test_class_folders_that_make_no_sense(empty_videos: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = empty_videos
    with pytest.raises(UserError, match="in the training data and in the test data"):
        split_of(train, train)
    with pytest.raises(UserError, match="two or more classes"):
        split_of(touched(tmp_path / "one", ["run/a.mp4"]), touched(tmp_path / "other", ["run/b.mp4"]))
    (test / "swim").mkdir()
    with pytest.raises(UserError, match=r"1 of the 3 classes of .*test have no videos \(swim\)"):
        split_of(train, test)
    touched(test, ["swim/h.mp4"])
    with pytest.raises(UserError, match=r"classes that the training data lacks: swim"):
        split_of(train, test)
    (train / "swim").mkdir()
    with pytest.raises(UserError, match=r"1 of the 3 classes of .*train have no videos \(swim\)"):
        split_of(train, test)
    touched(train, ["swim/g.mp4"])
    assert len(split_of(train, test).test) == 3
    (test / "swim" / "h.mp4").unlink()
    (test / "swim").rmdir()
    with pytest.raises(UserError, match=r"class swim has no readable video in .*test"):
        split_of(train, test)


def test_images_are_not_actions(classes: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="holds images, but action recognition needs videos"):
        split_of(*classes)


def test_a_shortened_split() -> None:
    source = FileSource(Path("x"), [Path("x", name) for name in "abcdefg"], "videos")
    labels = [0, 1, 2, 0, 1, 0, 2]
    dataset = LabelledDataset("x", source, range(7), labels, ["p", "q", "r"], "videos", skipped=[("z", "absent")])
    split = Split("own data", None, dataset, dataset)

    def pairs(dataset: LabelledDataset) -> list[tuple[str, int]]:
        return list(zip(dataset.names, dataset.labels, strict=True))

    short = split.limited(2, 2)
    assert short.classes == ["p", "q"] and pairs(short.train) == [("a", 0), ("b", 1), ("d", 0), ("e", 1)]
    assert short.test.skipped == [], "nothing is missing of what was asked for"
    assert split.limited(None, None) == split
    assert pairs(split.limited(None, 1).test) == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("trainlist01.txt", "Upright/v_Upright_g02_c01.avi 1\n", "class Flat has no readable video"),
        ("testlist01.txt", "Upright/v_Upright_g02_c01.avi\nFlat/v_Flat_g02_c01.avi\n", "in the training data and in"),
        ("classInd.txt", "1 Upright\n2 Flat\n3 Diving\n", "class Diving has no readable video"),
    ],
)
def test_official_lists_that_make_no_sense(tmp_path: Path, file: str, text: str, match: str) -> None:
    videos = make_ucf(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=match):
        official_split(tmp_path, videos, 1).check()
