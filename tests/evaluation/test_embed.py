import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from unshuffle import cli
from unshuffle.data.dataset import FileSource, LabelledDataset, Square, open_dataset
from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation import embed, features
from unshuffle.evaluation.embed import Embedded, Rows, embed_to_file, find_writer, names_file
from unshuffle.evaluation.features import preprocess
from unshuffle.models import Backbone, build_backbone, weights

SIZE = 32


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> Backbone:
    monkeypatch.setattr(features, "PART", 2)
    torch.manual_seed(0)
    return build_backbone("tiny").for_evaluation()


def opened(folder: Path, size: int = SIZE, **options: Any) -> LabelledDataset:
    return open_dataset(folder, labelled=False, square=Square(size), **options)


def run(backbone: Backbone, dataset: LabelledDataset, out: Path, bar: bool = False, **options: Any) -> Embedded:
    return embed_to_file(
        backbone, dataset, out, **{"pool": "flat", "device": torch.device("cpu"), "bar": bar, **options}
    )


def names_of(out: Path) -> list[str]:
    return [row["file"] for row in csv.DictReader(out.with_suffix(".names.csv").open(newline=""))]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_row_is_pool5_of_the_image(backbone: Backbone, pictures: Path, tmp_path: Path, batch: int) -> None:
    out = tmp_path / "new" / "f.npy"
    out.parent.mkdir()
    done = run(backbone, opened(pictures), out, batch=batch)
    rows, names = np.load(out), names_of(out)
    assert done.rows == len(names) == 7 and rows.shape == (7, done.dimensions) and rows.dtype == np.float32
    for name, row in zip(names, rows, strict=True):
        with torch.no_grad():
            expected = backbone(preprocess(read_image(pictures / name), SIZE)[None]).flatten()
        assert float(torch.cosine_similarity(torch.from_numpy(row), expected, dim=0)) > 0.999
    skipped = list(csv.reader((tmp_path / "new" / "f.skipped.csv").open()))
    unreadable = [str(pictures / "broken.jpg"), str(pictures / "in/empty.png")]
    assert [row[0] for row in skipped] == ["file", *unreadable]
    assert [file for file, _ in done.skipped] == unreadable
    assert sorted(path.name for path in out.parent.iterdir()) == ["f.names.csv", "f.npy", "f.skipped.csv"]


