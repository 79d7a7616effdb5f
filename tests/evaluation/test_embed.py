import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation import streaming
from unshuffle.evaluation.collection import Collection, open_collection
from unshuffle.evaluation.embed import Embedder, embed
from unshuffle.evaluation.features import preprocess
from unshuffle.models import Backbone, build_backbone

SIZE = 32


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> Backbone:
    monkeypatch.setattr(streaming, "PART", 2)
    torch.manual_seed(0)
    return build_backbone("tiny").for_evaluation()


def embedder(backbone: Backbone, batch: int = 64) -> Embedder:
    return Embedder(backbone, SIZE, torch.device("cpu"), batch)


def names_of(out: Path) -> list[str]:
    return [row["file"] for row in csv.DictReader(out.with_suffix(".names.csv").open(newline=""))]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_row_is_pool5_of_the_image(backbone: Backbone, pictures: Path, tmp_path: Path, batch: int) -> None:
    out = tmp_path / "new" / "f.npy"
    out.parent.mkdir()
    done = embed(embedder(backbone, batch), open_collection(pictures, SIZE), out, bar=False)
    rows, names = np.load(out), names_of(out)
    assert done.rows == len(names) == 7 and rows.shape == (7, done.dimensions) and rows.dtype == np.float32
    for name, row in zip(names, rows, strict=True):
        with torch.no_grad():
            expected = backbone(preprocess(read_image(pictures / name), SIZE)[None]).flatten()
        assert float(torch.cosine_similarity(torch.from_numpy(row), expected, dim=0)) > 0.999
    skipped = list(csv.reader((tmp_path / "new" / "f.skipped.csv").open()))
    assert [row[0] for row in skipped] == ["file", "broken.jpg", "in/empty.png"]
    assert [name for name, _ in done.skipped] == ["broken.jpg", "in/empty.png"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["f.names.csv", "f.npy", "f.skipped.csv"]


def test_a_video_is_the_mean_of_its_frames(backbone: Backbone, clips: Path, tmp_path: Path) -> None:
    data = open_collection(clips, SIZE, frames=3)
    embed(embedder(backbone, batch=2), data, tmp_path / "f.npy", bar=False)
    assert names_of(tmp_path / "f.npy") == ["04.mp4", "09.mp4", "14.mp4"]
    for item, row in enumerate(np.load(tmp_path / "f.npy")):
        with torch.no_grad():
            frames = [backbone(preprocess(frame, SIZE)[None]).flatten() for frame in data.read(item)]
        np.testing.assert_allclose(row, torch.stack(frames).mean(dim=0), atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_formats(backbone: Backbone, pictures: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    done = embed(embedder(backbone), open_collection(pictures, SIZE), tmp_path / f"f{suffix}", bar=False)
    assert done.rows == 7 and (tmp_path / f"f{suffix}").stat().st_size > 4 * 7 * done.dimensions


def test_what_an_earlier_file_had_skipped_is_forgotten(backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.npy"
    embed(embedder(backbone), open_collection(pictures, SIZE), out, bar=False)
    assert (tmp_path / "f.skipped.csv").exists()
    for name in ("f.npy", "pictures/broken.jpg", "pictures/in/empty.png"):
        (tmp_path / name).unlink()
    embed(embedder(backbone), open_collection(pictures, SIZE), out, bar=False)
    assert not (tmp_path / "f.skipped.csv").exists()


class Killed(BaseException):
    """What a kill is to a program."""


def killed_at(data: Collection, item: int) -> Collection:
    def read(wanted: int) -> Pixels:
        if wanted == item:
            raise Killed
        return data.read(wanted)

    return replace(data, read=read)


def counted(data: Collection, seen: list[int]) -> Collection:
    def read(wanted: int) -> Pixels:
        seen.append(wanted)
        return data.read(wanted)

    return replace(data, read=read)


def test_a_broken_off_run_is_gone_on_with(
    backbone: Backbone, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = open_collection(pictures, SIZE), tmp_path / "f.npy"
    embed(embedder(backbone), data, tmp_path / "unbroken.npy", bar=False)
    with pytest.raises(Killed):
        embed(embedder(backbone), killed_at(data, 5), out)
    assert not out.exists() and "going on" not in capsys.readouterr().err
    parts = sorted((tmp_path / "f.npy.parts").glob("*.npz"))
    assert [part.stem for part in parts] == ["000000000", "000000002"]
    seen: list[int] = []
    embed(embedder(backbone), counted(data, seen), out)
    assert "going on: 4 of 9 images were done before" in capsys.readouterr().err
    assert sorted(seen) == [4, 5, 6, 7, 8], "what was done is not done again"
    assert out.read_bytes() == (tmp_path / "unbroken.npy").read_bytes()
    assert names_of(out) == names_of(tmp_path / "unbroken.npy")
    assert not (tmp_path / "f.npy.parts").exists()


@pytest.mark.parametrize("change", ["weights", "size", "files"])
def test_parts_of_another_job_are_not_taken(backbone: Backbone, pictures: Path, tmp_path: Path, change: str) -> None:
    with pytest.raises(Killed):
        embed(embedder(backbone), killed_at(open_collection(pictures, SIZE), 5), tmp_path / "f.npy", bar=False)
    other, size = embedder(backbone), SIZE
    if change == "weights":
        other = embedder(build_backbone("tiny").for_evaluation())
    elif change == "size":
        other, size = replace(other, size=SIZE + 8), SIZE + 8
    else:
        (pictures / "z.png").unlink()
    with pytest.raises(UserError, match="was begun with other files, weights or options"):
        embed(other, open_collection(pictures, size), tmp_path / "f.npy", bar=False)


def test_mistakes(backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    data = open_collection(pictures, SIZE)
    with pytest.raises(UserError, match="a batch of 0"):
        embedder(backbone, batch=0)
    with pytest.raises(UserError, match="short side of 8"):
        Embedder(backbone, 8, torch.device("cpu"))
    caffenet = build_backbone("caffenet").for_evaluation()
    with pytest.raises(UserError, match="size 40 does not suit this backbone: "):
        embed(Embedder(caffenet, 40, torch.device("cpu")), data, tmp_path / "f.npy", bar=False)
    (tmp_path / "f.npy").touch()
    with pytest.raises(UserError, match="exists"):
        embed(embedder(backbone), data, tmp_path / "f.npy", bar=False)


def test_a_folder_of_nothing_readable(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no")
    with pytest.raises(UserError, match=r"none of the images can be read \(1 image; first problem: a.png"):
        embed(embedder(backbone), open_collection(tmp_path / "bad", SIZE), tmp_path / "f.npy", bar=False)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]
