"""Every evaluation with every source of data: what the labels and the kind of data allow works, the rest is refused."""

import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle.config import demo
from unshuffle.data.dataset import Square, open_dataset
from unshuffle.data.pack import pack
from unshuffle.errors import UserError
from unshuffle.evaluation.action import ActionRecognition
from unshuffle.evaluation.classification import Classification, FineTuning
from unshuffle.evaluation.embed import embed_to_file
from unshuffle.evaluation.features import find_backbone
from unshuffle.evaluation.monitor import build_retrieval_monitor
from unshuffle.evaluation.probes import Linear, NonLinear
from unshuffle.evaluation.protocol import Evaluation
from unshuffle.evaluation.rankme import RankMe
from unshuffle.evaluation.retrieval import Retrieval
from unshuffle.options import merge

QUIET = Console(quiet=True)
CLASSES = ("across", "chess", "down")
FRAMES = 2


@dataclass(frozen=True)
class Pair:
    """Addresses of a training and a test dataset, the number of readable items of each and of unreadable ones."""

    train: str
    test: str
    counts: tuple[int, int]
    unreadable: tuple[int, int] = (0, 0)


def write_shard(folder: Path, shard: Path) -> None:
    with tarfile.open(shard, "w") as tar:
        for path in sorted(folder.glob("*/*")):
            tar.add(path, path.relative_to(folder).as_posix())


def write_objects(root: Path, classes: tuple[Path, Path], annotate: Callable) -> None:
    """Write the images of two class folders as a devkit, with one object that fills each image."""
    folder = root / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    names = dict(zip(CLASSES, ("cat", "dog", "cow"), strict=True))
    for side, images in zip(("train", "test"), classes, strict=True):
        listed = []
        for path in sorted(images.glob("*/?.png")):
            listed.append(f"{side}_{path.parent.name}_{path.stem}")
            Image.open(path).convert("RGB").resize((110, 110)).save(folder / "JPEGImages" / f"{listed[-1]}.jpg")
            annotate(folder / "Annotations" / f"{listed[-1]}.xml", [(names[path.parent.name], (1, 1, 110, 110), False)])
        (folder / "ImageSets/Main" / f"{side}.txt").write_text("\n".join(listed))


def write_split_lists(root: Path, sides: dict[str, Path]) -> None:
    """Write the videos of two class folders into one folder, and the lists of UCF-101 that tell them apart."""
    (root / "lists").mkdir(parents=True)
    (root / "lists/classInd.txt").write_text("".join(f"{number} {name}\n" for number, name in enumerate(CLASSES, 1)))
    for side, folder in sides.items():
        listed = []
        for path in sorted(folder.glob("*/*.mp4")):
            listed.append(f"{path.parent.name}/{side}_{path.name}")
            (root / path.parent.name).mkdir(exist_ok=True)
            shutil.copy(path, root / listed[-1])
        (root / f"lists/{side}list01.txt").write_text("\n".join(listed))


@pytest.fixture(scope="module")
def pairs(
    classes: tuple[Path, Path],
    class_clips: tuple[Path, Path],
    annotate: Callable,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("sources")
    videos = {side: root / "videos" / side for side in ("train", "test")}
    for (side, copy), folder in zip(videos.items(), class_clips, strict=True):
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("broken.mp4"))
        pack("videos", copy, root / f"video_store_{side}", short_side=96, progress=False)
        write_shard(copy, root / f"videos_{side}.tar")
    for side, folder in zip(videos, classes, strict=True):
        pack("images", folder, root / f"image_store_{side}", short_side=108, progress=False)
        write_shard(folder, root / f"images_{side}.tar")
    write_objects(root, classes, annotate)
    write_split_lists(root / "ucf", videos)

    def pair(address: str, *numbers: tuple[int, int]) -> Pair:
        train, test = (address.format(root=root, side=side) for side in ("train", "test"))
        return Pair(train, test, *numbers)

    return {
        "image folders": Pair(str(classes[0]), str(classes[1]), (24, 15), (1, 1)),
        "image stores": pair("{root}/image_store_{side}", (24, 15)),
        "image shards": pair("{root}/images_{side}.tar", (24, 15), (1, 1)),
        "synthetic images": Pair("synthetic:images:60:0", "synthetic:images:24:1", (60, 24)),
        "objects of VOC": pair("{root}/VOC2007/ImageSets/Main/{side}.txt", (23, 14)),
        "video folders": pair("{root}/videos/{side}", (9, 6)),
        "video stores": pair("{root}/video_store_{side}", (9, 6)),
        "video shards": pair("{root}/videos_{side}.tar", (9, 6)),
        "split lists": pair("{root}/ucf/lists/{side}list01.txt", (9, 6)),
        "synthetic videos": Pair("synthetic:videos:18:0", "synthetic:videos:12:1", (18, 12)),
    }