def test_a_video_is_the_mean_of_its_frames(backbone: Backbone, clips: Path, tmp_path: Path) -> None:
    data = opened(clips, frames=3)
    run(backbone, data, tmp_path / "f.npy", batch=2)
    assert names_of(tmp_path / "f.npy") == ["04.mp4", "09.mp4", "14.mp4"]
    for item, row in enumerate(np.load(tmp_path / "f.npy")):
        with torch.no_grad():
            frames = [backbone(preprocess(frame, SIZE)[None]).flatten() for frame in data.load(item)]
        np.testing.assert_allclose(row, torch.stack(frames).mean(dim=0), atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_formats(backbone: Backbone, pictures: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    done = run(backbone, opened(pictures), tmp_path / f"f{suffix}")
    assert done.rows == 7 and (tmp_path / f"f{suffix}").stat().st_size > 4 * 7 * done.dimensions


def test_the_skip_list_of_an_earlier_file_is_deleted(backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.npy"
    run(backbone, opened(pictures), out)
    assert (tmp_path / "f.skipped.csv").exists()
    for name in ("f.npy", "pictures/broken.jpg", "pictures/in/empty.png"):
        (tmp_path / name).unlink()
    run(backbone, opened(pictures), out)
    assert not (tmp_path / "f.skipped.csv").exists()


class Killed(BaseException):
    """What a kill is to a program."""


@contextmanager
def watched_reads(watch: Callable[[int], None]) -> Iterator[None]:
    """Call a function with each item that is read from files."""
    read = FileSource.read

    def watching(source: FileSource, item: int, frames: Sequence[int]) -> Pixels:
        watch(item)
        return read(source, item, frames)

    with mock.patch.object(FileSource, "read", watching):
        yield


@contextmanager
def killed_at(item: int) -> Iterator[None]:
    def watch(wanted: int) -> None:
        if wanted == item:
            raise Killed

    with watched_reads(watch), pytest.raises(Killed):
        yield


def test_an_interrupted_run_resumes(
    backbone: Backbone, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = opened(pictures), tmp_path / "f.npy"
    run(backbone, data, tmp_path / "unbroken.npy")
    with killed_at(5):
        run(backbone, data, out, bar=True)
    assert not out.exists() and "resuming" not in capsys.readouterr().err
    parts = sorted((tmp_path / "f.npy.parts").glob("*.npz"))
    assert [part.stem for part in parts] == ["000000000", "000000002"]
    seen: list[int] = []
    with watched_reads(seen.append):
        run(backbone, data, out, bar=True)
    assert "resuming: 4 of 9 images were done before" in capsys.readouterr().err
    assert sorted(seen) == [4, 5, 6, 7, 8], "what was done is not done again"
    assert out.read_bytes() == (tmp_path / "unbroken.npy").read_bytes()
    assert names_of(out) == names_of(tmp_path / "unbroken.npy")
    assert not (tmp_path / "f.npy.parts").exists()


@pytest.mark.parametrize("change", ["weights", "size", "files"])
def test_parts_of_another_job_are_not_taken(backbone: Backbone, pictures: Path, tmp_path: Path, change: str) -> None:
    with killed_at(5):
        run(backbone, opened(pictures), tmp_path / "f.npy")
    other, size = backbone, SIZE
    if change == "weights":
        other = build_backbone("tiny").for_evaluation()
    elif change == "size":
        size = SIZE + 8
    else:
        (pictures / "z.png").unlink()
    with pytest.raises(UserError, match="was begun with other files, weights or options"):
        run(other, opened(pictures, size), tmp_path / "f.npy")


def test_mistakes(backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    data = opened(pictures)
    with pytest.raises(UserError, match="short side of 8"):
        run(backbone, opened(pictures, 8), tmp_path / "f.npy")
    caffenet = build_backbone("caffenet").for_evaluation()
    with pytest.raises(UserError, match="size 40 does not suit this backbone: "):
        run(caffenet, opened(pictures, 40), tmp_path / "f.npy")
    (tmp_path / "f.npy").touch()
    with pytest.raises(UserError, match="exists"):
        run(backbone, data, tmp_path / "f.npy")


def test_a_folder_without_a_readable_image(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no")
    with pytest.raises(UserError, match=r"none of the images can be read \(1 image; first problem: .*bad/a.png"):
        run(backbone, opened(tmp_path / "bad"), tmp_path / "f.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


NAMES = [["a.jpg", 'quo"te, comma.jpg'], ["über/c.jpg"]]
BLOCKS = [np.random.default_rng(0).normal(size=(len(names), 5)).astype(np.float32) for names in NAMES]


def written(out: Path) -> tuple[list[str], Rows]:
    """What a person reads from the file."""
    find_writer(out)(out, zip(NAMES, BLOCKS, strict=True), 3, 5)
    if out.suffix == ".npy":
        names = list(csv.DictReader(names_file(out).open(newline="", encoding="utf-8")))
        return [row["file"] for row in names], np.load(out)
    if out.suffix == ".csv":
        head, *rows = csv.reader(out.open(newline="", encoding="utf-8"))
        assert head == ["file", "f0", "f1", "f2", "f3", "f4"]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)
    table = pytest.importorskip("pyarrow.parquet").read_table(out).to_pydict()
    return table["file"], np.array(table["features"], np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_names_and_numbers_come_back_as_they_were(suffix: str, tmp_path: Path) -> None:
    names, rows = written(tmp_path / f"f.v1{suffix}")
    assert names == NAMES[0] + NAMES[1]
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, np.concatenate(BLOCKS))


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_no_name_is_a_formula(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"f{suffix}"
    find_writer(out)(out, [(["=1+1.jpg"], np.full((1, 2), -0.5, np.float32))], 1, 2)
    file = names_file(out) if suffix == ".npy" else out
    _, row = csv.reader(file.open(newline="", encoding="utf-8"))
    assert row == (["'=1+1.jpg"] if suffix == ".npy" else ["'=1+1.jpg", "-0.5", "-0.5"])


@pytest.mark.parametrize(("pool", "dimensions"), [("avg", 96), ("max", 96), ("grid", 96 * 9), ("flat", 96 * 16)])
def test_pooling(pool: str, dimensions: int, backbone: Backbone, pictures: Path, tmp_path: Path) -> None:
    done = run(backbone, opened(pictures), tmp_path / "f.npy", pool=pool)
    assert done.dimensions == np.load(tmp_path / "f.npy").shape[1] == dimensions


def test_the_command_says_what_it_wrote(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["embed", str(pictures), "--weights", "random:tiny", "--device", "cpu", "--out"]
    assert cli.run([*line, str(tmp_path / "photos")]) == 0
    output = capsys.readouterr().out
    assert "7 images, 864 features each" in output and str(tmp_path / "photos.npy") in output
    assert "features: the means of a 3 × 3 grid of pool5 of random:tiny (tiny, 96 px) (--pool grid)" in output
    assert np.load(tmp_path / "photos.npy").shape == (7, 864) and "note" not in output
    monkeypatch.setattr(embed, "LARGE_CSV", 10_000)
    assert cli.run([*line, str(tmp_path / "photos.csv"), "--pool", "flat"]) == 0
    output = capsys.readouterr().out
    assert "7 images, 13824 features each" in output and "pool5 of " in output
    assert f"note: {tmp_path / 'photos.csv'} has 1 MB: --out {tmp_path / 'photos.parquet'} is a third of that" in output
    assert cli.run([*line, str(tmp_path / "photos.txt")]) == 2
    assert "has an unknown format: use .npy, .parquet, .csv" in capsys.readouterr().err


def test_the_pretrained_weights_are_the_default(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "PRETRAINED_FILE", tmp_path / "absent.safetensors")
    assert cli.run(["embed", str(pictures), "--out", str(tmp_path / "f.npy")]) == 2
    assert "this installation has no pretrained weights" in capsys.readouterr().err


def test_other_files() -> None:
    with pytest.raises(UserError, match=r"^f\.txt has an unknown format: use \.npy, \.parquet, \.csv$"):
        find_writer(Path("f.txt"))


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'unshuffle\[parquet\]'"):
        find_writer(Path("f.parquet"))
