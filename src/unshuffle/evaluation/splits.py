"""Which videos to train and to test on: the official lists of UCF-101 and HMDB-51, or folders by class."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from unshuffle.data.media import find_videos
from unshuffle.data.store import Store
from unshuffle.errors import UserError
from unshuffle.evaluation.coverage import check_covered, shared_files

MANY = 0.05
"""Share of the listed videos that may be absent or unreadable; above it no figure would be worth the name."""
SPLITS = (1, 2, 3)
HMDB_ENDING = "_test_split{}.txt"
HMDB_UNUSED, HMDB_TRAINING, HMDB_TESTING = "0", "1", "2"


@dataclass(frozen=True)
class Listing:
    """Videos of a folder with a class each."""

    folder: Path
    names: tuple[str, ...]
    """Relative to the folder."""
    labels: tuple[int, ...]
    absent: tuple[str, ...] = ()
    """Videos that a list names and that are not in the folder."""

    def __len__(self) -> int:
        return len(self.names)

    def paths(self) -> list[Path]:
        """Where the videos are; those of a packed store are no files."""
        return [self.folder / name for name in self.names]

    def limited(self, classes: int | None, each: int | None) -> "Listing":
        """The first so many classes, and the first so many of the videos that are there of each; None: all."""
        if classes is None and each is None:
            return self
        kept, seen = [], Counter[int]()
        for name, label in zip(self.names, self.labels, strict=True):
            if (classes is None or label < classes) and (each is None or seen[label] < each):
                kept.append((name, label))
                seen[label] += 1
        return Listing(self.folder, tuple(name for name, _ in kept), tuple(label for _, label in kept))


@dataclass(frozen=True)
class Split:
    """What to train on and what to test on."""

    dataset: str
    number: int | None
    """Of an official split."""
    classes: tuple[str, ...]
    train: Listing
    test: Listing

    def limited(self, classes: int | None, each: int | None) -> "Split":
        """The first classes and their first videos, for a quick look."""
        train, test = (listing.limited(classes, each) for listing in (self.train, self.test))
        return replace(self, classes=self.classes[:classes], train=train, test=test)

    @property
    def name(self) -> str:
        """The dataset, and which split of it."""
        return self.dataset if self.number is None else f"{self.dataset} split {self.number}"


def folder_split(train: Path, test: Path) -> Split:
    """Two folders with a subfolder for each class, the same in both."""
    training, testing = _videos(train), _videos(test)
    classes = sorted({_class_of(name, train) for name in training} | _subfolders(train))
    tested = {_class_of(name, test) for name in testing} | _subfolders(test)
    if unknown := sorted(tested - set(classes)):
        raise UserError(f"{test} has the class {unknown[0]}, which {train} has not")
    numbers = {name: number for number, name in enumerate(classes)}

    def listing(folder: Path, names: Sequence[str]) -> Listing:
        return Listing(folder, tuple(names), tuple(numbers[_class_of(name, folder)] for name in names))

    split = Split("own folders", None, tuple(classes), listing(train, training), listing(test, testing))
    _check(split)
    return split


def _videos(folder: Path) -> Sequence[str]:
    if Store.is_store(folder):
        return Store(folder).names
    return [path.relative_to(folder).as_posix() for path in find_videos(folder)]


def _subfolders(folder: Path) -> set[str]:
    """Classes that have a folder, whether or not there is a video in it."""
    if Store.is_store(folder):
        return set()
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}


def _class_of(name: str, folder: Path) -> str:
    first, *rest = PurePosixPath(name).parts
    if not rest:
        raise UserError(f"{folder} needs a subfolder of videos for each class, and {name} is in none")
    return first


def official_split(lists: Path, videos: Path, number: int) -> Split:
    """A split of UCF-101 or HMDB-51, told apart by the names of the list files."""
    if not lists.is_dir():
        raise UserError(f"{lists} is not a folder of list files")
    if (lists / "classInd.txt").is_file():
        split = _read_ucf(lists, videos, number)
    elif any(lists.glob("*" + HMDB_ENDING.format(number))):
        split = _read_hmdb(lists, videos, number)
    else:
        raise UserError(
            f"{lists} has no lists of split {number}: neither classInd.txt and trainlist{number:02d}.txt (UCF-101) "
            f"nor CLASS{HMDB_ENDING.format(number)} (HMDB-51)"
        )
    _check(split)
    return split


def _read_ucf(lists: Path, videos: Path, number: int) -> Split:
    """`classInd.txt` numbers the classes from 1; a line of a list is CLASS/VIDEO.avi, in training with the number."""
    rows = _rows(lists / "classInd.txt", columns=(2,))
    if [index for index, _ in rows] != [str(place + 1) for place in range(len(rows))]:
        raise UserError(f"{lists / 'classInd.txt'} does not number its classes 1, 2, 3 ...")
    classes = tuple(name for _, name in rows)
    numbered = {name: place for place, name in enumerate(classes)}
    present = _Present(videos)
    train, test = (
        present.listing(_read_ucf_list(lists / f"{side}list{number:02d}.txt", numbered)) for side in ("train", "test")
    )
    return Split("UCF-101", number, classes, train, test)


def _read_ucf_list(path: Path, numbered: dict[str, int]) -> list[tuple[str, int]]:
    found = []
    for name, *stated in _rows(path, columns=(1, 2)):
        label = numbered.get(PurePosixPath(name).parent.name)
        if label is None or (stated and stated != [str(label + 1)]):
            raise UserError(f"{path} has a line that does not fit classInd.txt: {' '.join([name, *stated])}")
        found.append((name, label))
    return found


def _read_hmdb(lists: Path, videos: Path, number: int) -> Split:
    """A list for each class; a line is VIDEO.avi and 1 for training, 2 for testing or 0 for neither."""
    ending = HMDB_ENDING.format(number)
    paths = {path.name.removesuffix(ending): path for path in sorted(lists.glob("*" + ending))}
    sides: dict[str, list[tuple[str, int]]] = {HMDB_UNUSED: [], HMDB_TRAINING: [], HMDB_TESTING: []}
    for label, (name, path) in enumerate(paths.items()):
        for video, flag in _rows(path, columns=(2,)):
            if flag not in sides:
                raise UserError(f"{path} has the flag {flag} for {video}, and there are only 0, 1 and 2")
            sides[flag].append((f"{name}/{video}", label))
    present = _Present(videos)
    train, test = (present.listing(sides[flag]) for flag in (HMDB_TRAINING, HMDB_TESTING))
    return Split("HMDB-51", number, tuple(paths), train, test)


def _rows(path: Path, columns: Iterable[int]) -> list[list[str]]:
    """The words of each line that is not blank; an error if their number is not one of `columns`."""
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


class _Present:
    """The videos of a folder, found by class and name whatever their suffix: many people convert them.

    A video may lie in the folder of its class, however deep, or directly in the folder of all videos.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, str] = {}
        for name in _videos(folder):
            key = _key(name)
            if key in self._names:
                raise UserError(f"{folder} has two videos for {key}: {self._names[key]} and {name}")
            self._names[key] = name

    def listing(self, listed: Sequence[tuple[str, int]]) -> Listing:
        """The listed videos (CLASS/VIDEO.avi) that are there, and those that are not."""
        names, labels, absent = [], [], []
        for wanted, label in listed:
            key = _key(wanted)
            name = self._names.get(key) or self._names.get(PurePosixPath(key).name)
            if name is None:
                absent.append(wanted)
            else:
                names.append(name)
                labels.append(label)
        check_share(absent, len(listed), f"listed videos are not in {self.folder}")
        return Listing(self.folder, tuple(names), tuple(labels), tuple(absent))


def _key(name: str) -> str:
    return PurePosixPath(*PurePosixPath(name).with_suffix("").parts[-2:]).as_posix()


def check_share(bad: Sequence[str], total: int, trouble: str) -> None:
    """Refuse to go on without many of the videos."""
    if len(bad) > MANY * total:
        raise UserError(
            f"{len(bad)} of {total} {trouble}, the first is {bad[0]}: at most {MANY:.0%} may be left out of the figure"
        )


def _check(split: Split) -> None:
    """Every class can be learned and tested, and on other videos."""
    if len(split.classes) < 2:
        raise UserError(f"{split.train.folder} needs two or more classes, and has {len(split.classes)}")
    for purpose, listing in (("train", split.train), ("test", split.test)):
        check_covered(
            listing.labels, range(len(split.classes)), split.classes, f"video in {listing.folder} to {purpose} on"
        )
    both = shared_files(split.train.paths(), split.test.paths())
    if both:
        raise UserError(f"{both[0]} is to be trained on and tested on")
