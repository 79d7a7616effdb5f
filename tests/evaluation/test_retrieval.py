import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from unshuffle import cli
from unshuffle.data.dataset import open_dataset
from unshuffle.errors import UserError
from unshuffle.evaluation import features, retrieval
from unshuffle.evaluation.features import FeatureChunk, Pool, pool5
from unshuffle.evaluation.retrieval import (
    Retrieval,
    chance_accuracy,
    rebatched,
    top_k_accuracy,
)
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.weights import write_weights

CPU = torch.device("cpu")
Cosine = Callable[[list[float], list[float]], float]
Nearest = Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]


def test_top_k_against_loops() -> None:
    rng = np.random.default_rng(0)
    neighbours = np.stack([rng.permutation(30)[:12] for _ in range(40)])
    queries, gallery = rng.integers(0, 8, 40), rng.integers(0, 8, 30)
    scores = top_k_accuracy(*(torch.from_numpy(array) for array in (neighbours, queries, gallery)))
    expected = {}
    for k in (1, 5, 10):
        hits = sum(
            any(gallery[item] == query for item in row[:k]) for row, query in zip(neighbours, queries, strict=True)
        )
        expected[f"top{k}"] = pytest.approx(100 * hits / 40)
    assert scores == expected, "top20 needs twenty neighbours"
    assert 0 < scores["top1"] < scores["top5"] < scores["top10"] <= 100


def test_chance_against_every_order_of_the_gallery() -> None:
    queries, gallery = torch.tensor([0, 0, 1, 3]), torch.tensor([0, 0, 1, 2, 1])
    orders = list(permutations(range(5)))
    neighbours = torch.tensor(orders)
    expected = {
        f"top{k}": np.mean(
            [top_k_accuracy(neighbours, torch.full((len(orders),), q), gallery, (k,))[f"top{k}"] for q in queries]
        )
        for k in (1, 2, 5)
    }
    assert chance_accuracy(queries, gallery, (1, 2, 5, 6)) == pytest.approx(expected), "six are not in the gallery"


QUIET = Console(quiet=True)
TINY = {"weights": "random:tiny", "device": "cpu", "workers": 1}


def test_the_command(classes: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = map(str, classes)
    line = ["retrieval", "--weights", "random:tiny", "--train", train, "--test", test, "--device", "cpu"]
    extra = ["--top", "1", "5", "--json", str(tmp_path / "a.json"), "--out", str(tmp_path / "out")]
    assert cli.run(["evaluate", *line, *extra]) == 0
    output = capsys.readouterr().out
    assert "15 queries" in output and "gallery of 24" in output and "centre square at 96 px" in output
    assert "published" not in output and "VOC" not in output
    assert "\nchance " in output and "\nuntrained" not in output, "this network is the untrained one"
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["command"] == "evaluate retrieval" and document["protocol"] == "retrieval, per image"
    assert document["config"]["top"] == [1, 5] and document["config"]["train"] == train
    metrics = document["metrics"]
    assert metrics["top1"] > 80, "chance is 33"
    assert metrics["queries"] == 15 and metrics["gallery"] == 24 and metrics["skipped"]["count"] == 2
    assert (tmp_path / "out" / "neighbours.png").stat().st_size > 1000


def test_chance_and_the_untrained_network_stand_beside_the_figures(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = classes
    options = {**TINY, "train": train, "test": test, "top": (1, 5)}
    untrained = Retrieval(**options).run(QUIET)
    assert untrained.metrics["untrained"] == {key: untrained.metrics[key] for key in ("top1", "top5")}
    backbone = build_backbone("tiny")
    for weight in backbone.parameters():
        torch.nn.init.constant_(weight, 0.01)  # all features are alike
    write_weights(backbone, {"architecture": "tiny"}, tmp_path / "w.safetensors")
    result = Retrieval(**{**options, "weights": str(tmp_path / "w.safetensors")}).run(QUIET)
    assert result.metrics["untrained"] == untrained.metrics["untrained"]
    assert result.metrics["untrained"]["top1"] > result.metrics["top1"]
    assert result.metrics["chance"]["top1"] == pytest.approx(100 / 3)
    assert result.metrics["chance"]["top5"] > 50
    output = StringIO()
    Console(file=output, width=200).print(result.table)
    rows = [line.split()[0] for line in output.getvalue().splitlines()]
    assert rows == ["[%]", "this", "untrained", "chance"]


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"voc": "devkit"}, "VOC 2007"),
        ({"voc": "devkit", "top": (1,), "seed": 3}, "VOC 2007"),
        ({"voc": "devkit", "year": 2012}, None),
        ({"voc": "devkit", "min_pixels": 600}, None),
        ({"voc": "devkit", "limit": 5}, None),
        ({"train": "mine", "test": "yours"}, None),
    ],
)
def test_published_figures_are_for_their_own_protocol(changes: dict[str, object], data: str | None) -> None:
    evaluation = Retrieval(**changes)
    rows = {name: {"top1": 1.0} for name in ("this network", "chance")}
    output = StringIO()
    kind = "objects" if "voc" in changes else "images"
    Console(file=output, width=200).print(evaluation._table(rows, kind, frozenset()))
    assert (f"published, {data}" in output.getvalue()) == ("54.3" in output.getvalue()) == (data is not None)


