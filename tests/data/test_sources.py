import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unshuffle.config import Config, DataConfig, SyntheticConfig
from unshuffle.data import sources
from unshuffle.data.pack import pack
from unshuffle.data.source import FlatSource
from unshuffle.data.sources import Media, SourceFacts
from unshuffle.data.store import Store
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.errors import UserError
from unshuffle.wording import source_sentence


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        data=DataConfig(image_short_side=24, frame_short_side=16, max_bad_fraction=0.5, cache=tmp_path / "cache"),
        synthetic=SyntheticConfig(images=6, clips=5, image_size=24, frame_size=16, clip_frames=4),
    )


def listed(file: Path) -> list[str]:
    return [line.partition(",")[0] for line in file.read_text().splitlines()[1:]]


def open_media(config: Config, min_frames: int = 1) -> Media:
    return Media(config, min_frames=min_frames, progress=False)


# what is opened, and when


def test_nothing_is_opened_before_it_is_asked_for(config: Config) -> None:
    media = open_media(replace(config, images="nowhere", videos="nowhere"))
    assert (media.facts, media.skipped) == ([], [])
    with pytest.raises(UserError, match="nowhere does not exist"):
        _ = media.images


def test_each_source_is_opened_once(config: Config, image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, opened = sources.cached_store, []

    def counted(kind: str, folder: Path, *args: object, **options: object) -> Store:
        opened.append(folder)
        return real(kind, folder, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "cached_store", counted)
    media = open_media(replace(config, images=str(image_folder)))
    assert media.images is media.images
    assert opened == [image_folder] and len(media.facts) == 1 and len(media.skipped) == 2


def test_a_path_from_python_is_taken_too(config: Config, image_folder: Path) -> None:
    media = open_media(replace(config, images=image_folder))  # type: ignore[arg-type]
    assert media.images is not None and len(media.images) == 6
    assert media.facts[0].address == str(image_folder)


# the synthetic world


def test_without_data_there_is_the_synthetic_world(config: Config) -> None:
    media = open_media(config)
    assert isinstance(media.images, SyntheticSource) and len(media.images) == 6
    assert media.videos is not None and len(media.videos[0]) == 5
    np.testing.assert_array_equal(media.videos[1], np.arange(5))
    assert media.facts == [
        SourceFacts("images", None, 6, 0, "synthetic", 24),
        SourceFacts("videos", None, 5, 0, "synthetic", 16, frames=4),
    ]
    assert (media.val_images, media.val_videos, media.test_images, media.test_videos) == (None, None, None, None)


def test_the_synthetic_world_follows_the_seed(config: Config) -> None:
    first, again, other = (open_media(replace(config, seed=seed)).images for seed in (0, 0, 1))
    assert first is not None and again is not None and other is not None
    np.testing.assert_array_equal(first.read(0, [0]), again.read(0, [0]))
    assert not np.array_equal(first.read(0, [0]), other.read(0, [0]))


def test_real_data_of_one_kind_leaves_out_the_synthetic_world(
    config: Config, image_folder: Path, video_folder: Path
) -> None:
    assert open_media(replace(config, images=str(image_folder))).videos is None
    assert open_media(replace(config, videos=str(video_folder))).images is None


# folders and packed stores


def test_facts_and_skipped_files_of_a_folder(config: Config, image_folder: Path) -> None:
    media = open_media(replace(config, images=str(image_folder)))
    assert media.images is not None and min(media.images.size(0)) == 24
    (facts,) = media.facts
    assert (facts.medium, facts.address, facts.items, facts.skipped) == ("images", str(image_folder), 6, 2)
    assert (facts.storage, facts.short_side) == ("store", 24)
    assert facts.path is not None and Path(facts.path).is_relative_to(config.data.cache)
    assert [name for name, _ in media.skipped] == ["b/cc.jpg", "g.png"]


def test_a_packed_store_keeps_its_own_short_side(config: Config, image_folder: Path, tmp_path: Path) -> None:
    pack("images", image_folder, tmp_path / "store", short_side=20, progress=False)
    media = open_media(replace(config, images=str(tmp_path / "store")))
    assert media.images is not None and min(media.images.size(0)) == 20
    assert (media.facts[0].short_side, media.facts[0].path) == (20, str(tmp_path / "store"))


def test_validation_data_of_its_own(config: Config, image_folder: Path, video_folder: Path) -> None:
    data = replace(config.data, val_images=str(image_folder), val_videos=str(video_folder))
    media = open_media(replace(config, data=data), min_frames=5)
    assert media.val_images is not None and len(media.val_images) == 6
    assert media.val_videos is not None and media.val_videos[1].tolist() == [1, 2]
    assert [(facts.medium, facts.address) for facts in media.facts] == [
        ("images", str(image_folder)),
        ("videos", str(video_folder)),
    ]


def test_test_data_of_its_own(config: Config, image_folder: Path, video_folder: Path) -> None:
    data = replace(config.data, test_images=str(image_folder), test_videos=str(video_folder))
    media = open_media(replace(config, data=data), min_frames=5)
    assert media.test_images is not None and len(media.test_images) == 6
    assert media.test_videos is not None and media.test_videos[1].tolist() == [1, 2]
    assert media.val_images is None and media.val_videos is None
    assert [(facts.medium, facts.address) for facts in media.facts] == [
        ("images", str(image_folder)),
        ("videos", str(video_folder)),
    ]


# what cannot be used


def test_clips_that_are_too_short_are_skipped(config: Config, video_folder: Path) -> None:
    """The clips have 4, 5 and 6 frames; a fourth file is no video."""
    media = open_media(replace(config, videos=str(video_folder)), min_frames=5)
    assert media.videos is not None
    source, items = media.videos
    assert len(source) == 3 and items.tolist() == [1, 2]
    assert [name for name, _ in media.skipped] == ["clip1b.mp4", "clip0.mp4"]
    assert media.skipped[1][1] == "4 frames, but 5 are needed"
    assert media.facts[0].skipped == 1, "of the files that cannot be read"


@pytest.mark.parametrize(("limit", "refused"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)])
def test_too_many_bad_files(config: Config, image_folder: Path, limit: float, refused: bool) -> None:
    """Two of eight."""
    media = open_media(replace(config, images=str(image_folder), data=replace(config.data, max_bad_fraction=limit)))
    if not refused:
        assert media.images is not None
        return
    sentence = (
        f"2 of 8 images cannot be used, more than data.max_bad_fraction = {limit:g} allows "
        "(b/cc.jpg: not a supported image format"
    )
    with pytest.raises(
        UserError, match=rf"{re.escape(sentence)}.*; all are listed in {media.skipped_file}\. Remove or"
    ):
        _ = media.images
    assert listed(media.skipped_file) == ["b/cc.jpg", "g.png"]
    assert media.skipped_file.parent == config.data.cache / "skipped", "without a run folder"


