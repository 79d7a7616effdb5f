import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unshuffle.config import Config, DataConfig, SpatialConfig, SyntheticConfig, TemporalConfig
from unshuffle.data.pack import pack
from unshuffle.errors import UserError
from unshuffle.tasks.prepare import Data, prepare, split


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        data=DataConfig(val_size=1, image_short_side=32, frame_short_side=24, cache=tmp_path / "cache"),
        synthetic=SyntheticConfig(images=6, clips=5, image_size=24, frame_size=16, clip_frames=4),
        spatial=SpatialConfig(image_fraction=15 / 16, crop_size=8),
        temporal=TemporalConfig(frames=4, crop_size=8),
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48 + number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def videos(tmp_path: Path, write_video: Callable[..., Path]) -> Path:
    for number in range(4):
        write_video(tmp_path / "videos" / f"{number}.mp4", frames=4 + number)
    return tmp_path / "videos"


def summary(data: Data) -> dict[str, tuple[int, int, int, int]]:
    """For each task: training samples, validation samples, frames, side."""
    assert list(data.training) == list(data.validation)
    result = {}
    for task, training in data.training.items():
        validation = data.validation[task]
        assert not set(training.items.tolist()) & set(validation.items.tolist())
        assert (training.frames, training.side, training.source) == (
            validation.frames,
            validation.side,
            validation.source,
        )
        result[task] = (len(training), len(validation), training.frames, training.side)
    return result


SYNTHETIC_S = {"spatial": (5, 1, 1, 22)}
SYNTHETIC_T = {"temporal": (4, 1, 4, 15)}
IMAGES_S = {"spatial": (4, 1, 1, 30)}
VIDEOS_S = {"spatial": (3, 1, 1, 22)}
VIDEOS_T = {"temporal": (3, 1, 4, 22)}
IMAGES_R = {"rotation": (4, 1, 1, 32)}
VIDEOS_R = {"rotation": (3, 1, 1, 24)}
IMAGES_I = {"instance": (4, 1, 1, 32)}


@pytest.mark.parametrize(
    ("given", "tasks", "expected"),
    [
        ("", "auto", SYNTHETIC_S | SYNTHETIC_T),
        ("", "S", SYNTHETIC_S),
        ("", "T", SYNTHETIC_T),
        ("", "S+T", SYNTHETIC_S | SYNTHETIC_T),
        ("", "S&T", SYNTHETIC_S | SYNTHETIC_T),
        ("images", "auto", IMAGES_S),
        ("images", "S", IMAGES_S),
        ("videos", "auto", VIDEOS_S | VIDEOS_T),
        ("videos", "S", VIDEOS_S),
        ("videos", "T", VIDEOS_T),
        ("images videos", "auto", IMAGES_S | VIDEOS_T),
        ("images videos", "S+T", IMAGES_S | VIDEOS_T),
        ("images videos", "S&T", IMAGES_S | VIDEOS_T),
        ("images videos", "S", IMAGES_S),
        ("images videos", "T", VIDEOS_T),
        ("images", "R", IMAGES_R),
        ("videos", "R", VIDEOS_R),
        ("images videos", "S+T+R", IMAGES_S | VIDEOS_T | IMAGES_R),
        ("images videos", "S+R&T", IMAGES_S | VIDEOS_T | IMAGES_R),
        ("images videos", "S+T+I", IMAGES_S | VIDEOS_T | IMAGES_I),
    ],
)
def test_what_is_given_decides_the_tasks(
    given: str, tasks: Any, expected: dict[str, Any], config: Config, images: Path, videos: Path
) -> None:
    config = replace(
        config,
        tasks=tasks,
        images=images if "images" in given else None,
        videos=videos if "videos" in given else None,
    )
    data = prepare(config, progress=False)
    assert summary(data) == expected
    told = " ".join(data.sentences())
    assert ("synthetic world" in told) == (not given)
    assert ("frames of the videos" in told) == (given == "videos" and tasks != "T")


@pytest.mark.parametrize("given", ["videos", "images videos"])
def test_pairs_of_frames_come_from_videos(given: str, config: Config, images: Path, videos: Path) -> None:
    config = replace(
        config,
        tasks="I",
        images=str(images) if "images" in given else None,
        videos=str(videos),
        instance=replace(config.instance, positives="frames"),
    )
    data = prepare(config, progress=False)
    assert summary(data) == {"instance": (3, 1, 2, 24)}
    assert "frames of the videos" not in " ".join(data.sentences()), "nothing is unusual about it"