def test_published_figures_of_videos_are_for_split_1_of_ucf_101(tmp_path: Path) -> None:
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "classInd.txt").write_text("1 A\n2 B\n")
    (tmp_path / "A").mkdir()
    (tmp_path / "A" / "v.avi").touch()
    for number in (1, 2):
        (lists / f"trainlist0{number}.txt").write_text("A/v.avi 1\n")
        (lists / f"testlist0{number}.txt").write_text("A/v.avi\n")
    sides = [{"train": str(lists / f"trainlist0{n}.txt"), "test": str(lists / f"testlist0{n}.txt")} for n in (1, 2)]
    assert [Retrieval(**side)._published_data("videos") for side in sides] == ["UCF-101", None]
    assert Retrieval(train=str(tmp_path), test=str(tmp_path))._published_data("videos") is None


def test_training_images_find_themselves(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train, _ = classes
    result = Retrieval(**TINY, train=train, test=train, batch_size=3, out=tmp_path).run(QUIET)
    assert result.metrics["top1"] == 100
    shown = result.neighbours
    assert shown is not None and len(shown.queries) == 3 and len(shown.neighbours) == 15
    assert result.metrics["shared_files"] == 25 and "25 of the test files are training files too" in result.statement
    assert (shown.neighbours.pixels[::5] == shown.queries.pixels).all()


def test_an_interrupted_search_resumes(
    classes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "PART", 4)
    evaluation = Retrieval(**TINY, train=classes[0], test=classes[1], out=tmp_path)
    unbroken = replace(evaluation, out=None).run(QUIET)
    done: list[int] = []

    def stopped(backbone: Backbone, pixels: torch.Tensor, size: int, pool: Pool) -> torch.Tensor:
        done.append(len(pixels))
        if len(done) == 7:
            signal.raise_signal(signal.SIGTERM)
        return pool5(backbone, pixels, size, pool)

    monkeypatch.setattr(retrieval, "pool5", stopped)
    line = ["retrieval", "--weights", "random:tiny", "--train", str(classes[0]), "--test", str(classes[1])]
    assert cli.run(["evaluate", *line, "--device", "cpu", "--out", str(tmp_path)]) == 128 + signal.SIGTERM
    before = sum(done[:-1])
    done.clear()
    again = evaluation.run(QUIET)
    assert again.metrics == unbroken.metrics and sum(done) == 24 + 15 - before, "what was done is not done again"
    assert not (tmp_path / "unfinished").exists()


def test_a_class_that_cannot_be_read_is_refused(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train = shutil.copytree(classes[0], tmp_path / "train")
    for file in (train / "chess").iterdir():
        file.write_text("no image")
    with pytest.raises(UserError, match="the class chess has no readable file"):
        Retrieval(**TINY, train=train, test=classes[1]).run(QUIET)


def test_videos_frame_by_frame_and_as_a_whole(class_clips: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = class_clips
    options = {**TINY, "train": train, "test": test, "frames": 4}
    frames = Retrieval(**options).run(QUIET)
    assert frames.protocol == "retrieval, per frame" and frames.metrics["top1"] > 80
    assert (frames.metrics["queries"], frames.metrics["gallery"], frames.metrics["skipped"]["count"]) == (24, 36, 2)
    videos = Retrieval(**options, per_video=True, out=tmp_path).run(QUIET)
    assert (videos.metrics["queries"], videos.metrics["gallery"]) == (6, 9) and videos.metrics["top1"] > 80
    assert "top10" not in videos.metrics, "there are nine videos"


def test_objects_of_voc(devkit: Callable[..., Path]) -> None:
    root = devkit(trainval=12, test=6)
    result = Retrieval(**TINY, voc=root, min_pixels=600).run(QUIET)
    assert result.protocol == "retrieval, per object" and "VOC2007 trainval" in result.statement
    assert "600 pixels or more" in result.statement and result.metrics["gallery"] >= 12
    (root / "VOC2007/Annotations/000003.xml").write_text("<annotation><object><name>yeti</name></object></annotation>")
    fewer = Retrieval(**TINY, voc=root, min_pixels=600).run(QUIET)
    reason = "it is annotated with 'yeti', which is not a VOC class"
    assert fewer.metrics["skipped"] == {"count": 1, "files": [{"file": "000003", "reason": reason}]}
    itself = Retrieval(**TINY, voc=root, test_set="trainval", min_pixels=600).run(QUIET)
    assert itself.metrics["top1"] == 100


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "missing argument: --weights"),
        ("--weights random:tiny", "give --train and --test"),
        ("--weights random:tiny --voc here --train there", "not both"),
        ("--weights random:tiny --voc nowhere", "no VOC devkit"),
        ("--weights random:tiny --top 0", "top is 0, but must be 1 or more"),
        ("--weights random:tiny --json no/such.json", "no folder no"),
        (f"--weights random:tiny --out {__file__}", "--out must be a folder"),
        ("--weights random:caffenet --size 20", "size 20 does not suit this backbone: "),
        ("--weights random:tiny --limit -1", "limit is -1, but must be 0 or more"),
        ("--weights random:tiny --preset best", "--preset"),
        ("--weights random:tiny --gallery x", "--gallery"),
    ],
)
def test_mistakes(options: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["evaluate", "retrieval", *options.split()]) == 2
    output = capsys.readouterr().err
    assert sentence in output and len(output.splitlines()) == 1