IMAGES = ["image folders", "image stores", "image shards", "synthetic images", "objects of VOC"]
VIDEOS = ["video folders", "video stores", "video shards", "split lists", "synthetic videos"]
EVALUATIONS: dict[str, Evaluation] = {
    "retrieval": Retrieval(frames=FRAMES),
    "linear": Linear(fast=True, layers=("pool5",)),
    "nonlinear": NonLinear(iterations=2, hidden=8, batch_size=12),
    "finetune": FineTuning(epochs=1, batch_size=12),
    "action": ActionRecognition(
        epochs=1, batch_size=6, hidden=8, segments=2, test_frames=FRAMES, test_crops=1, encoding="raw"
    ),
}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lead the cache, which holds the index of shards and decoded videos, into the folder of the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def prepared(name: str, pair: Pair) -> Evaluation:
    options = {"weights": "random:tiny", "device": "cpu", "workers": 1, "train": pair.train, "test": pair.test}
    return replace(EVALUATIONS[name], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", IMAGES + VIDEOS)
@pytest.mark.parametrize("name", EVALUATIONS)
def test_labelled_data(name: str, source: str, pairs: dict[str, Pair]) -> None:
    pair, evaluation = pairs[source], prepared(name, pairs[source])
    if isinstance(evaluation, Classification) and source in VIDEOS:
        with pytest.raises(UserError, match="holds videos, but this evaluation classifies images"):
            evaluation.run(QUIET)
        return
    if name == "action" and source in IMAGES:
        with pytest.raises(UserError, match=r"holds (images|objects), but action recognition needs videos"):
            evaluation.run(QUIET)
        return
    result = evaluation.run(QUIET)
    assert result.metrics["skipped"]["count"] == sum(pair.unreadable)
    if name == "action":
        assert "{} videos to train on, {} to test on".format(*pair.counts) in result.statement
        return
    keys = ("gallery", "queries") if name == "retrieval" else ("train_images", "test_images")
    frames = FRAMES if source in VIDEOS else 1
    assert tuple(result.metrics[key] for key in keys) == tuple(frames * count for count in pair.counts)


@pytest.mark.parametrize("name", ["retrieval", "linear"])
def test_shards_give_the_figures_of_the_folders_that_they_hold(name: str, pairs: dict[str, Pair]) -> None:
    folders, shards = (prepared(name, pairs[source]).run(QUIET).metrics for source in ("image folders", "image shards"))
    assert {**folders, "skipped": None} == {**shards, "skipped": None}


@pytest.mark.parametrize("source", IMAGES + VIDEOS)
def test_rankme(source: str, pairs: dict[str, Pair]) -> None:
    pair = pairs[source]
    result = RankMe(weights="random:tiny", device="cpu", workers=1, images=pair.train).run(QUIET)
    assert result.metrics["images"] == pair.counts[0] and result.metrics["rankme"] > 1
    assert result.metrics["skipped"]["count"] == pair.unreadable[0]


@pytest.mark.parametrize("source", IMAGES + VIDEOS)
def test_embed(source: str, pairs: dict[str, Pair], tmp_path: Path) -> None:
    pair, backbone = pairs[source], find_backbone("random:tiny")
    dataset = open_dataset(pair.train, labelled=False, square=Square(64), frames=FRAMES)
    out = tmp_path / "features.npy"
    embedded = embed_to_file(backbone, dataset, out, pool="avg", device=torch.device("cpu"), workers=1, bar=False)
    assert (embedded.rows, len(embedded.skipped)) == (pair.counts[0], pair.unreadable[0])
    assert len(np.load(tmp_path / "features.npy")) == pair.counts[0]
    names = (tmp_path / "features.names.csv").read_text().splitlines()[1:]
    assert len(set(names)) == pair.counts[0], "every row has a name of its own"


@pytest.mark.parametrize("source", IMAGES + VIDEOS)
def test_monitor(source: str, pairs: dict[str, Pair]) -> None:
    pair = pairs[source]
    changes = {"device": "cpu", "model": {"backbone": "tiny"}, "monitor": {"gallery": pair.train, "queries": pair.test}}
    console = Console(file=StringIO())
    monitor = build_retrieval_monitor(merge(demo(), changes), console)
    assert monitor is not None and (len(monitor.gallery), len(monitor.queries)) == pair.counts
    assert console.file.getvalue().count(": 1 skipped") == sum(pair.unreadable)  # type: ignore[attr-defined]