def test_images_are_not_opened_for_the_temporal_task_alone(config: Config, videos: Path) -> None:
    data = prepare(replace(config, images="nowhere", videos=str(videos), tasks="T"), progress=False)
    assert [source.medium for source in data.sources] == ["videos"]
    assert {name: split.source for name, split in data.splits.items()} == {"temporal": "videos"}


@pytest.mark.parametrize("tasks", ["T", "S+T", "S&T"])
def test_the_temporal_task_needs_videos(tasks: Any, config: Config, images: Path) -> None:
    with pytest.raises(UserError, match="needs videos"):
        prepare(replace(config, images=images, tasks=tasks), progress=False)


def test_samples_can_be_read_for_training_and_validation(config: Config, images: Path, videos: Path) -> None:
    data = prepare(replace(config, images=images, videos=videos), progress=False)
    for task, shape in {"spatial": (1, 30, 30, 3), "temporal": (4, 22, 22, 3)}.items():
        samples = data.training[task]
        pixels = samples.read(samples.random_windows(samples.items[:1], np.random.default_rng(0)))
        assert pixels.shape == (1, *shape)
        assert data.validation[task].centres().shape == (1, *shape)


def test_the_frame_span_is_handed_on(config: Config) -> None:
    config = replace(config, temporal=replace(config.temporal, frame_span=7))
    data = prepare(config, progress=False)
    assert data.training["temporal"].span == data.validation["temporal"].span == 7


def test_frames_may_play_backwards(config: Config) -> None:
    assert not prepare(config).training["temporal"].reverse
    assert prepare(replace(config, temporal=replace(config.temporal, reverse=True))).training["temporal"].reverse


def test_validation_samples_may_come_from_elsewhere(config: Config, images: Path, videos: Path, tmp_path: Path) -> None:
    for name in ("images", "videos"):
        shutil.copytree(tmp_path / name, tmp_path / f"other {name}")
    elsewhere = replace(
        config.data, val_images=str(tmp_path / "other images"), val_videos=str(tmp_path / "other videos"), val_size=3
    )
    data = prepare(replace(config, images=str(images), videos=str(videos), data=elsewhere))
    assert [len(data.training[task]) for task in ("spatial", "temporal")] == [5, 4]
    assert [len(data.validation[task]) for task in ("spatial", "temporal")] == [3, 3]
    for task, samples in data.training.items():
        other = data.validation[task]
        assert other.source is not samples.source and (other.frames, other.side) == (samples.frames, samples.side)
    frames = prepare(replace(config, videos=str(videos), data=elsewhere))
    assert len(frames.training["spatial"]) == 4 and len(frames.validation["spatial"].source) == 4


def test_test_samples_may_come_from_elsewhere(config: Config, images: Path, videos: Path, tmp_path: Path) -> None:
    for name in ("images", "videos"):
        shutil.copytree(tmp_path / name, tmp_path / f"other {name}")
    elsewhere = replace(
        config.data, test_images=str(tmp_path / "other images"), test_videos=str(tmp_path / "other videos"), test_size=1
    )
    data = prepare(replace(config, images=str(images), videos=str(videos), data=elsewhere))
    assert [(facts.training, facts.validation, facts.test) for facts in data.splits.values()] == [(4, 1, 5), (3, 1, 4)]
    for task, samples in data.training.items():
        other = data.test[task]
        assert other.source is not samples.source and other.source is not data.validation[task].source
        assert (other.frames, other.side) == (samples.frames, samples.side)
        assert other.items.tolist() == list(range(len(other.source))), "test_size does not limit them"
    frames = prepare(replace(config, videos=str(videos), data=elsewhere))
    assert len(frames.test["spatial"].source) == 4


def test_with_validation_samples_from_elsewhere_the_test_set_is_held_out(config: Config, images: Path) -> None:
    elsewhere = replace(config.data, val_images=str(images), val_size=4)
    config = replace(config, synthetic=replace(config.synthetic, images=30), data=elsewhere, tasks="S")
    data = prepare(config)
    assert [len(part["spatial"]) for part in (data.training, data.validation, data.test)] == [27, 4, 3]
    assert data.test["spatial"].source is data.training["spatial"].source
    assert not set(data.test["spatial"].items.tolist()) & set(data.training["spatial"].items.tolist())


def test_no_test_set_of_few_samples_or_of_size_0(config: Config) -> None:
    assert prepare(config).test == {}
    many = replace(config, synthetic=replace(config.synthetic, images=30, clips=9))
    data = prepare(many)
    assert list(data.test) == ["spatial"] and len(data.test["spatial"]) == 3
    assert (data.splits["spatial"].test, data.splits["temporal"].test) == (3, 0)
    without = prepare(replace(many, data=replace(many.data, test_size=0)))
    assert without.test == {} and len(without.training["spatial"]) == 29
    assert without.validation["spatial"].items.tolist() == data.validation["spatial"].items.tolist()