def test_per_video_is_for_videos(classes: tuple[Path, Path], class_clips: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="per_video is for videos"):
        Retrieval(**TINY, train=classes[0], test=classes[1], per_video=True).run(QUIET)
    with pytest.raises(ValueError, match=r"holds images, but .* holds videos"):
        Retrieval(**TINY, train=classes[0], test=class_clips[1]).run(QUIET)


def test_rebatched_keeps_all_rows_in_order() -> None:
    chunks = [FeatureChunk(torch.arange(n)[:, None] + 0.5, torch.arange(n)) for n in (2, 2, 1, 3, 1)]
    large = list(rebatched(iter(chunks), 4))
    assert [len(chunk.items) for chunk in large] == [4, 4, 1]
    assert torch.equal(torch.cat([c.items for c in large]), torch.cat([c.items for c in chunks]))
    assert torch.equal(torch.cat([c.values for c in large]), torch.cat([c.values for c in chunks]))


def test_pooled_features_can_be_compared(classes: tuple[Path, Path]) -> None:
    results = {
        pool: Retrieval(**TINY, train=classes[0], test=classes[1], pool=pool).run(QUIET) for pool in ("flat", "avg")
    }
    assert results["flat"].metrics["top1"] > 80 and results["avg"].metrics["top1"] > 33
    assert "differs from --preset paper: pool avg" in results["avg"].statement
    assert "not as in" not in results["flat"].statement


def test_quick_takes_few(classes: tuple[Path, Path]) -> None:
    assert Retrieval.quick().limit == 500 and Retrieval().limit == 0
    few = Retrieval(**TINY, train=classes[0], test=classes[1], limit=6).run(QUIET)
    assert few.metrics["queries"] <= 6 and few.metrics["gallery"] <= 6
    assert len(open_dataset(classes[0]).limited(6)) == 6
