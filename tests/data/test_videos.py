import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from unshuffle.data.media import BadMedia
from unshuffle.data.videos import find_videos, read_frames
from unshuffle.errors import UserError

WriteVideo = Callable[..., Path]

CONTAINERS = [
    ("mp4", "libx264"),
    ("mp4", "mpeg4"),
    ("m4v", "mpeg4"),
    ("mov", "libx264"),
    ("mkv", "libx264"),
    ("mkv", "ffv1"),
    ("avi", "mpeg4"),
    ("avi", "mjpeg"),
    ("webm", "libvpx"),
    ("mpg", "mpeg1video"),
    ("mpeg", "mpeg2video"),
    ("gif", "gif"),
]


def numbers(path: Path, **options: int) -> list[int]:
    """The counters that a clip's grey levels stand for."""
    return [round((float(frame.mean()) - 20) / 9) for frame in read_frames(path, **options)]


@pytest.fixture
def without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setitem(sys.modules, "av", None)


def test_finds_nested_videos_of_any_case(tmp_path: Path) -> None:
    for name in ["b.MP4", "a/x.avi", "a.webm", "a/.y.mkv", "photo.jpg"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_videos(tmp_path) == [tmp_path / "a.webm", tmp_path / "a" / "x.avi", tmp_path / "b.MP4"]


@pytest.mark.parametrize(("suffix", "codec"), CONTAINERS)
def test_frames_come_complete_and_in_order(tmp_path: Path, write_video: WriteVideo, suffix: str, codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = write_video(tmp_path / f"x.{suffix}", codec=codec)
    frames = list(read_frames(path))
    assert {frame.shape for frame in frames} == {(48, 64, 3)}
    if codec == "gif":  # eight-bit colour holds fewer levels than there are numbers
        assert len(frames) == 20 and all(np.diff([frame.mean() for frame in frames]) >= 0)
    else:
        assert numbers(path) == list(range(20))


def test_every_and_short_side(tmp_path: Path, write_video: WriteVideo) -> None:
    path = write_video(tmp_path / "x.mp4")
    assert numbers(path, every=3) == [0, 3, 6, 9, 12, 15, 18]
    assert {frame.shape for frame in read_frames(path, short_side=24)} == {(24, 32, 3)}


def test_wrong_timestamps_do_not_change_the_order(tmp_path: Path, write_video: WriteVideo) -> None:
    shuffled = np.random.default_rng(0).permutation(20)
    with (
        av.open(str(write_video(tmp_path / "right.avi", codec="mjpeg"))) as right,
        av.open(str(tmp_path / "wrong.mkv"), "w") as wrong,
    ):
        stream = wrong.add_stream_from_template(right.streams.video[0])
        packets = [packet for packet in right.demux(video=0) if packet.size]
        for number, packet in enumerate(packets):
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.dts, packet.pts = number, 100 + int(shuffled[number])
            wrong.mux(packet)
    with av.open(str(tmp_path / "wrong.mkv")) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert stamps != sorted(stamps)
    assert numbers(tmp_path / "wrong.mkv") == list(range(20))


@pytest.mark.parametrize("claimed", [1, 5000])
def test_the_frame_count_of_the_header_is_not_believed(tmp_path: Path, write_video: WriteVideo, claimed: int) -> None:
    path = write_video(tmp_path / "x.avi", codec="mjpeg")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"avih") + 8 + 16, claimed)
    struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, claimed)
    path.write_bytes(data)
    assert numbers(path) == list(range(20))


