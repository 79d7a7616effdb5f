import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from unshuffle import cli
from unshuffle.errors import UserError
from unshuffle.evaluation import retrieval, streaming
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.items import class_folders
from unshuffle.evaluation.retrieval import Retrieval, merged
from unshuffle.evaluation.streaming import Chunk
from unshuffle.models import Backbone

QUIET = Console(quiet=True)
TINY = {"weights": "random:tiny", "device": "cpu", "workers": 1}


def test_the_command(classes: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = map(str, classes)
    line = ["retrieval", "--weights", "random:tiny", "--train", train, "--test", test, "--device", "cpu"]
    extra = ["--top", "1", "5", "--json", str(tmp_path / "a.json"), "--out", str(tmp_path / "out")]
    assert cli.run(["evaluate", *line, *extra]) == 0
    said = capsys.readouterr().out
    assert "15 queries" in said and "gallery of 24" in said and "centre square at 96 px" in said
    assert "published, other data (VOC 2007)" in said and "73.0" in said
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["command"] == "evaluate retrieval" and document["protocol"] == "retrieval, per image"
    assert document["config"]["top"] == [1, 5] and document["config"]["train"] == train
    metrics = document["metrics"]
    assert metrics["top1"] > 80, "blind guessing gives 33"
    assert metrics["queries"] == 15 and metrics["gallery"] == 24 and metrics["skipped"]["count"] == 2
    assert (tmp_path / "out" / "neighbours.png").stat().st_size > 1000


def test_training_images_find_themselves(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train, _ = classes
    result = Retrieval(**TINY, train=train, test=train, batch_size=3, out=tmp_path).run(QUIET)
    assert result.metrics["top1"] == 100
    shown = result.neighbours
    assert shown is not None and len(shown.queries) == 3 and len(shown.found) == 15
    assert result.metrics["shared_files"] == 25 and "25 of the test files are training files too" in result.statement
    assert (shown.found.pixels[::5] == shown.queries.pixels).all()


def test_a_broken_off_search_goes_on(
    classes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PART", 4)
    evaluation = Retrieval(**TINY, train=classes[0], test=classes[1], out=tmp_path)
    unbroken = replace(evaluation, out=None).run(QUIET)
    done: list[int] = []

    def stopped(backbone: Backbone, pixels: torch.Tensor, size: int) -> torch.Tensor:
        done.append(len(pixels))
        if len(done) == 7:
            signal.raise_signal(signal.SIGTERM)
        return pool5(backbone, pixels, size)

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
        ("", "still missing: --weights"),
        ("--weights random:tiny", "give --train and --test"),
        ("--weights random:tiny --voc here --train there", "not both"),
        ("--weights random:tiny --voc nowhere", "no VOC devkit"),
        ("--weights random:tiny --top 0", "--top is 0, but must be above 0"),
        ("--weights random:tiny --json no/such.json", "no folder no"),
        (f"--weights random:tiny --out {__file__}", "--out must be a folder"),
        ("--weights random:caffenet --size 20", "size 20 does not suit this backbone: "),
        ("--weights random:tiny --limit -1", "--limit is -1, but must not be negative"),
        ("--weights random:tiny --preset best", "--preset"),
        ("--weights random:tiny --gallery x", "--gallery"),
    ],
)
def test_mistakes(options: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["evaluate", "retrieval", *options.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.splitlines()) == 1


def test_per_video_is_for_videos(classes: tuple[Path, Path], class_clips: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="per_video is for videos"):
        Retrieval(**TINY, train=classes[0], test=classes[1], per_video=True).run(QUIET)
    with pytest.raises(ValueError, match=r"holds images, but .* holds videos"):
        Retrieval(**TINY, train=classes[0], test=class_clips[1]).run(QUIET)


def test_merged_keeps_all_rows_in_order() -> None:
    chunks = [Chunk(torch.arange(n)[:, None] + 0.5, torch.arange(n)) for n in (2, 2, 1, 3, 1)]
    large = list(merged(iter(chunks), 4))
    assert [len(chunk.items) for chunk in large] == [4, 4, 1]
    assert torch.equal(torch.cat([c.items for c in large]), torch.cat([c.items for c in chunks]))
    assert torch.equal(torch.cat([c.values for c in large]), torch.cat([c.values for c in chunks]))


def test_quick_takes_few(classes: tuple[Path, Path]) -> None:
    assert Retrieval.quick().limit == 500 and Retrieval().limit == 0
    few = Retrieval(**TINY, train=classes[0], test=classes[1], limit=6).run(QUIET)
    assert few.metrics["queries"] <= 6 and few.metrics["gallery"] <= 6
    assert len(class_folders(classes[0]).first(6)) == 6
