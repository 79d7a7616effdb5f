from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from unshuffle.errors import UserError
from unshuffle.evaluation.splits import Listing, Split, folder_split, official_split


def touch(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def pairs(listing: Listing) -> list[tuple[str, int]]:
    return list(zip(listing.names, listing.labels, strict=True))


UCF_TRAIN = [f"{name}/v_{name}_g{group:02d}_c01.avi" for name in ("YoYo", "Archery") for group in (8, 9)]
UCF_TEST = [f"{name}/v_{name}_g01_c0{clip}.avi" for name in ("YoYo", "Archery") for clip in (1, 2)]


@pytest.fixture
def ucf(tmp_path: Path) -> Path:
    """List files as they are published: with the line ends of Windows, and numbers in the training list only."""
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "classInd.txt").write_bytes(b"1 YoYo\r\n2 Archery\r\n")
    numbers = {"YoYo": 1, "Archery": 2}
    for number in (1, 2, 3):
        train = "".join(f"{name} {numbers[name.split('/')[0]]}\r\n" for name in UCF_TRAIN)
        (lists / f"trainlist{number:02d}.txt").write_bytes(train.encode())
        (lists / f"testlist{number:02d}.txt").write_bytes("".join(f"{name}\r\n" for name in UCF_TEST).encode())
    touch(tmp_path / "UCF-101", UCF_TRAIN + UCF_TEST)
    return lists


@pytest.fixture
def hmdb(tmp_path: Path) -> Path:
    """A list for each class, whose lines end with a space."""
    lists = tmp_path / "testTrainMulti_7030_splits"
    lists.mkdir()
    for name in ("brush_hair", "cartwheel"):
        videos = [f"April_09_{name}_u_nm_np1_ba_goo_{k}.avi" for k in range(3)] + [f"#1_{name}!_f_cm_np1_ri_med_1.avi"]
        touch(tmp_path / "hmdb51" / name, videos)
        for number in (1, 2, 3):
            flags = {1: "1201", 2: "2110", 3: "0112"}[number]
            lines = [f"{video} {flag} \n" for video, flag in zip(videos, flags, strict=True)]
            (lists / f"{name}_test_split{number}.txt").write_text("".join(lines))
    return lists


def test_ucf(ucf: Path) -> None:
    split = official_split(ucf, ucf.parent / "UCF-101", 1)
    assert (split.name, split.dataset, split.classes) == ("UCF-101 split 1", "UCF-101", ("YoYo", "Archery"))
    assert pairs(split.train) == list(zip(UCF_TRAIN, [0, 0, 1, 1], strict=True))
    assert pairs(split.test) == list(zip(UCF_TEST, [0, 0, 1, 1], strict=True))


def test_hmdb(hmdb: Path) -> None:
    split = official_split(hmdb, hmdb.parent / "hmdb51", 1)
    assert (split.name, split.classes) == ("HMDB-51 split 1", ("brush_hair", "cartwheel"))
    hair, wheel = (f"{name}/April_09_{name}_u_nm_np1_ba_goo_" for name in split.classes)
    assert pairs(split.train) == [
        (f"{hair}0.avi", 0),
        ("brush_hair/#1_brush_hair!_f_cm_np1_ri_med_1.avi", 0),
        (f"{wheel}0.avi", 1),
        ("cartwheel/#1_cartwheel!_f_cm_np1_ri_med_1.avi", 1),
    ]
    assert pairs(split.test) == [(f"{hair}1.avi", 0), (f"{wheel}1.avi", 1)]
    assert pairs(official_split(hmdb, hmdb.parent / "hmdb51", 2).test) == [(f"{hair}0.avi", 0), (f"{wheel}0.avi", 1)]


@pytest.mark.parametrize(
    "place",
    [
        lambda name: name.replace(".avi", ".mp4"),
        lambda name: name.split("/")[1],
        lambda name: f"some/where/{name}",
    ],
    ids=["converted", "in one folder", "deeper"],
)
def test_videos_are_found_where_people_put_them(ucf: Path, tmp_path: Path, place: Callable[[str], str]) -> None:
    videos = touch(tmp_path / "mine", [place(name) for name in UCF_TRAIN + UCF_TEST])
    split = official_split(ucf, videos, 2)
    assert pairs(split.test) == [(place(name), label) for name, label in zip(UCF_TEST, [0, 0, 1, 1], strict=True)]


def test_a_video_of_another_class_is_not_taken_for_an_absent_one(ucf: Path) -> None:
    videos = ucf.parent / "UCF-101"
    (videos / UCF_TEST[0]).rename(videos / "Archery" / Path(UCF_TEST[0]).name)
    with pytest.raises(UserError, match=r"1 of 4 listed videos are not in .*UCF-101, the first is YoYo/v_YoYo_g01_c01"):
        official_split(ucf, videos, 1)


