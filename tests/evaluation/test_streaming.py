from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from unshuffle.errors import UserError
from unshuffle.evaluation import streaming
from unshuffle.evaluation.items import Item, Items, class_folders
from unshuffle.evaluation.kept import Kept
from unshuffle.evaluation.streaming import Chunk, item_means, readable, stream

QUIET, CPU = Console(quiet=True), torch.device("cpu")


@pytest.fixture
def items(classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Items:
    monkeypatch.setattr(streaming, "PART", 4)
    return replace(class_folders(classes[0]), side=32)


def means(pixels: Tensor) -> Tensor:
    return pixels.float().mean(dim=(1, 2))


def joined(chunks: list[Chunk]) -> Chunk:
    return Chunk(torch.cat([some.values for some in chunks]), torch.cat([some.items for some in chunks]))


def run(items: Items, compute: Callable[[Tensor], Tensor] = means, **options: object) -> Chunk:
    return joined(list(stream(items, compute, CPU, QUIET, "images", **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_values_follow_the_items(items: Items, batch: int) -> None:
    found = run(items, batch=batch, workers=2)
    broken = next(at for at, item in enumerate(items.items) if item.path.name == "broken.jpg")
    assert found.items.tolist() == [at for at in range(25) if at != broken]
    for value, at in zip(found.values, found.items.tolist(), strict=True):
        np.testing.assert_allclose(value, items.read(at).astype(float).mean(axis=(0, 1, 2)), rtol=1e-4)
    assert [(Path(file).name, bool(reason)) for file, reason in items.skipped] == [("broken.jpg", True)]


class OnDevice(Tensor):
    """Stands for a tensor on another device, which can be put together with none on the CPU."""

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)


def test_values_lie_on_the_cpu_wherever_they_were_made(items: Items) -> None:
    """Parts that were kept come from there, and are put together with new ones."""
    assert type(run(items, lambda pixels: means(pixels).as_subclass(OnDevice)).values) is Tensor


def test_frames_of_videos(class_clips: tuple[Path, Path]) -> None:
    videos = replace(class_folders(class_clips[0]), side=32, frames=3)
    found = run(videos)
    assert found.items.tolist() == [at for at in range(9) for _ in range(3)] and len(videos.skipped) == 1


def test_item_means_against_loops() -> None:
    values, items = torch.randn(7, 3), torch.tensor([2, 2, 2, 4, 5, 5, 5])
    means = item_means(Chunk(values, items))
    assert means.items.tolist() == [2, 4, 5]
    for row, item in enumerate((2, 4, 5)):
        assert torch.allclose(means.values[row], values[items == item].mean(dim=0))


def test_means_are_of_whole_items(class_clips: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART", 6)
    videos = replace(class_folders(class_clips[0]), side=32, frames=3)
    frames, whole = run(videos, batch=3), run(replace(videos, skipped=[]), batch=3, means=True)
    assert whole.items.tolist() == list(range(9))
    torch.testing.assert_close(whole.values, frames.values.view(9, 3, 3).mean(dim=1))


class Killed(BaseException):
    """What a kill is to a program."""


def test_a_broken_off_stream_goes_on(items: Items, tmp_path: Path) -> None:
    whole = run(items)
    seen: list[int] = []

    def killed(pixels: Tensor) -> Tensor:
        if len(seen) == 3:
            raise Killed
        seen.append(len(pixels))
        return means(pixels)

    def kept() -> Kept:
        return Kept(tmp_path / "kept", items.fingerprint())

    with pytest.raises(Killed):
        run(items, killed, kept=kept(), workers=1)
    assert sorted(path.name for path in (tmp_path / "kept").glob("*.npz")) == [f"{at:09}.npz" for at in (0, 4, 8)]
    computed: list[int] = []

    def counted(pixels: Tensor) -> Tensor:
        computed.append(len(pixels))
        return means(pixels)

    again = replace(items, skipped=[])
    found = run(again, counted, kept=kept(), batch=2)
    assert torch.equal(found.values, whole.values) and torch.equal(found.items, whole.items)
    assert sum(computed) == 24 - 12 and again.skipped == items.skipped[:1], "what was done is not done again"
    assert torch.equal(run(replace(items, skipped=[]), kept=kept()).values, whole.values)
    with pytest.raises(UserError, match="other files, weights or options"):
        Kept(tmp_path / "kept", "another job")


def test_nothing_readable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(UserError, match=r"none of the images can be read \(1 image; first problem: .*a.png"):
        run(Items([Item(tmp_path / "a.png", 0)], ["a"], "images"))


def test_readable_items_are_kept_in_order(items: Items, tmp_path: Path) -> None:
    for kept in (None, Kept(tmp_path, "job"), Kept(tmp_path, "job")):
        good = readable(replace(items, skipped=[]), QUIET, workers=2, kept=kept)
        assert [item.path for item in good.items] == [i.path for i in items.items if i.path.name != "broken.jpg"]
        assert len(good.skipped) == 1


def test_a_part_of_which_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART", 1)
    (tmp_path / "a.png").write_text("no image")
    Image.new("RGB", (40, 40)).save(tmp_path / "b.png")
    items = Items([Item(tmp_path / name, 0) for name in ("a.png", "b.png")], ["a"], "images", side=32)
    for _ in range(2):
        assert run(replace(items, skipped=[]), kept=Kept(tmp_path / "kept", "job")).items.tolist() == [1]