def test_the_seed_decides_world_and_split(config: Config) -> None:
    first, again = prepare(config).training["spatial"], prepare(config).training["spatial"]
    other = prepare(replace(config, seed=1)).training["spatial"]
    np.testing.assert_array_equal(first.items, again.items)
    np.testing.assert_array_equal(first.source.read(0, [0]), again.source.read(0, [0]))
    assert not np.array_equal(first.source.read(0, [0]), other.source.read(0, [0]))


def test_skipped_files_are_listed_and_counted(config: Config, images: Path) -> None:
    (images / "broken.png").write_text("no image")
    config = replace(config, images=images, data=replace(config.data, max_bad_fraction=0.2))
    data = prepare(config, progress=False)
    assert [name for name, _ in data.skipped] == ["broken.png"]
    assert (data.sources[0].items, data.sources[0].skipped) == (5, 1)
    assert "5 images" in data.sentences()[0] and "1 file skipped" in data.sentences()[0]


def test_videos_beside_images_are_not_overlooked(
    config: Config, images: Path, write_video: Callable[..., Path]
) -> None:
    for number in range(12):
        write_video(images / f"{number}.mp4", frames=8)
    note = "note: 12 videos ignored: give the folder as --videos too to use them"
    assert note in prepare(replace(config, images=images, tasks="S"), progress=False).sentences()
    both = prepare(replace(config, images=images, videos=images), progress=False)
    assert not any(sentence.startswith("note") for sentence in both.sentences())


def test_too_many_bad_files(config: Config, images: Path) -> None:
    (images / "broken.png").write_text("no image")
    with pytest.raises(UserError, match=r"1 of 6 images cannot be used.*max_bad_fraction = 0\.1.*broken\.png"):
        prepare(replace(config, images=images), progress=False)


def test_short_clips_are_skipped_and_listed(config: Config, videos: Path) -> None:
    config = replace(
        config,
        videos=videos,
        temporal=replace(config.temporal, frames=6),
        data=replace(config.data, max_bad_fraction=0.5, val_size=1),
    )
    data = prepare(config, progress=False)
    assert data.skipped == [
        ("0.mp4", "4 frames, but 6 are needed"),
        ("1.mp4", "5 frames, but 6 are needed"),
    ]
    used = {int(item) for part in (data.training, data.validation) for item in part["temporal"].items}
    assert {data.training["temporal"].source.names[item] for item in used} == {"2.mp4", "3.mp4"}
    assert data.training["spatial"].items.tolist() == data.training["temporal"].items.tolist()
    alone = prepare(replace(config, tasks="S"), progress=False)
    assert len(alone.training["spatial"]) == 3, "the spatial task by itself needs but one frame"
    strict = replace(config, data=replace(config.data, max_bad_fraction=0.4))
    with pytest.raises(UserError, match="2 of 4 clips cannot be used"):
        prepare(strict, progress=False)