@pytest.mark.parametrize(("suffix", "options"), [("mkv", {}), ("mp4", {"movflags": "faststart"}), ("avi", {})])
def test_a_clip_that_breaks_off_keeps_its_beginning(
    tmp_path: Path, write_video: WriteVideo, suffix: str, options: dict[str, str]
) -> None:
    path = write_video(tmp_path / f"x.{suffix}", codec="mjpeg", **options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    found = numbers(path)
    assert 2 <= len(found) < 20
    assert found[:-1] == list(range(len(found) - 1))


def test_an_error_after_two_frames_ends_the_clip_and_an_earlier_one_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.mp4").write_text("anything")
    for good in range(4):

        def decode(path: Path, good: int = good):
            yield from [np.zeros((32, 32, 3), np.uint8)] * good
            raise OSError("broken pipe")

        monkeypatch.setattr("unshuffle.data.videos._decode", decode)
        if good < 2:
            with pytest.raises(BadMedia, match="broken pipe"):
                list(read_frames(tmp_path / "x.mp4"))
        else:
            assert len(list(read_frames(tmp_path / "x.mp4"))) == good


def test_frames_that_change_size_take_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.mp4").write_text("anything")
    sizes = [np.zeros((32, 48, 3), np.uint8), np.zeros((60, 40, 3), np.uint8)]
    monkeypatch.setattr("unshuffle.data.videos._decode", lambda path: iter(sizes))
    assert [frame.shape for frame in read_frames(tmp_path / "x.mp4", 16)] == [(16, 24, 3)] * 2


def test_each_bad_file_is_refused_for_its_own_reason(tmp_path: Path, write_video: WriteVideo) -> None:
    (tmp_path / "text.mp4").write_text("hello")
    (tmp_path / "empty.mp4").touch()
    write_video(tmp_path / "tiny.avi", size=(32, 8))
    write_video(tmp_path / "single.avi", frames=1)
    whole = write_video(tmp_path / "headless.mp4").read_bytes()
    (tmp_path / "headless.mp4").write_bytes(whole[: len(whole) // 2])
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
    reasons = {
        "text": "Invalid data",
        "empty": "empty",
        "tiny": "too small",
        "single": "at least 2 frames",
        "headless": "Invalid data",
        "sound": "no video",
    }
    paths = find_videos(tmp_path)
    assert {path.stem for path in paths} == set(reasons)
    for path in paths:
        with pytest.raises(BadMedia, match=reasons[path.stem]) as caught:
            list(read_frames(path))
        assert str(tmp_path) not in str(caught.value)


def test_too_few_frames_after_thinning_are_refused(tmp_path: Path, write_video: WriteVideo) -> None:
    path = write_video(tmp_path / "x.mp4")
    assert numbers(path, every=19) == [0, 19]
    with pytest.raises(BadMedia, match="at least 2 frames"):
        numbers(path, every=20)


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "mpeg4"), ("mkv", "libx264"), ("avi", "mjpeg")])
def test_opencv_gives_the_frames_that_pyav_gives(
    tmp_path: Path, write_video: WriteVideo, suffix: str, codec: str, request: pytest.FixtureRequest
) -> None:
    path = write_video(tmp_path / f"x.{suffix}", codec=codec)
    by_pyav = np.stack(list(read_frames(path, 24)))
    request.getfixturevalue("without_pyav")
    by_opencv = np.stack(list(read_frames(path, 24)))
    assert by_opencv.shape == by_pyav.shape
    assert np.abs(by_opencv.astype(int) - by_pyav).mean() < 3


def test_opencv_gives_red_as_red_and_refuses_bad_files(
    tmp_path: Path, without_pyav: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cv2

    writer = cv2.VideoWriter(str(tmp_path / "x.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (64, 48))
    for _ in range(3):
        writer.write(np.full((48, 64, 3), (0, 0, 255), np.uint8))
    writer.release()
    frames = list(read_frames(tmp_path / "x.avi"))
    assert len(frames) == 3 and frames[0][..., 0].min() > 200 and frames[0][..., 1:].max() < 50
    (tmp_path / "text.mp4").write_text("hello")
    with pytest.raises(BadMedia):
        list(read_frames(tmp_path / "text.mp4"))


def test_neither_library_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    (tmp_path / "x.mp4").write_text("anything")
    with pytest.raises(UserError, match="PyAV or OpenCV"):
        list(read_frames(tmp_path / "x.mp4"))