def test_the_list_of_too_many_bad_files_is_in_the_run_folder_if_there_is_one(
    config: Config, image_folder: Path, tmp_path: Path
) -> None:
    data = replace(config.data, max_bad_fraction=0.0)
    media = open_media(replace(config, images=str(image_folder), out=tmp_path / "run", data=data))
    with pytest.raises(UserError, match=f"all are listed in {tmp_path}/run/skipped.csv"):
        _ = media.images
    assert listed(tmp_path / "run" / "skipped.csv") == ["b/cc.jpg", "g.png"]


def test_the_most_frequent_reason_is_named(config: Config, image_folder: Path) -> None:
    for number in range(3):
        (image_folder / f"z{number}.png").touch()
    data = replace(config.data, max_bad_fraction=0.0)
    with pytest.raises(UserError, match=r"5 of 11 images .* \(4 files, e\.g\. g\.png: the file is empty\)"):
        _ = open_media(replace(config, images=str(image_folder), data=data)).images


def test_other_files_are_counted(config: Config, image_folder: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b/b.txt", ".DS_Store", "Makefile"):
        (image_folder / name).write_text("text")
    media = open_media(replace(config, images=str(image_folder)))
    for _ in range(2):  # packed, then opened from the cache
        assert media.images is not None
        assert media.facts[0].ignored == {".txt": 2, "hidden": 1, "without extension": 1}
        media = open_media(replace(config, images=str(image_folder)))
    told = "6 images in {}, 2 files skipped, 4 others ignored (2 .txt, 1 hidden, 1 without extension); packed at "
    assert media.images is not None and source_sentence(vars(media.facts[0])).startswith(told.format(image_folder))


# long videos


def test_long_videos_are_cut_into_windows(config: Config, video_folder: Path) -> None:
    """The clips have 4, 5 and 6 frames."""
    data = replace(config.data, clip_frames=3, clips_per_video=8)
    media = open_media(replace(config, videos=str(video_folder), data=data))
    assert media.videos is not None
    source, items = media.videos
    assert list(source.names) == ["clip0.mp4", "clip1.mp4", "clip2.mp4#1", "clip2.mp4#2"]
    assert [source.num_frames(item) for item in items] == [4, 5, 3, 3]
    (facts,) = media.facts
    assert (facts.items, facts.files, facts.skipped) == (4, 3, 1)
    told = f"3 videos (long ones as windows: 4 clips in all) in {video_folder}, 1 file skipped; packed at"
    assert source_sentence(vars(facts)).startswith(told)


def test_too_many_short_clips(config: Config, video_folder: Path) -> None:
    media = open_media(replace(config, videos=str(video_folder)), min_frames=6)
    with pytest.raises(UserError, match=r"2 of 3 clips cannot be used.* \(clip0\.mp4: 4 frames, but 6 are needed\)"):
        _ = media.videos


# split lists


@pytest.fixture
def split_list(tmp_path: Path, write_video: Callable[..., Path]) -> Path:
    """UCF-101 in small: five videos of its training list, and one of another group."""
    names = [f"run/v_run_g0{number}_c01.avi" for number in range(5)]
    for name in (*names, "run/v_run_g09_c01.avi"):
        write_video((tmp_path / "UCF-101" / name).with_suffix(".mp4"), frames=5)
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "classInd.txt").write_text("1 run\n")
    (lists / "trainlist01.txt").write_text("".join(f"{name} 1\n" for name in names))
    return lists / "trainlist01.txt"


