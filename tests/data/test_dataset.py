import io
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.config import LimitsConfig
from unshuffle.data.dataset import (
    FileSource,
    LabelledDataset,
    Square,
    centre_square,
    digest,
    load_images,
    one_per_class,
    open_dataset,
    packed,
    shared_files,
    synthetic_dataset,
)
from unshuffle.data.media import BadMedia, read_frames, read_image
from unshuffle.data.pack import pack
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError

NAMES = ["a.png", "b.jpg", "broken.jpg", "f.png", "g.png", "in/c.png", "in/d, e.png", "in/empty.png", "z.png"]


def unlabelled(address: str | Path, size: int = 32, **options: Any) -> LabelledDataset:
    return open_dataset(address, labelled=False, square=Square(size), **options)


def single(path: Path, square: Square) -> LabelledDataset:
    source = FileSource(path.parent, [path], "images")
    return LabelledDataset(str(path.parent), source, [0], [0], ["a"], "images").with_square(square)


# ---- class folders


def test_class_folders(classes: tuple[Path, Path]) -> None:
    dataset = open_dataset(classes[0])
    assert dataset.classes == ["across", "chess", "down"] and dataset.kind == "images"
    assert [dataset.labels.count(label) for label in range(3)] == [8, 8, 9]
    classes_of = [dataset.classes[label] for label in dataset.labels]
    assert [path.parent.name for path in dataset.paths()] == classes_of
    assert dataset.names[0] == "across/0.png" and dataset.location(0) == str(classes[0] / "across/0.png")


def test_files_are_sorted_by_class_and_then_by_name(tmp_path: Path) -> None:
    for name in ("cat/2.png", "cat/10.png", "cat-like/1.png", "cat/b/1.png", "cat/b-c/1.png", "stray.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = ["cat/10.png", "cat/2.png", "cat/b-c/1.png", "cat/b/1.png", "cat-like/1.png"]
    assert open_dataset(tmp_path).names == names


def test_other_files_are_counted_and_files_beside_the_classes_are_listed(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2", "dog/1.png", "stray.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / name, "PNG")
    for name in ("cat/notes.txt", "readme.md", ".hidden"):
        (tmp_path / name).write_text("text")
    dataset = open_dataset(tmp_path)
    assert dataset.names == ["cat/1.png", "cat/2", "dog/1.png"]
    assert dataset.skipped == [(str(tmp_path / "stray.png"), "it is not in the folder of a class")]
    assert dataset.ignored == {".md": 1, ".txt": 1, "hidden": 1}
    flat = unlabelled(tmp_path)
    assert len(flat) == 4 and flat.ignored == dataset.ignored and not flat.skipped


def test_a_folder_without_media_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"there are no images or videos in .* \(1 other ignored \(1 \.txt\)\): check"):
        unlabelled(tmp_path)


def test_grayscale_and_cmyk_are_read_and_a_broken_file_is_refused(classes: tuple[Path, Path]) -> None:
    dataset = open_dataset(classes[0])
    broken = [index for index, path in enumerate(dataset.paths()) if path.name == "broken.jpg"]
    assert all(dataset.load(index).shape == (1, 227, 227, 3) for index in range(len(dataset)) if index not in broken)
    with pytest.raises(BadMedia):
        dataset.load(broken[0])


