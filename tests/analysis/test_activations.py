import contextlib
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle import cli
from unshuffle.analysis.activations import OUTLINE, conv5, outlined, selective_units, selectivities
from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.data.media import read_image
from unshuffle.evaluation.features import find_backbone

Analyse = Callable[..., AnalysisResult]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders of images, and one of videos."""
    for folder, seed in (("one", 0), ("two", 10)):
        (tmp_path / folder).mkdir()
        for number in range(5):
            coarse = np.random.default_rng(seed + number).integers(0, 256, (6, 6, 3), np.uint8)
            Image.fromarray(coarse).resize((96, 96)).save(tmp_path / folder / f"{number} $x$.png")
    (tmp_path / "one" / "broken.jpg").write_text("no image")
    with contextlib.suppress(OSError):  # not every file system has such names
        (tmp_path / "one" / "0 $x$.png").rename(tmp_path / "one" / "0 \udcff.png")
    return [tmp_path / "one", tmp_path / "two"]


def write_video(path: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25, width=96, height=96, pix_fmt="yuv420p")
        for number in range(5):
            pixels = np.full((96, 96, 3), 40 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_selectivity_by_hand() -> None:
    values = [1.0, 5.0, 2.0, 4.0]
    maxima = torch.tensor([[value, 7.0] for value in values])
    selectivity = selectivities(maxima, 2)
    assert selectivity[0] == pytest.approx((4.5 - mean(values)) / pstdev(values)) and selectivity[1] == 0
    assert selectivities(torch.tensor([[3.0]]), 2).tolist() == [0]


def test_units_are_judged_where_they_are_least_selective() -> None:
    varied = torch.tensor([[9.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    flat = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 3.0], [1.0, 4.0, 0.0]])
    assert sorted(selective_units([varied, flat], 2, 1)) == [1, 2], "unit 0 does nothing in the second"


def test_units_with_the_same_images_wait() -> None:
    maxima = torch.zeros(6, 3)
    maxima[:2, 0], maxima[:2, 1], maxima[4:, 2] = (
        torch.tensor([9.0, 8.0]),
        torch.tensor([5.0, 4.5]),
        torch.tensor([2.0, 1.0]),
    )
    order = selective_units([maxima], 3, 2)
    assert order.index(2) == 1 and sorted(order) == [0, 1, 2]
    assert len(selective_units([maxima], 2, 2)) == 2


def test_outline_goes_around_the_excited_part() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    activation = torch.zeros(8, 8)
    activation[3:5, 3:5] = 2.0
    drawn = outlined(pixels, activation)
    lines = (drawn == OUTLINE).all(axis=2)
    wanted = np.zeros((8, 8), bool)
    wanted[2:6, 2:6] = True
    wanted[3:5, 3:5] = False
    assert np.array_equal(lines, wanted) and (pixels == 0).all()


def test_highest_activations_one_image_at_a_time(folders: list[Path], analyse: Analyse) -> None:
    analysis = analyse(
        "activations", weights="random:tiny", data=tuple(folders), units=(3, 50), top=2, device="cpu", workers=1
    )
    assert "2 of 96 units" in analysis.statement and "5 of one, 5 of two" in analysis.statement
    backbone = find_backbone("random:tiny")
    for row in analysis.rows:
        files = sorted((folders[0].parent / row["dataset"]).glob("*.png"))
        maps = [conv5(backbone, torch.from_numpy(read_image(file))[None])[0, row["unit"]] for file in files]
        highest = sorted(((float(map_.max()), str(file)) for map_, file in zip(maps, files, strict=True)), reverse=True)
        value, file = highest[row["rank"] - 1]
        assert row["file"] == file and math.isclose(row["activation"], value, rel_tol=1e-4)
    assert len(analysis.rows) == 2 * 2 * 2
    assert len(analysis.figure().axes) == 8


def test_units_are_chosen_and_videos_are_seen(folders: list[Path], analyse: Analyse, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / "clips" / name)
    data = (folders[0], tmp_path / "clips")
    analysis = analyse(
        "activations", weights="random:tiny", data=data, count=2, top=3, limit=4, device="cpu", workers=1
    )
    assert len({row["unit"] for row in analysis.rows}) == 2
    assert [row["rank"] for row in analysis.rows if row["dataset"] == "clips"] == [1, 2, 1, 2]
    paths = analysis.write(tmp_path / "out")
    assert all(path.stat().st_size > 0 for path in paths)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"units": (96,)}, "units must be from 0 to 95"),
        ({"top": 0}, "top and count must be 1 or more"),
        ({"data": ()}, "give one or more"),
        ({"data": (Path("nowhere"),)}, "nowhere does not exist"),
    ],
)
def test_what_cannot_be_done(folders: list[Path], analyse: Analyse, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        analyse("activations", **{"weights": "random:tiny", "data": tuple(folders), "device": "cpu", **options})


def test_names_are_printed_as_they_are(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = folders[0].rename(tmp_path / "a[b]c"), tmp_path / "o[u]t"
    assert cli.run(["analyze", "activations", "random:tiny", str(data), "--device", "cpu", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "5 of a[b]c" in printed and f"{out}/activations.png" in printed
