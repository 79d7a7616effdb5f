from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from unshuffle.data.splits import Side, SplitList, find_split_list, read_split_list
from unshuffle.errors import UserError


def touch(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def pairs(split: SplitList) -> list[tuple[str, int]]:
    return list(zip(split.names, split.labels, strict=True))


def read_both(lists: Path, videos: Path, number: int) -> tuple[SplitList, SplitList]:
    sides: tuple[Side, Side] = ("train", "test")
    train, test = (read_split_list(lists, videos, number, side) for side in sides)
    return train, test


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
    train, test = read_both(ucf, ucf.parent / "UCF-101", 1)
    assert (train.dataset, train.number, train.classes) == ("UCF-101", 1, ("YoYo", "Archery"))
    assert pairs(train) == list(zip(UCF_TRAIN, [0, 0, 1, 1], strict=True)) and len(train.names) == 4
    assert pairs(test) == list(zip(UCF_TEST, [0, 0, 1, 1], strict=True))


def test_hmdb(hmdb: Path) -> None:
    train, test = read_both(hmdb, hmdb.parent / "hmdb51", 1)
    assert (train.dataset, train.number, train.classes) == ("HMDB-51", 1, ("brush_hair", "cartwheel"))
    hair, wheel = (f"{name}/April_09_{name}_u_nm_np1_ba_goo_" for name in train.classes)
    assert pairs(train) == [
        (f"{hair}0.avi", 0),
        ("brush_hair/#1_brush_hair!_f_cm_np1_ri_med_1.avi", 0),
        (f"{wheel}0.avi", 1),
        ("cartwheel/#1_cartwheel!_f_cm_np1_ri_med_1.avi", 1),
    ]
    assert pairs(test) == [(f"{hair}1.avi", 0), (f"{wheel}1.avi", 1)]
    _, second = read_both(hmdb, hmdb.parent / "hmdb51", 2)
    assert pairs(second) == [(f"{hair}0.avi", 0), (f"{wheel}0.avi", 1)]


def test_addresses_of_sides(ucf: Path, hmdb: Path) -> None:
    root = ucf.parent
    for address, expected in {
        ucf / "trainlist01.txt": read_split_list(ucf, root, 1, "train"),
        ucf / "testlist03.txt": read_split_list(ucf, root, 3, "test"),
        hmdb / "train_split2": read_split_list(hmdb, root, 2, "train"),
        hmdb / "test_split2.txt": read_split_list(hmdb, root, 2, "test"),
    }.items():
        assert find_split_list(address) == expected and expected.names
    for address in (ucf, ucf / "classInd.txt", root / "UCF-101", root / "nowhere" / "trainlist01.txt"):
        assert find_split_list(address) is None


def test_videos_below_the_folder_of_lists_come_first(ucf: Path) -> None:
    (ucf.parent / "UCF-101").rename(ucf / "UCF-101")
    touch(ucf.parent / "copy", UCF_TRAIN)
    split = find_split_list(ucf / "trainlist01.txt")
    assert split is not None and split.folder == ucf and split.names[0] == f"UCF-101/{UCF_TRAIN[0]}"


@pytest.mark.parametrize(
    "layout",
    [
        lambda name: name.replace(".avi", ".mp4"),
        lambda name: name.split("/")[1],
        lambda name: f"some/where/{name}",
    ],
    ids=["converted", "in one folder", "deeper"],
)
def test_videos_are_found_in_all_usual_layouts(ucf: Path, tmp_path: Path, layout: Callable[[str], str]) -> None:
    videos = touch(tmp_path / "mine", [layout(name) for name in UCF_TRAIN + UCF_TEST])
    expected = [(layout(name), label) for name, label in zip(UCF_TEST, [0, 0, 1, 1], strict=True)]
    assert pairs(read_split_list(ucf, videos, 2, "test")) == expected


def test_a_video_of_another_class_is_not_taken_for_an_absent_one(ucf: Path) -> None:
    videos = ucf.parent / "UCF-101"
    (videos / UCF_TEST[0]).rename(videos / "Archery" / Path(UCF_TEST[0]).name)
    with pytest.raises(UserError, match=r"1 of 4 listed videos are not in .*UCF-101, the first is YoYo/v_YoYo_g01_c01"):
        read_both(ucf, videos, 1)


def test_a_few_absent_videos_are_counted(ucf: Path) -> None:
    more = [f"YoYo/v_YoYo_g10_c{clip:02d}.avi" for clip in range(30)]
    with (ucf / "trainlist01.txt").open("a") as file:
        file.writelines(f"{name} 1\n" for name in more)
    train, test = read_both(ucf, touch(ucf.parent / "UCF-101", more[1:]), 1)
    assert train.absent == (more[0],) and len(train.names) == 33 and test.absent == ()


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("trainlist01.txt", "Diving/v_Diving_g01_c01.avi 3\n", "does not fit classInd.txt: Diving/v"),
        ("trainlist01.txt", f"{UCF_TRAIN[0]} 2\n", "does not fit classInd.txt"),
        ("trainlist01.txt", "a b c\n", "cannot be read: a b c"),
        ("trainlist01.txt", "\n", "is empty"),
        ("classInd.txt", "1 YoYo\n3 Archery\n", "does not number its classes"),
        ("classInd.txt", "x YoYo\n2 Archery\n", "does not number its classes"),
    ],
)
def test_ucf_lists_that_make_no_sense(ucf: Path, file: str, text: str, match: str) -> None:
    (ucf / file).write_text(text)
    with pytest.raises(UserError, match=match):
        read_both(ucf, ucf.parent / "UCF-101", 1)


def test_hmdb_flags(hmdb: Path) -> None:
    (hmdb / "cartwheel_test_split1.txt").write_text("x.avi 3\n")
    with pytest.raises(UserError, match=r"the flag 3 for x.avi"):
        read_both(hmdb, hmdb.parent / "hmdb51", 1)


def test_lists_that_are_not_there(ucf: Path, tmp_path: Path) -> None:
    videos = tmp_path / "UCF-101"
    with pytest.raises(UserError, match="is not a folder"):
        read_both(tmp_path / "absent", videos, 1)
    with pytest.raises(UserError, match="no lists of split 1"):
        read_both(videos, videos, 1)
    (ucf / "trainlist03.txt").unlink()
    with pytest.raises(UserError, match=r"no list file .*trainlist03.txt"):
        read_both(ucf, videos, 3)
    touch(videos, ["copy/YoYo/v_YoYo_g08_c01.mp4"])
    with pytest.raises(UserError, match="two videos for YoYo/v_YoYo_g08_c01"):
        read_both(ucf, videos, 1)