def test_a_limit_is_even_over_the_classes(classes: tuple[Path, Path]) -> None:
    dataset = open_dataset(classes[0])
    assert [dataset.limited(7).labels.count(label) for label in range(3)] == [3, 2, 2]
    assert dataset.limited(0) is dataset and dataset.limited(25) is dataset
    assert dataset.exceeds(24) and not dataset.exceeds(25) and not dataset.exceeds(0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda root: None, "two or more classes"),
        (lambda root: [(root / name).mkdir() for name in "ab"], "there are no images or videos in"),
        (
            lambda root: [(root / name).mkdir() for name in "abc"] + [(root / "b" / "1.png").touch()],
            r"2 of the 3 classes of .* have no images \(a, c\)",
        ),
        (
            lambda root: [
                (root / "a").mkdir(),
                (root / "b").mkdir(),
                (root / "a" / "1.png").touch(),
                (root / "b" / "1.mp4").touch(),
            ],
            "images and videos",
        ),
    ],
)
def test_bad_class_folders(make: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(UserError, match=sentence):
        open_dataset(tmp_path)


def test_test_data_may_have_a_single_class(classes: tuple[Path, Path], tmp_path: Path) -> None:
    training = open_dataset(classes[0])
    shutil.copytree(classes[0] / training.classes[1], tmp_path / "test" / training.classes[1])
    testing = open_dataset(tmp_path / "test", classes=training.classes)
    assert testing.classes == training.classes and set(testing.labels) == {1}
    with pytest.raises(UserError, match="two or more classes"):
        open_dataset(tmp_path / "test")


def test_unknown_classes_are_refused(classes: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="the training data lacks: down"):
        open_dataset(classes[0], classes=["across", "chess"])
    with pytest.raises(UserError, match="is not a folder"):
        open_dataset("nowhere")


def test_the_training_classes_number_the_test_classes(classes: tuple[Path, Path]) -> None:
    dataset = open_dataset(classes[1], classes=["down", "up", "chess", "across"])
    assert dataset.classes == ["down", "up", "chess", "across"] and set(dataset.labels) == {0, 2, 3}
    assert [dataset.classes[label] for label in dataset.labels] == [path.parent.name for path in dataset.paths()]


# ---- squares and frames


def test_crop_and_squash(tmp_path: Path) -> None:
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, :40], pixels[:, 80:] = 100, 200
    wide = tmp_path / "wide.png"
    Image.fromarray(pixels).save(wide)
    cropped = single(wide, Square(40)).load(0)
    assert cropped.shape == (1, 40, 40, 3) and (cropped == 0).all()
    with_margin = single(wide, Square(20, margin=2)).load(0)
    assert with_margin.shape == (1, 20, 20, 3) and (with_margin == 0).all()
    assert (single(wide, Square(20, margin=2)).load_resized(0) == pixels).all()
    squashed = single(wide, Square(60, "squash")).load(0)[0]
    assert (squashed[:, :15] == 100).all() and (squashed[:, 25:35] == 0).all() and (squashed[:, 45:] == 200).all()


@pytest.mark.parametrize(("height", "width", "side"), [(5, 9, 5), (9, 5, 5), (7, 8, 4), (6, 6, 6)])
def test_centre_square(height: int, width: int, side: int) -> None:
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows, columns, rows], axis=-1).astype(np.uint8)
    square = centre_square(pixels, side)
    assert square.shape == (side, side, 3)
    before, after = square[0, 0, :2].astype(int), np.array([height, width]) - 1 - square[-1, -1, :2]
    assert (after - before >= 0).all() and (after - before <= 1).all()


def test_video_frames_are_evenly_spaced(class_clips: tuple[Path, Path]) -> None:
    dataset = open_dataset(class_clips[0], square=Square(96), frames=4)
    everything = list(read_frames(dataset.paths()[0]))
    assert len(everything) == 12 and dataset.frames_per_item == 4
    for frame, number in zip(dataset.load(0), (0, 4, 7, 11), strict=True):
        assert (frame == everything[number]).all()
    assert len(replace(dataset, frames=20).load(0)) == 20


def test_a_box_outside_the_image_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    source = FileSource(tmp_path, [tmp_path / "a.png"], "objects", [(60, 60, 90, 90)])
    with pytest.raises(BadMedia):
        LabelledDataset(str(tmp_path), source, [0], [0], ["a"], "objects").load(0)


# ---- datasets without labels


def test_images_without_labels(pictures: Path) -> None:
    dataset = unlabelled(pictures)
    assert dataset.kind == "images" and dataset.names == NAMES and len(dataset) == 9
    assert set(dataset.labels) == {-1} and len(dataset.classes) == 0
    expected = centre_square(read_image(pictures / "in" / "c.png", 32), 32)[None]
    np.testing.assert_array_equal(dataset.load(5), expected)
    with pytest.raises(BadMedia):
        dataset.load(2)