def test_a_split_list_stands_for_its_videos_alone(config: Config, split_list: Path) -> None:
    media = open_media(replace(config, videos=str(split_list)))
    assert media.videos is not None
    assert [Path(name).stem for name in media.videos[0].names] == [f"v_run_g0{number}_c01" for number in range(5)]
    assert (media.facts[0].items, media.facts[0].address) == (5, str(split_list))


def test_a_split_list_of_a_packed_store_is_refused(config: Config, split_list: Path, tmp_path: Path) -> None:
    pack("videos", tmp_path / "UCF-101", tmp_path / "store", short_side=16, progress=False)
    lists = split_list.parent.rename(tmp_path / "store" / "lists")
    with pytest.raises(UserError, match=r"lists videos of the packed store .*: give the folder of video files"):
        _ = open_media(replace(config, videos=str(lists / split_list.name))).videos


# several folders


def test_several_folders_are_one_source(config: Config, image_folder: Path, tmp_path: Path) -> None:
    twin = tmp_path / "elsewhere" / image_folder.name
    shutil.copytree(image_folder, twin)
    media = open_media(replace(config, images=(str(image_folder), str(twin))))
    both, alone = media.images, open_media(replace(config, images=str(image_folder))).images
    assert both is not None and alone is not None and len(both) == 2 * len(alone) == 12
    assert list(both.names) == [f"{number}/{name}" for number in (1, 2) for name in alone.names]
    for item in range(12):
        assert (both.num_frames(item), both.size(item)) == (1, alone.size(item % 6))
        np.testing.assert_array_equal(both.read(item, [0]), alone.read(item % 6, [0]))
    assert [facts.address for facts in media.facts] == [str(image_folder), str(twin)]
    assert media.skipped[2][0] == "2/b/cc.jpg"
    twin.rename(moved := tmp_path / "moved")
    again = open_media(replace(config, images=(str(image_folder), str(moved)))).images
    assert again is not None and list(again.names) == list(both.names), "a moved folder is the same data"


def test_the_limit_of_bad_files_is_that_of_all_folders(config: Config, image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    shutil.copy(next(image_folder.rglob("*.png")), tmp_path / "few" / "good.png")
    (tmp_path / "few" / "bad.jpg").write_text("no image")
    alone, both = str(tmp_path / "few"), (str(image_folder), str(tmp_path / "few"))
    lenient = replace(config, data=replace(config.data, max_bad_fraction=0.4))
    with pytest.raises(UserError, match="1 of 2 images cannot be used"):
        _ = open_media(replace(lenient, images=alone)).images
    assert open_media(replace(lenient, images=both)).images is not None


def test_the_bytes_of_several_folders_are_contiguous(config: Config, image_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(image_folder, tmp_path / "twin")
    both = open_media(replace(config, images=(str(image_folder), str(tmp_path / "twin")))).images
    assert isinstance(both, FlatSource)
    data, starts = both.flat()
    assert both.flat_bytes == len(data)
    for item in range(len(both)):
        height, width = both.size(item)
        pixels = data[starts[item] :][: height * width * 3].reshape(1, height, width, 3)
        np.testing.assert_array_equal(pixels, both.read(item, [0]))
    jpeg = replace(config, data=replace(config.data, encoding="jpeg"))
    compressed = open_media(replace(jpeg, images=(str(image_folder), str(tmp_path / "twin")))).images
    assert isinstance(compressed, FlatSource) and compressed.flat_bytes is None


def test_shards_are_one_address(config: Config, image_folder: Path) -> None:
    with pytest.raises(UserError, match=r"b\.tar means tar shards, which are one address"):
        _ = open_media(replace(config, images=(str(image_folder), "b.tar"))).images