def test_a_few_absent_videos_are_counted(ucf: Path) -> None:
    more = [f"YoYo/v_YoYo_g10_c{clip:02d}.avi" for clip in range(30)]
    with (ucf / "trainlist01.txt").open("a") as file:
        file.writelines(f"{name} 1\n" for name in more)
    split = official_split(ucf, touch(ucf.parent / "UCF-101", more[1:]), 1)
    assert split.train.absent == (more[0],) and len(split.train) == 33 and split.test.absent == ()


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("trainlist01.txt", "Diving/v_Diving_g01_c01.avi 3\n", "does not fit classInd.txt: Diving/v"),
        ("trainlist01.txt", f"{UCF_TRAIN[0]} 2\n", "does not fit classInd.txt"),
        ("trainlist01.txt", "a b c\n", "cannot be read: a b c"),
        ("trainlist01.txt", "\n", "is empty"),
        ("trainlist01.txt", "".join(f"{name} 1\n" for name in UCF_TRAIN[:2]), "class Archery has no readable video"),
        ("testlist01.txt", "".join(f"{name}\n" for name in UCF_TRAIN), "to be trained on and tested on"),
        ("classInd.txt", "1 YoYo\n3 Archery\n", "does not number its classes"),
        ("classInd.txt", "x YoYo\n2 Archery\n", "does not number its classes"),
        ("classInd.txt", "1 YoYo\n2 Archery\n3 Diving\n", "class Diving has no readable video"),
    ],
)
def test_ucf_lists_that_make_no_sense(ucf: Path, file: str, text: str, match: str) -> None:
    (ucf / file).write_text(text)
    with pytest.raises(UserError, match=match):
        official_split(ucf, ucf.parent / "UCF-101", 1)


def test_hmdb_flags(hmdb: Path) -> None:
    (hmdb / "cartwheel_test_split1.txt").write_text("x.avi 3\n")
    with pytest.raises(UserError, match=r"the flag 3 for x.avi"):
        official_split(hmdb, hmdb.parent / "hmdb51", 1)


def test_lists_that_are_not_there(ucf: Path, tmp_path: Path) -> None:
    videos = tmp_path / "UCF-101"
    with pytest.raises(UserError, match="is not a folder"):
        official_split(tmp_path / "absent", videos, 1)
    with pytest.raises(UserError, match="no lists of split 1"):
        official_split(videos, videos, 1)
    (ucf / "trainlist03.txt").unlink()
    with pytest.raises(UserError, match=r"no list file .*trainlist03.txt"):
        official_split(ucf, videos, 3)
    touch(videos, ["copy/YoYo/v_YoYo_g08_c01.mp4"])
    with pytest.raises(UserError, match="two videos for YoYo/v_YoYo_g08_c01"):
        official_split(ucf, videos, 1)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return (
        touch(tmp_path / "train", ["run/a.mp4", "run/b.mp4", "jump/c.mp4", "jump/deep/d.mp4"]),
        touch(tmp_path / "test", ["run/e.mp4", "jump/f.mp4"]),
    )


def test_folders_by_class(folders: tuple[Path, Path]) -> None:
    split = folder_split(*folders)
    assert split.name == "own folders" and split.classes == ("jump", "run")
    assert pairs(split.train) == [("jump/c.mp4", 0), ("jump/deep/d.mp4", 0), ("run/a.mp4", 1), ("run/b.mp4", 1)]
    assert pairs(split.test) == [("jump/f.mp4", 0), ("run/e.mp4", 1)]


def test_folders_that_make_no_sense(folders: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = folders
    with pytest.raises(UserError, match="to be trained on and tested on"):
        folder_split(train, train)
    with pytest.raises(UserError, match="two or more classes"):
        folder_split(touch(tmp_path / "one", ["run/a.mp4"]), touch(tmp_path / "other", ["run/b.mp4"]))
    (test / "swim").mkdir()
    with pytest.raises(UserError, match="has the class swim, which"):
        folder_split(train, test)
    (train / "swim").mkdir()
    with pytest.raises(UserError, match=r"class swim has no readable video in .*train"):
        folder_split(train, test)
    touch(train, ["swim/g.mp4"])
    with pytest.raises(UserError, match=r"class swim has no readable video in .*test"):
        folder_split(train, test)
    touch(test, ["h.mp4"])
    with pytest.raises(UserError, match=r"h.mp4 is in none"):
        folder_split(train, test)


def test_a_shortened_split() -> None:
    names, labels = tuple("abcdefg"), (0, 1, 2, 0, 1, 0, 2)
    listing = Listing(Path("x"), names, labels, absent=("z",))
    split = Split("own folders", None, ("p", "q", "r"), listing, listing)
    short = split.limited(2, 2)
    assert short.classes == ("p", "q") and pairs(short.train) == [("a", 0), ("b", 1), ("d", 0), ("e", 1)]
    assert short.test.absent == (), "nothing is missing of what was asked for"
    assert split.limited(None, None) == split
    assert pairs(split.limited(None, 1).test) == [("a", 0), ("b", 1), ("c", 2)]