def test_videos_without_labels(clips: Path) -> None:
    dataset = unlabelled(clips, 24, frames=3)
    assert dataset.kind == "videos" and dataset.names == ["04.mp4", "09.mp4", "14.mp4", "broken.mp4"]
    every = [centre_square(frame, 24) for frame in read_frames(clips / "09.mp4", 24)]
    np.testing.assert_array_equal(dataset.load(1), np.stack([every[number] for number in (0, 4, 8)]))
    every = [centre_square(frame, 24) for frame in read_frames(clips / "04.mp4", 24)]
    again = unlabelled(clips, 24, frames=6).load(0)
    np.testing.assert_array_equal(again, np.stack([every[number] for number in (0, 1, 1, 2, 2, 3)]))
    with pytest.raises(BadMedia):
        dataset.load(3)


def test_images_or_videos(pictures: Path, clips: Path, tmp_path: Path) -> None:
    mixed = tmp_path
    with pytest.raises(UserError, match=r"holds images and videos: .*--kind"):
        unlabelled(mixed)
    assert len(unlabelled(mixed, kind="images")) == 9
    assert len(unlabelled(mixed, kind="videos")) == 4
    with pytest.raises(UserError, match="there are no videos in"):
        unlabelled(pictures, kind="videos")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images or videos in"):
        unlabelled(tmp_path / "empty")
    with pytest.raises(UserError, match="0 frames"):
        unlabelled(clips, frames=0)


def test_a_gif_is_what_the_other_files_are(pictures: Path, clips: Path, tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((32, 32, 3), level, np.uint8)) for level in (10, 200)]
    for folder in (pictures, clips, tmp_path / "gifs"):
        folder.mkdir(exist_ok=True)
        frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    kinds = [unlabelled(folder).kind for folder in (pictures, clips, tmp_path / "gifs")]
    assert kinds == ["images", "videos", "videos"]


# ---- packed stores


def test_stores_without_labels(pictures: Path, clips: Path, tmp_path: Path) -> None:
    pack("images", pictures, tmp_path / "images", short_side=32, progress=False)
    stored, plain = unlabelled(tmp_path / "images"), unlabelled(pictures)
    assert stored.names == [name for name in NAMES if name not in ("broken.jpg", "in/empty.png")]
    for index, name in enumerate(stored.names):
        np.testing.assert_array_equal(stored.load(index), plain.load(NAMES.index(name)))
    assert unlabelled(tmp_path / "images", 40).load(0).shape == (1, 40, 40, 3)
    pack("videos", clips, tmp_path / "videos", short_side=24, progress=False)
    stored, plain = unlabelled(tmp_path / "videos", 24, frames=3), unlabelled(clips, 24, frames=3)
    assert stored.kind == "videos"
    for index in range(3):
        np.testing.assert_array_equal(stored.load(index), plain.load(index))
    with pytest.raises(UserError, match="holds videos, but images are needed"):
        unlabelled(tmp_path / "videos", kind="images")


def test_the_first_folder_of_a_name_in_a_store_is_its_class(
    classes: tuple[Path, Path], pictures: Path, tmp_path: Path
) -> None:
    pack("images", classes[0], tmp_path / "store", short_side=96, progress=False)
    stored, plain = open_dataset(tmp_path / "store", square=Square(96)), open_dataset(classes[0], square=Square(96))
    assert stored.classes == plain.classes
    positions = [plain.names.index(name) for name in stored.names]
    assert stored.labels == [plain.labels[position] for position in positions] and len(stored) == 24
    np.testing.assert_array_equal(stored.load(3), plain.load(positions[3]))
    pack("images", pictures, tmp_path / "flat", short_side=32, progress=False)
    with pytest.raises(UserError, match=r"needs a class for every item, and a.png has none"):
        open_dataset(tmp_path / "flat")


