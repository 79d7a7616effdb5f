"""The official split lists of UCF-101 and HMDB-51: which videos to train on and which to test on.

A side of a split has an address. For UCF-101 it is a list file, `ucfTrainTestlist/trainlist01.txt`. HMDB-51 has a file
for each class with both sides in it, so the address is their folder with `train_split1` or `test_split1` after it. The
videos are looked for below the folder of lists, or else below the folder that holds it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from unshuffle.data.inventory import take_inventory
from unshuffle.data.store import Store
from unshuffle.errors import UserError

MAX_MISSING = 0.05
"""Fraction of the listed videos that may be absent or unreadable; with more no figure would be comparable."""
SPLITS = (1, 2, 3)
Side = Literal["train", "test"]
HMDB_SUFFIX = "_test_split{}.txt"
HMDB_FLAGS: dict[Side, str] = {"train": "1", "test": "2"}
_ADDRESS = re.compile(r"(train|test)(?:list0?|_split)([123])(?:\.txt)?")


@dataclass(frozen=True)
class SplitList:
    """The videos of one side of a split with a class each."""

    dataset: str
    number: int
    folder: Path
    """Folder or packed store of the videos."""
    names: tuple[str, ...]
    """Relative to the folder."""
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    absent: tuple[str, ...] = ()
    """Videos that the list names and the folder lacks."""


def is_split_list(address: Path) -> bool:
    """Return whether an address has the form of a side of a split, in a folder that exists."""
    address = address.expanduser()
    return bool(_ADDRESS.fullmatch(address.name)) and not address.is_dir() and address.parent.is_dir()


def find_split_list(address: Path) -> SplitList | None:
    """Return the side of a split that an address means, or None if it means something else."""
    match = _ADDRESS.fullmatch(address.name) if is_split_list(address) else None
    if match is None:
        return None
    side: Side = "train" if match[1] == "train" else "test"
    lists = address.absolute().parent
    return read_split_list(lists, lists if take_inventory(lists, "videos").files else lists.parent, int(match[2]), side)


def read_split_list(lists: Path, videos: Path, number: int, side: Side) -> SplitList:
    """Return one side of a split of UCF-101 or HMDB-51, which are told apart by the names of the list files."""
    if not lists.is_dir():
        raise UserError(f"{lists} is not a folder of list files")
    if (lists / "classInd.txt").is_file():
        return _read_ucf(lists, videos, number, side)
    if any(lists.glob("*" + HMDB_SUFFIX.format(number))):
        return _read_hmdb(lists, videos, number, side)
    raise UserError(
        f"{lists} has no lists of split {number}: neither classInd.txt and trainlist{number:02d}.txt (UCF-101) "
        f"nor CLASS{HMDB_SUFFIX.format(number)} (HMDB-51)"
    )


def _read_ucf(lists: Path, videos: Path, number: int, side: Side) -> SplitList:
    """`classInd.txt` numbers the classes from 1; a line of a list is CLASS/VIDEO.avi, in training with the number."""
    rows = _rows(lists / "classInd.txt", columns=(2,))
    if [index for index, _ in rows] != [str(position + 1) for position in range(len(rows))]:
        raise UserError(f"{lists / 'classInd.txt'} does not number its classes 1, 2, 3 ...")
    numbers = {name: index for index, name in rows}
    path = lists / f"{side}list{number:02d}.txt"
    listed = []
    for name, *stated in _rows(path, columns=(1, 2)):
        class_number = numbers.get(PurePosixPath(name).parent.name)
        if class_number is None or stated not in ([], [class_number]):
            raise UserError(f"{path} has a line that does not fit classInd.txt: {' '.join([name, *stated])}")
        listed.append((name, int(class_number) - 1))
    return _find_videos(videos, "UCF-101", number, tuple(name for _, name in rows), listed)


def _read_hmdb(lists: Path, videos: Path, number: int, side: Side) -> SplitList:
    """A list for each class; a line is VIDEO.avi and 1 for training, 2 for testing or 0 for neither."""
    suffix = HMDB_SUFFIX.format(number)
    paths = {path.name.removesuffix(suffix): path for path in sorted(lists.glob("*" + suffix))}
    listed: list[tuple[str, int]] = []
    for label, (name, path) in enumerate(paths.items()):
        for video, flag in _rows(path, columns=(2,)):
            if flag not in ("0", *HMDB_FLAGS.values()):
                raise UserError(f"{path} has the flag {flag} for {video}, and there are only 0, 1 and 2")
            if flag == HMDB_FLAGS[side]:
                listed.append((f"{name}/{video}", label))
    return _find_videos(videos, "HMDB-51", number, tuple(paths), listed)


def _rows(path: Path, columns: Iterable[int]) -> list[list[str]]:
    """Return the words of each line that is not blank; an error if their number is not one of `columns`."""
    if not path.is_file():
        raise UserError(f"there is no list file {path}")
    rows = [line.split() for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    rows = [row for row in rows if row]
    for row in rows:
        if len(row) not in columns:
            raise UserError(f"{path} has a line that cannot be read: {' '.join(row)}")
    if not rows:
        raise UserError(f"{path} is empty")
    return rows


def _find_videos(
    folder: Path, dataset: str, number: int, classes: tuple[str, ...], listed: Sequence[tuple[str, int]]
) -> SplitList:
    """Find the listed videos (CLASS/VIDEO.avi) in a folder or packed store.

    A video is found by class and name whatever its suffix, as many people convert them. It may lie in the folder of its
    class, however deep, or directly in the folder of all videos.
    """
    available = Store(folder).origins if Store.is_store(folder) else list(take_inventory(folder, "videos").files)
    present: dict[str, str] = {}
    for name in dict.fromkeys(available):
        key = _key(name)
        if key in present:
            raise UserError(f"{folder} has two videos for {key}: {present[key]} and {name}")
        present[key] = name
    names, labels, absent = [], [], []
    for wanted, label in listed:
        key = _key(wanted)
        video = present.get(key) or present.get(PurePosixPath(key).name)
        if video is None:
            absent.append(wanted)
        else:
            names.append(video)
            labels.append(label)
    check_missing(absent, len(listed), f"listed videos are not in {folder}")
    return SplitList(dataset, number, folder, tuple(names), tuple(labels), classes, tuple(absent))


def _key(name: str) -> str:
    return PurePosixPath(*PurePosixPath(name).with_suffix("").parts[-2:]).as_posix()


def check_missing(missing: Sequence[str], total: int, problem: str) -> None:
    """Raise a UserError if more of the listed videos are missing than a comparable figure allows."""
    if len(missing) > MAX_MISSING * total:
        raise UserError(
            f"{len(missing)} of {total} {problem}, the first is {missing[0]}: at most {MAX_MISSING:.0%} may be left out"
        )