def test_windows_of_a_video_are_on_one_side(config: Config, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    for number in range(12):
        write_video(tmp_path / "long" / f"{number:02}.mp4", frames=16)
    data = replace(config.data, val_size=6, clip_frames=4, clips_per_video=3)
    for seed in range(5):
        prepared = prepare(replace(config, videos=str(tmp_path / "long"), seed=seed, data=data), progress=False)
        for task in ("spatial", "temporal"):
            sides = [samples[task] for samples in (prepared.training, prepared.validation, prepared.test)]
            assert [len(side) for side in sides] == [27, 6, 3], "nothing is wasted, as the numbers fit"
            files = [{side.source.names[item].partition("#")[0] for item in side.items.tolist()} for side in sides]
            assert [len(names) for names in files] == [9, 2, 1] and len(set.union(*files)) == 12


def test_few_long_videos_have_no_test_set(config: Config, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    """Of three videos one is held out; a second one would be a third of the data."""
    for number in range(3):
        write_video(tmp_path / "long" / f"{number}.mp4", frames=20)
    data = replace(config.data, clip_frames=4, clips_per_video=5)
    prepared = prepare(replace(config, videos=str(tmp_path / "long"), tasks="T", data=data), progress=False)
    assert (len(prepared.training["temporal"]), len(prepared.validation["temporal"]), prepared.test) == (10, 1, {})


def test_one_long_video_cannot_be_divided(config: Config, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    write_video(tmp_path / "long" / "x.mp4", frames=20)
    data = replace(config.data, clip_frames=4)
    with pytest.raises(UserError, match=r"nothing is left to train on of 5 samples .* and siblings stay together"):
        prepare(replace(config, videos=str(tmp_path / "long"), data=data), progress=False)


def test_validation_must_leave_something(config: Config) -> None:
    config = replace(config, synthetic=replace(config.synthetic, clips=1), tasks="T")
    with pytest.raises(UserError, match="nothing is left to train on of 1 sample when 1 is held out"):
        prepare(config, progress=False)


@pytest.mark.parametrize(
    ("total", "wanted", "size"), [(2, 100, 1), (9, 2, 1), (40, 100, 8), (40, 8, 8), (40, 5, 5), (500, 100, 100)]
)
def test_at_most_a_fifth_is_held_out(config: Config, total: int, wanted: int, size: int) -> None:
    config = replace(config, synthetic=replace(config.synthetic, clips=total, images=total))
    data = prepare(replace(config, data=replace(config.data, val_size=wanted), tasks="S+T"), progress=False)
    for task in ("spatial", "temporal"):
        test = len(data.test[task]) if task in data.test else 0
        assert test == min(100, total // 10)
        assert (len(data.validation[task]), len(data.training[task])) == (size, total - size - test)
        split = data.splits[task]
        assert (split.training, split.validation, split.test) == (total - size - test, size, test)
        assert split.requested == wanted
    told = [sentence for sentence in data.sentences() if str(wanted) in sentence and "val_size" in sentence]
    assert len(told) == 2 * (size < wanted)


def test_a_broken_pattern(config: Config) -> None:
    with pytest.raises(UserError, match="sibling_pattern is not a regular expression"):
        prepare(replace(config, data=replace(config.data, sibling_pattern="(")), progress=False)


def test_siblings_are_kept_together_from_config(config: Config) -> None:
    world = replace(config.synthetic, clips=18)
    pattern = "clip/([a-z]+)/"  # all clips of a motion are siblings
    config = replace(config, synthetic=world, data=replace(config.data, sibling_pattern=pattern), tasks="T")
    data = prepare(config, progress=False)
    names = data.training["temporal"].source.names
    parts = (data.training, data.validation, data.test)
    motions = [{names[item].split("/")[1] for item in part["temporal"].items} for part in parts]
    assert sum(map(len, motions)) == len(set.union(*motions)), "no motion is on two sides"
    assert [len(part["temporal"]) for part in parts] == [12, 1, 1]


@given(total=st.integers(2, 60), fraction=st.floats(0, 1), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_split_without_a_pattern(total: int, fraction: float, seed: int) -> None:
    names = [f"{number}.png" for number in range(total)]
    size = max(1, min(total - 1, round(fraction * total)))
    training, validation, _ = split(names, size, 0, "", seed)
    assert len(validation) == size
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(total))


@given(
    families=st.lists(st.integers(1, 5), min_size=4, max_size=15),
    size=st.integers(1, 5),
    grouped=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_split_keeps_siblings_on_one_side(families: list[int], size: int, grouped: bool, seed: int) -> None:
    names = [f"v_Run_g{group:02}_c{clip}.avi" for group, count in enumerate(families) for clip in range(count)]
    pattern = r"(v_.*_g\d+)_c\d+" if grouped else r"g\d+"
    try:
        training, validation, _ = split(names, size, 0, pattern, seed)
    except UserError:
        assert len(names) - max(families) < size, "only where the last family was needed"
        return

    def group_of(position: int) -> str:
        match = re.search(r"g\d+", names[position])
        assert match
        return match[0]

    assert len(validation) == size == len(set(validation.tolist()))
    held_out = {group_of(position) for position in validation}
    others = [position for position in range(len(names)) if group_of(position) not in held_out]
    assert training.tolist() == others, "all that have no sibling in X_val"


@given(
    families=st.lists(st.integers(1, 5), min_size=3, max_size=15),
    sizes=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    pattern=st.sampled_from(["", r"(v_.*_g\d+)_c\d+", r"g\d+", "no match"]),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_three_sides_share_no_family(
    families: list[int], sizes: tuple[int, int], pattern: str, order: Random, seed: int
) -> None:
    names = [f"v_Run_g{group:02}_c{clip}.avi" for group, count in enumerate(families) for clip in range(count)]
    order.shuffle(names)
    siblings = pattern not in ("", "no match")
    family = [name.rpartition("_c")[0] if siblings else name for name in names]
    val_size, test_size = sizes
    try:
        parts = split(names, val_size, test_size, pattern, seed)
    except UserError:
        largest = max(families) if siblings else 1
        assert len(names) - sum(size + largest - 1 for size in sizes if size) <= 0, "only where nothing may be left"
        return
    training, validation, test = (part.tolist() for part in parts)
    assert len(training) > 0 and (len(validation), len(test)) == sizes
    assert all(part == sorted(set(part)) for part in (training, validation, test))
    used = [{family[position] for position in part} for part in (training, validation, test)]
    assert sum(map(len, used)) == len(set.union(*used)), "no family is on two sides, so no sample is either"
    held_out = used[1] | used[2]
    assert training == [position for position in range(len(names)) if family[position] not in held_out]
    without = split(names, val_size, 0, pattern, seed)
    assert validation == without[1].tolist(), "X_val does not depend on the test set"
    assert set(training) | set(test) <= set(without[0].tolist())


def test_a_test_set_that_leaves_nothing() -> None:
    names = [f"g{number % 2}_c{number}" for number in range(12)]
    with pytest.raises(
        UserError,
        match=r"nothing is left to train on of 12 samples when 1 is held out as the pretext test set and siblings "
        r"stay together: give more data, or set data\.test_size to 0",
    ):
        split(names, 2, 1, "g[01]", 0)


def test_names_without_a_match_are_on_their_own() -> None:
    names = ["a_g1_c1", "a_g1_c2", "b", "c", "d"]
    for seed in range(10):
        training, validation, _ = split(names, 1, 0, "g[0-9]", seed)
        assert len(training) == (3 if validation[0] < 2 else 4)


def test_split_is_seeded() -> None:
    names = [str(number) for number in range(100)]
    first, again, other = (split(names, 20, 0, "", seed)[1].tolist() for seed in (0, 0, 1))
    assert first == again != other
    chosen = {position for seed in range(60) for position in split(names, 10, 0, "", seed)[1]}
    assert chosen == set(range(100)), "any sample may be held out"


def test_split_with_one_family() -> None:
    with pytest.raises(UserError, match="siblings"):
        split(["g1_c1", "g1_c2", "g1_c3"], 1, 0, "g1", 0)


def test_a_store_and_its_folder_give_the_same_fraction_of_an_image(
    config: Config, images: Path, tmp_path: Path
) -> None:
    pack("images", images, tmp_path / "store", short_side=64, progress=False)
    folder, store = (prepare(replace(config, images=path), progress=False) for path in (images, tmp_path / "store"))
    assert (folder.training["spatial"].side, store.training["spatial"].side) == (30, 60)


def test_the_two_tasks_hold_out_the_same_clips(config: Config, videos: Path, write_video: Callable[..., Path]) -> None:
    write_video(videos / "0a.mp4", frames=3)  # too short for the temporal task
    data = prepare(replace(config, videos=videos, data=replace(config.data, max_bad_fraction=0.5)), progress=False)
    spatial, temporal = data.validation["spatial"], data.validation["temporal"]
    assert spatial.items.tolist() == temporal.items.tolist()


def test_tasks_on_the_same_clips_test_on_the_same_clips(
    config: Config, tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    for number in range(20):
        write_video(tmp_path / "many" / f"{number:02}.mp4", frames=4)
    data = prepare(replace(config, videos=str(tmp_path / "many")), progress=False)
    spatial, temporal = data.test["spatial"], data.test["temporal"]
    assert spatial.items.tolist() == temporal.items.tolist() and len(spatial) == 2


def test_a_group_that_does_not_take_part_in_the_match_is_no_family() -> None:
    training, validation, _ = split(["a1", "b1", "b2", "b3"], 1, 0, "(a)|b", seed=0)
    assert len(training) + len(validation) == 4


def test_a_split_list_is_trained_on_alone(config: Config, tmp_path: Path, write_video: Callable[..., Path]) -> None:
    lists, train = tmp_path / "ucfTrainTestlist", [f"run/v_run_g0{number}_c01.avi" for number in range(5)]
    lists.mkdir()
    for name in (*train, "run/v_run_g09_c01.avi"):
        write_video((tmp_path / "UCF-101" / name).with_suffix(".mp4"), frames=5)
    (lists / "classInd.txt").write_text("1 run\n")
    (lists / "trainlist01.txt").write_text("".join(f"{name} 1\n" for name in train))
    data = prepare(replace(config, videos=str(lists / "trainlist01.txt"), tasks="T"), progress=False)
    names = {Path(name).stem for name in data.training["temporal"].source.names}
    assert names == {Path(name).stem for name in train}, "the test video is left out"