def test_packed_datasets_keep_their_labels_and_list_what_is_unreadable(
    class_clips: tuple[Path, Path], tmp_path: Path
) -> None:
    train, test = (open_dataset(folder) for folder in class_clips)
    subset = train.subset([0, 4, 9])
    assert train.paths()[9].name == "broken.mp4"
    stored, other = packed([subset, test], tmp_path, short_side=32, encoding="raw", every=1, progress=False)
    assert stored.names == train.names[:1] + train.names[4:5] and stored.labels == [0, 1] and len(other) == 6
    assert [file for file, _ in stored.skipped] == [str(class_clips[0] / "down/broken.mp4")]
    again, other = packed([stored, other], tmp_path, short_side=32, encoding="raw", every=1, progress=False)
    assert again is stored


# ---- tar shards


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def png(level: int, side: int = 24) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (level, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_labels_of_shards_stand_in_members(tmp_path: Path) -> None:
    first = {"x/1.png": png(10), "x/1.cls": b"10\n", "x/2.png": png(20), "x/2.cls": b"9", "x/2.txt": b"a caption"}
    write_shard(tmp_path / "a-0.tar", first)
    write_shard(tmp_path / "a-1.tar", {"3.png": png(30), "3.txt": b"10", "4.png": b"no image", "4.cls": b"9"})
    for _ in range(2):  # the second time from the cache
        dataset = open_dataset(f"{tmp_path}/a-{{0..1}}.tar", square=Square(16), cache=tmp_path / "cache")
        assert dataset.classes == ["9", "10"], "numbers are sorted as numbers"
        assert dict(zip(dataset.names, dataset.labels, strict=True)) == {
            "a-0.tar/x/1.png": 1,
            "a-0.tar/x/2.png": 0,
            "a-1.tar/3.png": 1,
        }
        assert [name for name, _ in dataset.skipped] == ["a-1.tar/4.png"]
        assert [int(dataset.load(index)[0, 0, 0, 0]) for index in range(3)] == [10, 20, 30]


def test_labels_of_shards_are_folders_otherwise(classes: tuple[Path, Path], tmp_path: Path) -> None:
    plain = open_dataset(classes[0], square=Square(64, margin=1.2))
    members = {name: path.read_bytes() for name, path in zip(plain.names, plain.paths(), strict=True)}
    write_shard(tmp_path / "a.tar", members)
    shards = open_dataset(tmp_path / "a.tar", square=Square(64, margin=1.2), cache=tmp_path / "cache")
    assert shards.classes == plain.classes
    by_name = {name.removeprefix("a.tar/"): index for index, name in enumerate(shards.names)}
    for index, name in enumerate(plain.names):
        if name in by_name:
            assert shards.labels[by_name[name]] == plain.labels[index]
            np.testing.assert_array_equal(shards.load(by_name[name]), plain.load(index))
    assert len(by_name) + len(shards.skipped) == len(plain)


def test_a_truncated_image_in_a_shard_is_skipped_and_not_grey(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    data = file.getvalue()
    write_shard(tmp_path / "a.tar", {"a/1.jpg": data, "b/2.jpg": data[: len(data) // 2], "b/3.jpg": data})
    dataset = open_dataset(tmp_path / "a.tar", square=Square(32), cache=tmp_path / "cache")
    assert dataset.names == ["a.tar/a/1.jpg", "a.tar/b/3.jpg"]
    assert [name for name, _ in dataset.skipped] == ["a.tar/b/2.jpg"] and "truncated" in dataset.skipped[0][1]


def test_files_and_members_beyond_the_limits_cannot_be_read(tmp_path: Path, pictures: Path, clips: Path) -> None:
    options: dict[str, Any] = {"labelled": False, "square": Square(32), "cache": tmp_path / "cache"}
    few = open_dataset(clips, limits=LimitsConfig(max_frames=10), **options)
    assert len(few.load(0)) == 10
    with pytest.raises(BadMedia, match=r"limits\.max_frames"):
        few.load(few.names.index("14.mp4"))
    small = LimitsConfig(max_pixels=41 * 50)
    images = open_dataset(pictures, limits=small, **options)
    with pytest.raises(BadMedia, match=r"limits\.max_pixels"):
        images.load(images.names.index("z.png"))
    assert images.identity() != open_dataset(pictures, **options).identity()
    members = {name: (pictures / name).read_bytes() for name in ("a.png", "z.png")}
    shards = open_dataset(write_shard(tmp_path / "0.tar", members), limits=small, **options)
    assert shards.names == ["0.tar/a.png"] and "limits.max_pixels" in shards.skipped[0][1]


def test_shards_without_labels(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", {"1.png": png(10), "2.png": png(20)})
    assert len(unlabelled(tmp_path / "a.tar", 16, cache=tmp_path / "cache")) == 2
    with pytest.raises(UserError, match=r"needs a class for every item, and a.tar/1.png has none"):
        open_dataset(tmp_path / "a.tar", cache=tmp_path / "cache")
    with pytest.raises(UserError, match="has lost a slash"):
        open_dataset(Path("s3://bucket/a.tar"))


# ---- split lists and the synthetic world


def test_a_split_list_is_a_dataset(class_clips: tuple[Path, Path], tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (tmp_path / "videos").symlink_to(class_clips[0])
    (lists / "classInd.txt").write_text("1 down\n2 across\n3 chess\n")
    (lists / "trainlist01.txt").write_text("across/1.avi 2\nchess/0.avi 3\ndown/2.avi 1\n")
    dataset = open_dataset(lists / "trainlist01.txt", square=Square(32), frames=2)
    assert dataset.classes == ["down", "across", "chess"] and dataset.labels == [1, 2, 0]
    assert dataset.names == [f"videos/{name}.mp4" for name in ("across/1", "chess/0", "down/2")]
    assert dataset.kind == "videos" and dataset.load(0).shape == (2, 32, 32, 3)


def test_a_split_list_of_a_store_takes_all_windows_of_its_videos(
    tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    for name, frames in (("jump/a.mp4", 20), ("run/b.mp4", 5), ("run/c.mp4", 20)):
        write_video(tmp_path / "videos" / name, frames=frames)
    pack("videos", tmp_path / "videos", tmp_path / "store", short_side=32, progress=False, clip_frames=8)
    lists = tmp_path / "store" / "lists"
    lists.mkdir()
    (lists / "classInd.txt").write_text("1 run\n2 jump\n")
    (lists / "testlist01.txt").write_text("run/b.avi\njump/a.avi\n")
    dataset = open_dataset(lists / "testlist01.txt")
    assert dataset.names == ["run/b.mp4", "jump/a.mp4#1", "jump/a.mp4#2"] and list(dataset.labels) == [0, 1, 1]


def test_a_synthetic_world_is_a_dataset() -> None:
    source = synthetic_images(14, 24, seed=0)
    images = load_images(synthetic_dataset(source))
    np.testing.assert_array_equal(images.pixels, source.pixels[:, 0])
    assert images.labels.tolist() == source.labels.tolist() and images.classes == source.classes


def test_addresses_of_synthetic_worlds() -> None:
    dataset = open_dataset("synthetic:images:20:3", square=Square(48))
    world = synthetic_images(20, 96, seed=3)
    assert dataset.labels == world.labels.tolist() and dataset.classes == list(world.classes)
    assert dataset.load(4).shape == (1, 48, 48, 3)
    assert open_dataset("synthetic:videos:6:0", frames=5).load(0).shape == (5, 227, 227, 3)
    assert open_dataset("synthetic:images:20:4").identity() != open_dataset("synthetic:images:20:3").identity()
    for wrong in ("synthetic:", "synthetic:sounds:3:0", "synthetic:images:x:0", "synthetic:images:3"):
        with pytest.raises(UserError, match="write synthetic:images:COUNT:SEED"):
            open_dataset(wrong)


# ---- images in memory


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Four cats, two dogs, three emus; the first cat is broken; the red channel tells the number."""
    for name, count in {"cat": 4, "dog": 2, "emu": 3}.items():
        (tmp_path / "classes" / name).mkdir(parents=True)
        for number in range(count):
            colour = (10 * number + 5, {"cat": 40, "dog": 80, "emu": 120}[name], 0)
            Image.new("RGB", (30 + number, 24), colour).save(tmp_path / "classes" / name / f"{number}.png")
    (tmp_path / "classes" / "cat" / "0.png").write_text("no cat")
    (tmp_path / "classes" / "readme.txt").write_text("not a class")
    return tmp_path / "classes"


def numbers(pixels: np.ndarray) -> list[int]:
    return (pixels[:, 0, 0, 0] // 10).tolist()


def test_images_are_loaded_into_memory(animals: Path) -> None:
    dataset = open_dataset(animals, square=Square(16))
    images = load_images(dataset, limit=100)
    assert images.classes == ["cat", "dog", "emu"]
    assert images.pixels.shape == (8, 16, 16, 3) and len(images) == 8
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert numbers(images.pixels) == [1, 2, 3, 0, 1, 0, 1, 2]
    assert images.pixels[:, 0, 0, 1].tolist() == [40, 40, 40, 80, 80, 120, 120, 120]
    assert images.files[0] == str(animals / "cat/1.png") and len(dataset.skipped) == 1
    assert images.subset([5, 0]).labels.tolist() == [2, 0] and numbers(images.subset([5, 0]).pixels) == [0, 1]


@pytest.mark.parametrize(("limit", "each"), [(6, 2), (8, 2), (3, 1), (1, 1)])
def test_loaded_images_are_even_over_the_classes(animals: Path, limit: int, each: int) -> None:
    images = load_images(open_dataset(animals, square=Square(16)), limit)
    assert torch.bincount(images.labels).tolist() == [each] * 3
    assert numbers(images.pixels)[0] == 1, "a broken file does not count"


def test_no_readable_image_is_one_sentence(animals: Path) -> None:
    for path in animals.glob("*/*.png"):
        path.write_text("no image")
    with pytest.raises(UserError, match="no readable image in"):
        load_images(open_dataset(animals), 10)


def test_one_per_class_takes_different_classes() -> None:
    labels = torch.tensor([4, 4, 0, 2, 0, 7, 2])
    assert one_per_class(labels, 8) == [2, 3, 0, 5]
    assert one_per_class(labels, 2) == [2, 5]


# ---- identity


def test_the_identity_follows_files_labels_and_squares(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 20)).save(tmp_path / name / "1.png")
    dataset = open_dataset(tmp_path)
    before = dataset.identity()
    assert open_dataset(tmp_path).identity() == before
    assert dataset.with_square(Square(100)).identity() != before and dataset.limited(1).identity() != before
    assert replace(dataset, labels=[1, 0]).identity() != before
    Image.new("RGB", (30, 20)).save(tmp_path / "a" / "1.png")
    assert open_dataset(tmp_path).identity() != before


def test_the_identity_of_a_store_follows_what_was_packed(pictures: Path, tmp_path: Path) -> None:
    pack("images", pictures, tmp_path / "one", short_side=32, progress=False)
    (pictures / "z.png").touch()
    pack("images", pictures, tmp_path / "other", short_side=32, progress=False)
    before = unlabelled(tmp_path / "one").identity()
    assert unlabelled(tmp_path / "one").identity() == before
    (tmp_path / "one").rename(tmp_path / "away")
    (tmp_path / "other").rename(tmp_path / "one")
    assert unlabelled(tmp_path / "one").identity() != before


def test_a_digest_follows_every_value_and_their_order() -> None:
    digests = [digest(values) for values in (["a", 1], [1, "a"], ["a1"], ["a", 2], [])]
    assert len(set(digests)) == 5 and digest(iter(["a", 1])) == digests[0]
    assert digest(["caf\udce9.png"]) != digest(["caf.png"]), "names of files need not be valid text"


def test_shared_files_are_found_through_links(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    (tmp_path / "soft").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "b")
    test = [tmp_path / name for name in ("soft", "hard", "c")]
    assert shared_files([tmp_path / "a", tmp_path / "b"], test) == test[:2]
    assert shared_files([Path("store/x")], [Path("store/x"), Path("store/y")]) == [Path("store/x")], "names in a store"
