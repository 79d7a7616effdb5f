import io
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unshuffle import cli
from unshuffle.config import Config, DataConfig, LimitsConfig, TemporalConfig
from unshuffle.data import media, shard_files
from unshuffle.data.batches import BatchStream, Samples
from unshuffle.data.decode import EncodedSquares, decode_batch
from unshuffle.data.pack import pack
from unshuffle.data.shard_files import _last_use_and_size
from unshuffle.data.shards import ShardOptions, ShardSource, assign_ranks, open_shards, windowed_order
from unshuffle.data.squares import RankSlice
from unshuffle.errors import UserError
from unshuffle.tasks.prepare import prepare

SIDE = 32
Members = dict[str, bytes]

CPU = torch.device("cpu")


def photo(number: int, width: int, height: int) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(
    number: int = 0, width: int = 50, height: int = 40, suffix: str = "jpeg", mode: str = "RGB", **options: Any
) -> bytes:
    buffer = io.BytesIO()
    photo(number, width, height).convert(mode).save(buffer, suffix, **options)
    return buffer.getvalue()


def write_tar(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_shards(folder: Path, shards: int, each: int) -> Path:
    for shard in range(shards):
        numbers = range(shard * each, (shard + 1) * each)
        write_tar(folder / f"img-{shard:03}.tar", {f"{number:05}.jpg": encoded(number) for number in numbers})
    return folder


def oriented(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A remote file system in memory."""
    monkeypatch.setattr(shard_files, "PROTOCOLS", (*shard_files.PROTOCOLS, "memory"))
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


@pytest.fixture
def opened(cache: Path) -> Callable[..., ShardSource]:
    def open_source(address: Any, kind: Any = "images", **options: Any) -> ShardSource:
        return open_shards(str(address), ShardOptions(kind, SIDE, **options), cache, progress=False)

    return open_source


def pixels_by_name(source: Any) -> dict[str, Any]:
    by_name = {}
    for item, name in enumerate(source.names):
        pixels = source.read(item, range(source.num_frames(item)))
        assert pixels.shape == (source.num_frames(item), *source.size(item), 3) and pixels.dtype == np.uint8
        by_name[name] = pixels
    return by_name


def assert_same_pixels(shards: ShardSource, store: Any) -> None:
    in_shards = {name.partition(".tar/")[2]: pixels for name, pixels in pixels_by_name(shards).items()}
    in_store = pixels_by_name(store)
    assert in_shards.keys() == in_store.keys()
    for name, pixels in in_store.items():
        np.testing.assert_array_equal(in_shards[name], pixels, err_msg=name)


def test_images_equal_those_of_a_packed_store(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    folder = tmp_path / "pictures"
    members = {
        "a.png": encoded(0, 40, 30, "png"),
        "b/large.jpg": encoded(1, 517, 389),  # decoded at a fraction of its size, which is rounded up
        "b/tall.jpeg": encoded(2, 131, 263),
        "b/turned.jpg": encoded(3, 300, 201, exif=oriented(6)),
        "b/upside_down.jpg": encoded(3, 300, 201, exif=oriented(3)),
        "c.webp": encoded(4, 90, 33, "webp"),
        "d.d.jpg": encoded(5, 32, 32),
        "grayscale.jpg": encoded(6, 32, 48, mode="L"),
        "cmyk.jpg": encoded(7, 32, 48, mode="CMYK"),
    }
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    names = list(members)
    write_tar(tmp_path / "shards" / "0.tar", {name: members[name] for name in names[::-2]} | {"a.json": b"{}"})
    write_tar(tmp_path / "shards" / "1.tar", {f"./{name}": members[name] for name in names[-2::-2]})
    store = pack("images", folder, tmp_path / "store", short_side=SIDE, progress=False)
    shards = opened(tmp_path / "shards")
    assert_same_pixels(shards, store)
    assert shards.skipped == [] and shards.encoded
    plain = {Path(name).name for item, name in enumerate(shards.names) if shards.read_encoded(item, [0])[0].plain}
    assert plain == {"large.jpg", "tall.jpeg", "d.d.jpg", "grayscale.jpg"}, "a bare decoder would get the others wrong"


@given(width=st.integers(16, 400), height=st.integers(16, 400), turn=st.integers(1, 8), side=st.integers(16, 90))
@settings(max_examples=40, deadline=None)
def test_the_size_is_known_before_decoding(
    width: int, height: int, turn: int, side: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    tar = write_tar(folder / "0.tar", {"a.jpg": encoded(0, width, height, exif=oriented(turn))})
    source = open_shards(str(tar), ShardOptions("images", side), folder, progress=False)
    assert source.read(0, [0]).shape == (1, *source.size(0), 3) and min(source.size(0)) == side


@pytest.mark.parametrize("every", [1, 2])
def test_video_files_equal_those_of_a_packed_store(
    every: int, video_folder: Path, tmp_path: Path, opened: Callable[..., ShardSource]
) -> None:
    members = {path.name: path.read_bytes() for path in sorted(video_folder.iterdir())}
    previews = {"clip0.jpg": encoded(), "clip0.txt": b"a label"}
    tar = write_tar(tmp_path / "clips.tar", members | previews)
    store = pack("videos", video_folder, tmp_path / "store", short_side=SIDE, every=every, progress=False)
    shards = opened(tar, "videos", every=every)
    assert_same_pixels(shards, store)
    assert [name for name, _ in shards.skipped] == ["clips.tar/clip1b.mp4"]
    assert not shards.encoded
    np.testing.assert_array_equal(shards.read(0, [1, 0]), store.read(0, [1, 0]))


def test_a_video_that_changed_since_it_was_indexed_is_a_user_error(
    video_folder: Path, tmp_path: Path, opened: Callable[..., ShardSource]
) -> None:
    tar = write_tar(tmp_path / "clips.tar", {"clip0.mp4": (video_folder / "clip0.mp4").read_bytes()})
    source = opened(tar, "videos")
    tar.write_bytes(bytes(tar.stat().st_size))
    with pytest.raises(UserError, match=r"clips\.tar has changed since it was indexed"):
        source.read(0, [0])


def test_frames_that_share_a_key_are_a_clip(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    frames = {f"a/run.{number}.jpg": encoded(number) for number in (10, 2, 1, 0)}
    more = {f"b.frame{number:02}.png": encoded(number, suffix="png", width=50 + number) for number in range(4)}
    alone = {"c.000.jpg": encoded()}
    broken = {"d.000.jpg": encoded(), "d.001.jpg": b"no image"}
    source = opened(write_tar(tmp_path / "x.tar", frames | more | alone | broken), "videos")
    assert source.names == ["x.tar/a/run", "x.tar/b"] and source.encoded
    assert [name for name, _ in source.skipped] == ["x.tar/c", "x.tar/d"]
    assert "d.001.jpg" in source.skipped[1][1]
    assert [source.num_frames(item) for item in range(2)] == [4, 4]
    images = opened(tmp_path / "x.tar")
    for frame, number in enumerate((0, 1, 2, 10)):
        item = images.names.index(f"x.tar/a/run.{number}.jpg")
        np.testing.assert_array_equal(source.read(0, [frame])[0], images.read(item, [0])[0])
    assert source.read(1, [3, 0]).shape == (2, *source.size(1), 3), "all frames have the size of the first"
    assert opened(tmp_path / "x.tar", "videos", every=2).num_frames(0) == 2
    with pytest.raises(IndexError, match=r"frame 4 of .*/a/run is out of range: it has 4 frames"):
        source.read(0, [4])


def test_the_later_of_two_members_of_one_name_is_used(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.jpg": b"no image", "b.jpg": encoded(1)})
    with tarfile.open(path, "a") as tar:
        for name, number in (("a.jpg", 2), ("b.jpg", 3)):
            info = tarfile.TarInfo(name)
            info.size = len(encoded(number))
            tar.addfile(info, io.BytesIO(encoded(number)))
    source = opened(path)
    assert source.names == ["x.tar/a.jpg", "x.tar/b.jpg"] and not source.skipped
    assert source.read_encoded(1, [0])[0].data == encoded(3)


@pytest.mark.parametrize(
    "address",
    ["{0}/img-{{000..003}}.tar", "{0}/img-*.tar", "{0}", "{0}/img-00{{0,1,2,3}}.tar", "{0}/img-{{00,01}}{{0..3}}.tar"],
)
def test_addresses(address: str, tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    folder = write_shards(tmp_path / "shards", 4, 2)
    (folder / ".hidden").touch()
    if "01" in address:
        write_shards(tmp_path / "more", 14, 1)
        for number in range(10, 14):
            (tmp_path / "more" / f"img-{number:03}.tar").rename(folder / f"img-{number:03}.tar")
    source = opened(address.format(folder))
    assert list(source.names)[:8] == [f"img-{n // 2:03}.tar/{n:05}.jpg" for n in range(8)]
    assert len(source) == (12 if "01" in address else 8)


def test_items_of_shards_of_one_name_have_different_names(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    for folder in "ab":
        write_tar(tmp_path / folder / "0.tar", {"x.jpg": encoded()})
    assert len(set(opened(tmp_path / "{a,b}" / "0.tar").names)) == 2


def test_a_folder_of_tars_and_images_is_a_folder_of_images(tmp_path: Path, cache: Path) -> None:
    folder = write_shards(tmp_path / "mixed", 1, 2)
    for number in range(4):
        photo(number, 40, 40).save(folder / f"{number}.png")
    config = Config(images=str(folder), data=DataConfig(val_size=1, image_short_side=SIDE, cache=cache))
    assert list(prepare(config, progress=False).training["spatial"].source.names) == [f"{n}.png" for n in range(4)]


class Requests:
    """Records the requests to a remote file system."""

    def __init__(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[str] = []
        self.copies: list[str] = []
        for name, asked in (("cat_file", self.ranges), ("get_file", self.copies)):
            self._watch(fs, name, asked, monkeypatch)

    def _watch(self, fs: Any, name: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(type(fs), name)

        def watched(fs: Any, path: str, *args: Any, **options: Any) -> Any:
            asked.append(path)
            return original(fs, path, *args, **options)

        monkeypatch.setattr(type(fs), name, watched)


@pytest.fixture
def remote(memory: Any, tmp_path: Path, opened: Callable[..., ShardSource]) -> Callable[..., tuple[Any, Any]]:
    """The same six shards in a local folder and in remote storage."""
    folder = write_shards(tmp_path / "local", 6, 4)
    for path in folder.iterdir():
        memory.pipe(f"/remote/{path.name}", path.read_bytes())
    return lambda **options: (opened(folder, **options), opened("memory://remote/img-{000..005}.tar", **options))


def test_remote_shards_equal_local_ones(
    remote: Callable[..., Any], memory: Any, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    local, distant = remote(window=2)
    asked = Requests(memory, monkeypatch)
    assert distant.names == local.names
    one, other = (Samples(source, np.arange(24), 1, 20) for source in (local, distant))
    assert torch.equal(one.centres(), other.centres())
    assert len(asked.ranges) == 24 and not asked.copies, "no epoch has begun, so no shard is copied"
    streams = [BatchStream(replace(samples), 5, 0, "spatial") for samples in (one, other)]
    expected = [streams[1].batch(step).to(CPU).data for step in range(10)]
    np.testing.assert_array_equal(np.sort(np.concatenate([streams[1].items(s) for s in range(5)])[:24]), np.arange(24))
    assert len(asked.ranges) == 24 and set(asked.copies) == {f"/remote/img-{n:03}.tar" for n in range(6)}
    assert len(asked.copies) == 6, "each is copied once as long as there is space"
    again = BatchStream(Samples(distant, np.arange(24), 1, 20), 5, 0, "spatial")
    for step in (7, 0, 9, 3):
        assert torch.equal(again.batch(step).to(CPU).data, expected[step]), "a batch does not depend on those before it"
    assert not list(cache.rglob("*.tmp"))


def test_copies_stay_within_the_size_limit(
    remote: Callable[..., Any], memory: Any, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    space = 3.5 * max(memory.sizes(memory.ls("/remote", detail=False)))
    local, distant = remote(window=1, cache_gb=space / 1e9)
    asked = Requests(memory, monkeypatch)
    samples = Samples(distant, np.arange(24), 1, 20)
    stream = BatchStream(samples, 4, 0, "spatial")
    near = BatchStream(replace(samples, source=local), 4, 0, "spatial")
    for step in range(18):
        assert torch.equal(stream.batch(step).to(CPU).data, near.batch(step).to(CPU).data)
        # a copy may be deleted while they are counted: the next shard is downloaded meanwhile
        assert sum(size for _, size, _ in map(_last_use_and_size, cache.rglob("*.tar"))) <= space
    assert len(asked.copies) > 6 and not asked.ranges
    with pytest.raises(UserError, match=r"data\.shard_window 2 needs copies of up to .* data\.shard_cache_gb"):
        remote(window=2, cache_gb=space / 1e9)


def test_without_a_cache_each_item_is_requested_by_itself(
    remote: Callable[..., Any], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, distant = remote(cache_gb=0)
    asked = Requests(memory, monkeypatch)
    BatchStream(Samples(distant, np.arange(24), 1, 20), 4, 0, "spatial").batch(0)
    assert len(asked.ranges) == 4 and not asked.copies


@pytest.mark.parametrize("copies", [True, False])
def test_requests_to_storage_are_repeated_after_a_failure(
    copies: bool, remote: Callable[..., Any], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "READING_PAUSES", (0.0, 0.0))
    _, distant = remote(cache_gb=1 if copies else 0)
    name = "get_file" if copies else "cat_file"
    original, asked = getattr(type(memory), name), []

    def unreliable(fs: Any, *args: Any, **options: Any) -> Any:
        asked.append(args)
        if failing(len(asked)):
            raise OSError("the network is down")
        return original(fs, *args, **options)

    monkeypatch.setattr(type(memory), name, unreliable)
    stream = BatchStream(Samples(distant, np.arange(24), 1, 20), 4, 0, "spatial")
    failing: Callable[[int], bool] = lambda times: times <= 2  # noqa: E731
    assert stream.batch(0).to(CPU).pixels().shape == (4, 20, 20, 3)
    if not copies:
        failing = lambda times: True  # noqa: E731
        with pytest.raises(UserError, match=r"memory://.*img-00.\.tar.* cannot be read: the network is down"):
            stream.batch(1)


def test_the_index_is_cached_until_the_shard_changes(
    tmp_path: Path, opened: Callable[..., ShardSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", 3, 2)
    opened(folder)
    indexed = []
    from unshuffle.data import shards

    real = shards.index_shard
    monkeypatch.setattr(shards, "index_shard", lambda file, options: indexed.append(file.path) or real(file, options))
    assert len(opened(folder)) == 6 and not indexed
    time.sleep(0.01)
    write_tar(folder / "img-001.tar", {"new.jpg": encoded()})
    assert len(opened(folder)) == 5 and indexed == [str(folder / "img-001.tar")]
    for index in (tmp_path / "cache" / "shards").glob("*.index"):
        index.write_text("{")
    assert len(opened(folder)) == 5 and len(indexed) == 4, "a damaged index is built again"


@pytest.mark.parametrize("old, new", [("img", "IMG"), ("0", "1"), (", 1, ", ", null, "), ("[", "{"), ('": ', '": 9')])
def test_a_wrong_value_in_a_cached_index_is_noticed(
    tmp_path: Path, opened: Callable[..., ShardSource], old: str, new: str
) -> None:
    folder = write_shards(tmp_path / "shards", 1, 3)
    right = opened(folder)
    (index,) = (tmp_path / "cache" / "shards").glob("*.index")
    text = index.read_text()
    for position in [match.start() for match in re.finditer(re.escape(old), text)]:
        index.write_text(text[:position] + new + text[position + len(old) :])
        again = opened(folder)
        assert again.names == right.names and np.array_equal(again.sizes, right.sizes)
        assert all(np.array_equal(again.read(item, [0]), right.read(item, [0])) for item in range(3))


def test_a_shard_that_is_replaced_while_it_is_read_is_noticed(
    tmp_path: Path, opened: Callable[..., ShardSource]
) -> None:
    folder = write_shards(tmp_path / "shards", 1, 3)
    (shard,) = folder.iterdir()
    source = opened(folder)
    source.read(0, [0])
    time.sleep(0.01)
    write_tar(tmp_path / "other.tar", {f"{name}.jpg": encoded(9) for name in "cba"})
    (tmp_path / "other.tar").replace(shard)
    with pytest.raises(UserError, match="has changed since it was indexed"):
        source.read(0, [0])


layouts = st.lists(st.integers(1, 12), min_size=1, max_size=20)  # samples of each shard


def shards_of(counts: list[int]) -> Any:
    """The shard of each sample; some numbers are missing, as when a whole shard is held out."""
    return np.repeat(np.arange(len(counts)) * 3 + 1, counts)


@given(counts=layouts, window=st.integers(1, 25), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_an_epoch_has_every_sample_once_and_few_shards_at_a_time(counts: list[int], window: int, seed: int) -> None:
    shards = shards_of(counts)
    order, turns = windowed_order(shards, window, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(shards)))
    assert sorted(turns.tolist()) == sorted(set(shards.tolist()))
    assert keeps_to_its_turns(shards[order].tolist(), turns.tolist(), window)


def keeps_to_its_turns(visits: list[int], turns: list[int], window: int) -> bool:
    """Whether there are times for the visits, one after another, within `window` turns of each one's shard.

    No more than `window` shards are then open at any time.
    """
    count, now = len(turns), 0.0
    for shard in visits:
        begin = turns.index(shard)
        end = begin + min(window, count)
        spans = [(begin, end)] if end <= count else [(0, end - count), (begin, count)]  # around the circle
        possible = [max(now, first) for first, last in spans if max(now, first) < last]
        if not possible:
            return False
        now = min(possible)
    return True


def test_turns_can_be_missed() -> None:
    assert keeps_to_its_turns([1, 2, 1, 2, 3, 4, 1], [1, 2, 3, 4], 2) is False
    assert keeps_to_its_turns([4, 1, 2, 1, 2, 3, 4], [1, 2, 3, 4], 2) is True


def test_an_epoch_mixes_its_window_from_the_first_batch_to_the_last() -> None:
    shards = shards_of([100] * 20)
    order, turns = windowed_order(shards, 5, np.random.default_rng(0))
    for batch in shards[order].reshape(-1, 50):
        mixed, counts = np.unique(batch, return_counts=True)
        assert len(mixed) >= 4 and counts.max() < 30
    assert len(np.unique(shards[order][:500])) < 14, "but not all the shards"
    begins = np.array([np.flatnonzero(shards[order] == shard)[0] for shard in turns[:15]])
    assert (np.diff(begins[1:]) > 0).all(), "shards are begun in their turn"


def test_a_few_shards_are_shuffled_uniformly() -> None:
    rng = np.random.default_rng(0)
    positions = np.array([np.argsort(windowed_order(shards_of([3, 3]), 8, rng)[0]) for _ in range(3000)])
    for sample in range(6):
        assert np.bincount(positions[:, sample], minlength=6).min() > 400, "500 are expected at each position"


@given(counts=layouts, world=st.integers(1, 8), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_shards_are_divided_among_ranks(counts: list[int], world: int, seed: int) -> None:
    shards = shards_of(counts)
    if len(counts) < world:
        with pytest.raises(UserError, match=f"{world} processes need at least {world} shards"):
            assign_ranks(shards, seed, world)
        return
    ranks = assign_ranks(shards, seed, world)
    for shard in set(shards.tolist()):
        assert len(set(ranks[shards == shard].tolist())) == 1, "no two ranks read the same shard"
    loads = np.bincount(ranks, minlength=world)
    assert loads.min() > 0 and loads.max() - loads.min() <= max(counts)


def test_large_shards_are_assigned_first() -> None:
    for seed in range(5):
        assert np.bincount(assign_ranks(shards_of([1, 1, 1, 1, 4]), seed, 2)).tolist() == [4, 4]


def test_every_rank_trains_on_its_own_slice(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    source = opened(write_shards(tmp_path / "shards", 5, 3))
    training = np.arange(15)[np.arange(15) % 4 > 0]
    slices = [source.rank_items(training, 0, rank, 2) for rank in range(2)]
    assert sorted(np.concatenate(slices).tolist()) == training.tolist()
    for items in slices:
        stream = BatchStream(Samples(source, items, 1, 20), len(items), 0, "spatial")
        orders = [stream.items(epoch).tolist() for epoch in range(4)]
        assert all(sorted(order) == items.tolist() for order in orders) and orders[0] != orders[1]


def test_ranks_read_different_shards(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    source = opened(write_shards(tmp_path / "shards", 4, 3))
    stream = BatchStream(Samples(source, np.arange(12), 1, 20), 4, 0, "spatial")
    seen: list[set[str]] = []
    for rank in range(2):
        batches = [stream.batch(step, RankSlice(rank, 2)) for step in range(3)]
        assert [len(batch) for batch in batches] == [2, 2, 2]
        own = stream._of_rank(RankSlice(rank, 2))
        seen.append({source.names[item].split("/")[0] for step in range(3) for item in own.items(step)})
        assert len({batch.to(CPU).data.numpy().tobytes() for batch in batches}) == 3
    assert not seen[0] & seen[1] and len(seen[0] | seen[1]) == 4


def test_a_batch_does_not_depend_on_those_before_it(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    folder = write_shards(tmp_path / "shards", 6, 3)

    def stream() -> BatchStream:
        return BatchStream(Samples(opened(folder, window=2), np.arange(1, 18), 1, 20), 4, 3, "spatial")

    first, again = stream(), stream()
    in_sequence = [first.batch(step).to(CPU).data for step in range(12)]
    for step in (11, 2, 7, 0):
        assert torch.equal(again.batch(step).to(CPU).data, in_sequence[step])
    assert len({batch.numpy().tobytes() for batch in in_sequence}) == 12


def test_batches_for_a_gpu_are_decoded_on_it(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    """The CPU decoder stands in for that of the GPU."""
    samples = Samples(opened(write_shards(tmp_path / "shards", 2, 4)), np.arange(8), 1, 20)
    encoded_batch = BatchStream(samples, 5, 0, "spatial", gpu=True).batch(3)
    assert isinstance(encoded_batch, EncodedSquares) and len(encoded_batch) == 5
    read = BatchStream(samples, 5, 0, "spatial").batch(3).to(CPU)
    assert torch.equal(encoded_batch.to(CPU).pixels(), read.pixels())


def test_what_a_gpu_cannot_decode_is_decoded_on_the_cpu(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    members = {f"{n}.{'png' if n % 2 else 'jpg'}": encoded(n, suffix="png" if n % 2 else "jpeg") for n in range(6)}
    samples = Samples(opened(write_tar(tmp_path / "mixed.tar", members)), np.arange(6), 1, 20)
    batch = BatchStream(samples, 6, 0, "spatial", gpu=True).batch(0)
    assert isinstance(batch, EncodedSquares)
    assert sorted(type(image).__name__ for image in batch.images) == ["EncodedImage"] * 3 + ["ndarray"] * 3
    read = BatchStream(samples, 6, 0, "spatial").batch(0).to(CPU)
    assert torch.equal(batch.to(CPU).pixels(), read.pixels())


BAD = {
    "missing": ("nowhere/{0..3}.tar", r"0\.tar does not exist"),
    "no match": ("nowhere/*.tar", "there are no tar files at"),
    "protocol": ("nonsense://bucket/0.tar", r"nonsense://bucket/0.tar .*\(file://, .*s3://"),
    "not installed": ("absent://x/0.tar", "needs a package that is not installed .Install absent"),
    "no tar": ("text.tar", r"text\.tar is not a tar file"),
    "zero bytes": ("zero.tar", r"zero\.tar is not a tar file"),
    "cut": ("cut.tar", r"cut\.tar is .*truncated"),
    "overwritten": ("overwritten.tar", r"overwritten\.tar is .*damaged"),
    "no members": ("empty.tar", "there are no images in the 1 shard"),
    "no images": ("labels.tar", "there are no images in the 1 shard"),
    "only bad": ("bad.tar", r"no images in the 1 shard .*bad\.tar/a\.jpg: not a supported image format"),
    "compressed": ("x.tar.gz", "is compressed"),
    "a folder": ("folder.tar", "folder.tar"),
}


@pytest.fixture
def bad_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shard_files, "PROTOCOLS", (*shard_files.PROTOCOLS, "absent"))
    fsspec.register_implementation("absent", "absent.Files", clobber=True, errtxt="Install absent")
    whole = write_tar(Path("whole.tar"), {f"{number}.jpg": encoded(number) for number in range(4)}).read_bytes()
    with tarfile.open("whole.tar") as tar:
        second, last = (tar.getmember(name) for name in ("1.jpg", "3.jpg"))
    Path("text.tar").write_text("this is no tar file " * 100)
    Path("zero.tar").touch()
    Path("cut.tar").write_bytes(whole[: last.offset + 100])
    Path("overwritten.tar").write_bytes(whole[: second.offset] + b"x" * 512 + whole[second.offset + 512 :])
    write_tar(Path("empty.tar"), {})
    write_tar(Path("labels.tar"), {"a.cls": b"3", "b.json": b"{}"})
    write_tar(Path("bad.tar"), {"a.jpg": b"text"})
    Path("folder.tar").mkdir()


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp"])
def test_a_truncated_image_is_skipped_as_in_a_folder(
    suffix: str, tmp_path: Path, opened: Callable[..., ShardSource]
) -> None:
    whole = encoded(0, 200, 200, suffix)
    broken = whole[: len(whole) * 2 // 3]
    shards = opened(write_tar(tmp_path / "0.tar", {f"a.{suffix}": whole, f"b.{suffix}": broken}))
    for name, data in ((f"a.{suffix}", whole), (f"b.{suffix}", broken)):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    store = pack("images", tmp_path / "folder", tmp_path / "store", short_side=SIDE, progress=False)
    assert shards.names == [f"0.tar/a.{suffix}"]
    assert shards.skipped == [(f"0.tar/{name}", reason) for name, reason in store.skipped]


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image(tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    whole = encoded(0, 200, 200)
    thumbnail = encoded(1, 32, 32)
    segment = b"\xff\xe1" + (2 + len(thumbnail)).to_bytes(2) + thumbnail
    tar = write_tar(tmp_path / "0.tar", {f"{cut}.jpg": (whole[:2] + segment + whole[2:])[:-cut] for cut in (1, 2, 999)})
    assert opened(write_tar(tmp_path / "1.tar", {"0.jpg": whole[:2] + segment + whole[2:]})).names == ["1.tar/0.jpg"]
    with pytest.raises(UserError, match="truncated"):
        opened(tar)


def test_members_beyond_a_limit_are_skipped(
    tmp_path: Path, opened: Callable[..., ShardSource], write_video: Callable[..., Path]
) -> None:
    tar = write_tar(tmp_path / "0.tar", {"a.jpg": encoded(0, 40, 40), "b.jpg": encoded(0, 50, 50)})
    source = opened(tar, limits=LimitsConfig(max_pixels=2000))
    assert source.names == ["0.tar/a.jpg"] and "limits.max_pixels" in source.skipped[0][1]
    assert len(opened(tar)) == 2, "the index of other limits is not used"
    films = {f"{frames}.avi": write_video(tmp_path / f"{frames}.avi", frames).read_bytes() for frames in (3, 9)}
    source = opened(write_tar(tmp_path / "1.tar", films), "videos", limits=LimitsConfig(max_frames=5))
    assert source.names == ["1.tar/3.avi"] and "limits.max_frames" in source.skipped[0][1]


def test_decoding_in_training_keeps_to_the_configured_memory(
    tmp_path: Path,
    opened: Callable[..., ShardSource],
    write_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = write_tar(tmp_path / "0.tar", {"a.jpg": encoded(0, 40, 40), "b.png": encoded(0, 50, 50, "png")})
    films = write_tar(tmp_path / "1.tar", {"a.avi": write_video(tmp_path / "a.avi", 3).read_bytes()})
    limits = LimitsConfig(memory_gb=0.25)
    sources = [opened(images, limits=limits), opened(films, "videos", limits=limits)]
    budgets: list[float] = []

    @contextmanager
    def reserve(self: Any, size: int, limit: float) -> Iterator[None]:
        budgets.append(limit)
        yield

    monkeypatch.setattr(media._Memory, "reserve", reserve)
    for source in sources:
        for item in range(len(source)):
            source.read(item, [0])
    decode_batch(sources[0].read_encoded(1, [0]), CPU)
    assert budgets == [0.25e9] * 4


@pytest.mark.usefixtures("bad_shards")
@pytest.mark.parametrize("case", BAD)
def test_bad_shards(case: str) -> None:
    address, words = BAD[case]
    with pytest.raises(UserError, match=words):
        prepare(Config(images=address, data=DataConfig(cache=Path("cache"))), progress=False)


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_truncated_tar_is_refused(keep: float, tmp_path: Path, opened: Callable[..., ShardSource]) -> None:
    whole = write_tar(tmp_path / "whole.tar", {f"{number}.jpg": encoded(number, 400, 300) for number in range(3)})
    end = sum(512 + -(-len(encoded(number, 400, 300)) // 512) * 512 for number in range(3))
    (tmp_path / "cut.tar").write_bytes(whole.read_bytes()[: round(keep * end)])
    with pytest.raises(UserError, match="truncated"):
        opened(tmp_path / "cut.tar")


def test_members_that_cannot_be_used_are_listed(tmp_path: Path, cache: Path) -> None:
    good = {f"{number}.jpg": encoded(number) for number in range(6)}
    bad = {"text.jpg": b"no image", "empty.png": b"", "tiny.png": encoded(0, 8, 8, "png"), "._0.jpg": b"left by a Mac"}
    path = write_tar(tmp_path / "x.tar", good | bad)
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "0.jpg"
        tar.addfile(link)
    settings = DataConfig(val_size=1, image_short_side=SIDE, cache=cache, max_bad_fraction=0.5)
    data = prepare(Config(images=str(path), data=settings), progress=False)
    reasons = dict(data.skipped)
    assert list(reasons) == [f"x.tar/{name}" for name in ("empty.png", "link.jpg", "text.jpg", "tiny.png")]
    assert "empty" in reasons["x.tar/empty.png"] and "too small" in reasons["x.tar/tiny.png"]
    found, remark = data.sentences()
    assert found == f"6 images in {path}, 4 files skipped; read from 1 shard at short side 32 px"
    assert remark.endswith("; there is no pretext test set, so errors are those on the validation set")
    with pytest.raises(UserError, match="4 of 10 images cannot be used"):
        prepare(Config(images=str(path), data=replace(settings, max_bad_fraction=0.3)), progress=False)


def test_heic_members_are_indexed_as_soon_as_they_can_be_read(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.open(io.BytesIO(encoded(0)))).save(buffer)
    path = write_tar(tmp_path / "x.tar", {"0.jpg": encoded(0), "1.heic": buffer.getvalue()})
    options = ShardOptions("images", SIDE)
    with monkeypatch.context() as patch:
        formats = tuple(name for name in media.image_formats() if name != "HEIF")
        patch.setattr(media, "image_formats", lambda: formats)
        source = open_shards(str(path), options, cache, progress=False)
        assert source.skipped == [("x.tar/1.heic", media.HEIF_REASON)] and len(source) == 1
    assert len(open_shards(str(path), options, cache, progress=False)) == 2


def test_clips_of_frames_and_images_train_both_tasks(tmp_path: Path, cache: Path) -> None:
    frames = {f"{clip}.{frame:03}.jpg": encoded(10 * clip + frame) for clip in range(5) for frame in range(clip + 3)}
    write_tar(tmp_path / "clips.tar", frames)
    write_shards(tmp_path / "images", 2, 3)
    config = Config(
        images=str(tmp_path / "images"),
        videos=str(tmp_path / "clips.tar"),
        data=DataConfig(val_size=1, image_short_side=SIDE, frame_short_side=24, cache=cache, max_bad_fraction=0.5),
        temporal=TemporalConfig(frames=4, crop_size=8),
    )
    data = prepare(config, progress=False)
    assert {task: len(samples) for task, samples in data.training.items()} == {"spatial": 5, "temporal": 3}
    assert data.skipped == [("clips.tar/0", "3 frames, but 4 are needed")]
    assert BatchStream(data.training["temporal"], 3, 0, "temporal").batch(0).to(CPU).pixels().shape == (12, 22, 22, 3)


def test_the_program_trains_on_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_shards(tmp_path / "shards", 3, 5)
    options = f"--images {folder}/img-{{000..002}}.tar --out {tmp_path / 'run'} --data.cache {tmp_path / 'cache'}"
    small = (
        "--preset demo --optim.iterations 2 --optim.batch_size 4 --data.val_size 3 --device cpu --log.no_pictures "
        "--data.image_short_side 48 --spatial.crop_size 16 --spatial.permutations 10"
    )
    assert cli.run(["pretrain", *options.split(), *small.split()]) == 0
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    assert cli.run(["pretrain", "--images", f"{folder}/nothing-{{0..2}}.tar", "--out", str(tmp_path / "other")]) == 2
    assert "nothing-0.tar does not exist" in capsys.readouterr().err
