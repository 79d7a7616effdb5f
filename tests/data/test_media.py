import io
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from unshuffle.config import LimitsConfig
from unshuffle.data import media
from unshuffle.data.media import (
    HEIF_REASON,
    BadMedia,
    count_frames,
    memory_limit,
    read_frames,
    read_image,
    read_image_size,
    read_video_header,
    recognise,
    resize_short_side,
)
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


def photo(width: int = 48, height: int = 32) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def distance(pixels: np.ndarray, expected: Image.Image | np.ndarray) -> float:
    return float(np.abs(pixels.astype(float) - np.asarray(expected, float)).mean())


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "jpg", "ppm"])
def test_common_formats_keep_their_pixels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    photo().save(path, lossless=True, quality=95)
    pixels = read_image(path)
    assert pixels.shape == (32, 48, 3) and pixels.dtype == np.uint8
    assert distance(pixels, photo()) < 4


@pytest.mark.parametrize("mode", ["CMYK", "L", "P", "1", "LA", "RGBA", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    path = tmp_path / f"x.{suffix}"
    converted = photo().convert(mode)
    converted.save(path)
    assert distance(read_image(path), converted.convert("RGB")) < 6


def test_16_bit_images_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16)
    for suffix in ("png", "tiff"):
        Image.fromarray(ramp).save(tmp_path / f"x.{suffix}")
        assert distance(read_image(tmp_path / f"x.{suffix}")[..., 0], ramp / 257) <= 0.5


@pytest.mark.parametrize(("top", "dtype"), [(1, "f4"), (255, "f4"), (65535, "f4"), (65535, "i4"), (10**6, "i4")])
def test_float_and_integer_tiffs_are_scaled_by_their_range(tmp_path: Path, top: int, dtype: str) -> None:
    ramp = np.linspace(0, top, 48 * 32).reshape(32, 48).astype(dtype)
    Image.fromarray(ramp).save(tmp_path / "x.tiff")
    assert distance(read_image(tmp_path / "x.tiff")[..., 0], ramp * (255 / top)) <= 0.5


def test_transparency_is_composited_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    clear.paste((0, 0, 255, 255), (0, 0, 16, 32))
    clear.save(tmp_path / "rgba.png")
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([9, 9, 9, 200, 0, 0])
    palette.save(tmp_path / "palette.png", transparency=0)
    rgba = read_image(tmp_path / "rgba.png")
    assert (rgba[:, :16] == (0, 0, 255)).all() and (rgba[:, 16:] == 255).all()
    assert (read_image(tmp_path / "palette.png") == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    upright = np.asarray(photo())
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(undo(upright))).save(tmp_path / "x.png", exif=exif)
    assert (read_image(tmp_path / "x.png") == upright).all()


def test_of_an_animation_the_first_frame_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "lime", "blue")]
    for suffix in ("gif", "webp", "png"):
        frames[0].save(tmp_path / f"x.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
        assert (read_image(tmp_path / f"x.{suffix}") == (255, 0, 0)).all()


@pytest.mark.parametrize(("size", "expected"), [((100, 50), (32, 64)), ((60, 90), (48, 32)), ((20, 20), (32, 32))])
def test_short_side_is_exact_and_shape_is_kept(
    tmp_path: Path, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    photo(*size).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", short_side=32).shape == (*expected, 3)


def test_a_large_jpeg_is_resized_like_a_png(tmp_path: Path) -> None:
    big = photo(1600, 1200)
    big.save(tmp_path / "x.jpg", quality=95)
    assert distance(read_image(tmp_path / "x.jpg", short_side=64), resize_short_side(big, 64)) < 3


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "bmp", "tiff"])
def test_truncated_images_are_refused(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"whole.{suffix}")
    data = (tmp_path / f"whole.{suffix}").read_bytes()
    (tmp_path / f"x.{suffix}").write_bytes(data[: len(data) // 2])
    for short_side in (None, 16):
        with pytest.raises(BadMedia):
            read_image(tmp_path / f"x.{suffix}", short_side)


def test_each_bad_image_is_refused_for_its_own_reason(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty.jpg").touch()
    photo(48, 15).save(tmp_path / "tiny.png")
    photo(16 * 101, 16).save(tmp_path / "thin.png")
    reasons = {
        "text": "not a supported image format",
        "empty": "empty",
        "tiny": "48 x 15 .*too small",
        "thin": "too thin",
    }
    for path in tmp_path.iterdir():
        with pytest.raises(BadMedia, match=reasons[path.stem]):
            read_image(path)
    with pytest.raises(BadMedia, match="No such file"):
        read_image(tmp_path / "missing.png")


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(100, 100).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(BadMedia, match="decompression bomb"):
        read_image(tmp_path / "x.png")


def numbers(path: Path, **options: Any) -> list[int]:
    """The frame numbers that the gray levels of a clip encode."""
    return [round((float(frame.mean()) - 20) / 9) for frame in read_frames(path, **options)]


@pytest.fixture
def without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setitem(sys.modules, "av", None)


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
def test_the_frame_count_of_the_header_is_ignored(tmp_path: Path, write_video: WriteVideo, claimed: int) -> None:
    path = write_video(tmp_path / "x.avi", codec="mjpeg")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"avih") + 8 + 16, claimed)
    struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, claimed)
    path.write_bytes(data)
    assert numbers(path) == list(range(20))


@pytest.mark.parametrize(("suffix", "options"), [("mkv", {}), ("mp4", {"movflags": "faststart"}), ("avi", {})])
def test_a_truncated_clip_keeps_its_readable_frames(
    tmp_path: Path, write_video: WriteVideo, suffix: str, options: dict[str, str]
) -> None:
    path = write_video(tmp_path / f"x.{suffix}", codec="mjpeg", **options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    readable = numbers(path)
    assert 2 <= len(readable) < 20
    assert readable[:-1] == list(range(len(readable) - 1))


def test_an_error_after_two_frames_ends_the_clip_and_an_earlier_one_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.mp4").write_text("anything")
    for good in range(4):

        def decode(*given: Any, good: int = good) -> Iterator[np.ndarray]:
            yield from [np.zeros((32, 32, 3), np.uint8)] * good
            raise OSError("broken pipe")

        monkeypatch.setattr("unshuffle.data.media._decode_video", decode)
        if good < 2:
            with pytest.raises(BadMedia, match="broken pipe"):
                list(read_frames(tmp_path / "x.mp4"))
        else:
            assert len(list(read_frames(tmp_path / "x.mp4"))) == good


def test_frames_that_change_size_are_resized_to_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.mp4").write_text("anything")
    sizes = [np.zeros((32, 48, 3), np.uint8), np.zeros((60, 40, 3), np.uint8)]
    monkeypatch.setattr("unshuffle.data.media._decode_video", lambda *given: iter(sizes))
    assert [frame.shape for frame in read_frames(tmp_path / "x.mp4", 16)] == [(16, 24, 3)] * 2


def test_each_bad_video_is_refused_for_its_own_reason(tmp_path: Path, write_video: WriteVideo) -> None:
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
    for path in tmp_path.iterdir():
        with pytest.raises(BadMedia, match=reasons[path.stem]) as caught:
            list(read_frames(path))
        assert str(tmp_path) not in str(caught.value)


def test_too_few_frames_after_skipping_are_refused(tmp_path: Path, write_video: WriteVideo) -> None:
    path = write_video(tmp_path / "x.mp4")
    assert numbers(path, every=19) == [0, 19]
    with pytest.raises(BadMedia, match="at least 2 frames"):
        numbers(path, every=20)


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "mpeg4"), ("mkv", "libx264"), ("avi", "mjpeg")])
def test_opencv_decodes_the_same_frames_as_pyav(
    tmp_path: Path, write_video: WriteVideo, suffix: str, codec: str, request: pytest.FixtureRequest
) -> None:
    path = write_video(tmp_path / f"x.{suffix}", codec=codec)
    by_pyav = np.stack(list(read_frames(path, 24)))
    request.getfixturevalue("without_pyav")
    by_opencv = np.stack(list(read_frames(path, 24)))
    assert by_opencv.shape == by_pyav.shape
    assert np.abs(by_opencv.astype(int) - by_pyav).mean() < 3


def test_opencv_frames_are_rgb_and_bad_files_are_refused(
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


def test_a_missing_video_library_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    (tmp_path / "x.mp4").write_text("anything")
    with pytest.raises(UserError, match="PyAV or OpenCV"):
        list(read_frames(tmp_path / "x.mp4"))


# ---- files that are not trusted


def gif_bomb(path: Path, side: int, frames: int) -> Path:
    """A GIF of 23 bytes a frame, whatever the size of its screen."""
    head = b"GIF89a" + struct.pack("<HH", side, side) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    delay = b"\x21\xf9\x04\0\x01\0\0\0"
    path.write_bytes(
        head + (delay + b"\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02\x44\x01\0") * frames + b";"
    )
    return path


def test_an_image_beyond_a_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(100, 50).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", limits=LimitsConfig(max_pixels=5000)).shape == (50, 100, 3)
    with pytest.raises(BadMedia, match=r"100 x 50 pixels are more than 4999 \(limits.max_pixels\)"):
        read_image(tmp_path / "x.png", limits=LimitsConfig(max_pixels=4999))
    with pytest.raises(BadMedia, match=r"takes more than 1e-09 seconds \(limits.max_seconds\)"):
        read_image(tmp_path / "x.png", limits=LimitsConfig(max_seconds=1e-9))
    assert len(read_image((tmp_path / "x.png").read_bytes(), limits=memory_limit(2))) == 50


@pytest.mark.parametrize("decoder", ["pyav", "opencv"])
def test_a_video_beyond_a_limit_is_refused(
    decoder: str, tmp_path: Path, write_video: WriteVideo, request: pytest.FixtureRequest
) -> None:
    path = write_video(tmp_path / "x.avi", frames=20)
    if decoder == "opencv":
        request.getfixturevalue("without_pyav")
    assert len(list(read_frames(path, limits=LimitsConfig(max_frames=20, max_pixels=64 * 48)))) == 20
    for limits, words in (
        (LimitsConfig(max_frames=19), r"more than 19 frames \(limits.max_frames\)"),
        (
            LimitsConfig(max_pixels=64 * 48 - 1),
            r"64 x 48 pixels are more than 3071 \(limits.max_pixels\)",
        ),
        (LimitsConfig(max_seconds=1e-9), r"limits.max_seconds"),
    ):
        with pytest.raises(BadMedia, match=words):
            list(read_frames(path, limits=limits))
    assert len(list(read_frames(path, limits=memory_limit(2)))) == 20


def test_a_small_file_of_many_large_frames_is_refused_by_its_time(tmp_path: Path) -> None:
    path = gif_bomb(tmp_path / "x.gif", 2000, 3000)
    with pytest.raises(BadMedia, match=r"more than 0.2 seconds"):
        list(read_frames(path, 16, limits=LimitsConfig(max_seconds=0.2)))


def test_the_time_for_which_frames_are_used_elsewhere_does_not_count(tmp_path: Path, write_video: WriteVideo) -> None:
    path = write_video(tmp_path / "x.avi", frames=4)
    count = 0
    for _ in read_frames(path, limits=LimitsConfig(max_seconds=2)):
        time.sleep(0.8)
        count += 1
    assert count == 4


def test_large_images_wait_for_each_other_and_small_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo(100, 100).save(tmp_path / "x.png")
    running, most = 0, {1: 0, 2: 0}
    lock = threading.Lock()

    def convert(image: Image.Image) -> Image.Image:
        nonlocal running
        with lock:
            running += 1
            most[places] = max(most[places], running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return image

    monkeypatch.setattr(media, "upright_rgb", convert)
    for places in most:  # a file takes 16 bytes per pixel, and one that needs more than there is waits to be alone
        limits = LimitsConfig(memory_gb=[1e-9, 400e-6][places - 1])
        threads = [threading.Thread(target=read_image, args=(tmp_path / "x.png", None, limits)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == {1: 1, 2: 2}
    assert media._MEMORY._used == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "F"])
def test_conversion_in_strips_gives_the_same_pixels(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    if mode in ("I;16", "F"):
        values = rng.integers(0, 50000, (70, 50)) * (1 if mode == "I;16" else 3)
        Image.fromarray(values.astype({"I;16": np.uint16, "F": np.float32}[mode])).save(tmp_path / "x.tiff")
    else:
        noise = Image.fromarray(rng.integers(0, 256, (70, 50, 4), dtype=np.uint8))
        noise.convert({"LA": "LA", "P": "RGB", "RGBA": "RGBA"}[mode]).convert(mode).save(
            tmp_path / "x.tiff", **({"transparency": 3} if mode == "P" else {})
        )
    whole = read_image(tmp_path / "x.tiff")
    monkeypatch.setattr(media, "_STRIP_PIXELS", 500)
    np.testing.assert_array_equal(read_image(tmp_path / "x.tiff"), whole)


def test_the_content_decides_about_the_format_and_only_known_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **options: started.append(given))
    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: True)
    page = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "photo.jpg").write_text(page)
    with pytest.raises(BadMedia, match="not a supported image format"):
        read_image(tmp_path / "photo.jpg")
    assert not started
    photo().save(tmp_path / "really-a-png.jpg", "PNG")
    assert distance(read_image(tmp_path / "really-a-png.jpg"), photo()) == 0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server on this machine, which nothing may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        yield server


def assert_no_connection(server: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        server.accept()


@pytest.mark.parametrize("decoder", ["pyav", "opencv"])
def test_a_file_name_is_not_an_address(
    decoder: str,
    tmp_path: Path,
    listener: socket.socket,
    write_video: WriteVideo,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(f"http:/127.0.0.1:{listener.getsockname()[1]}/x.mp4")
    write_video(tmp_path / path)
    if decoder == "opencv":
        request.getfixturevalue("without_pyav")
    frames: list[list[int]] = []
    reader = threading.Thread(target=lambda: frames.append(numbers(path)), daemon=True)
    reader.start()  # in a thread, because a connection to the listener would never be answered
    assert_no_connection(listener)
    reader.join(20)
    assert frames == [list(range(20))]


@pytest.mark.parametrize("decoder", ["pyav", "opencv"])
@pytest.mark.parametrize("kind", ["hls", "concat", "dash"])
def test_a_playlist_is_not_followed(
    decoder: str, kind: str, tmp_path: Path, listener: socket.socket, request: pytest.FixtureRequest
) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.ts"
    texts = {
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{url}'\n",
        "dash": f'<?xml version="1.0"?><MPD type="static" mediaPresentationDuration="PT1S"><Period><AdaptationSet '
        f'mimeType="video/mp4"><Representation id="0" bandwidth="1"><BaseURL>{url}</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>",
    }
    (tmp_path / "x.mkv").write_text(texts[kind])
    if decoder == "opencv":
        request.getfixturevalue("without_pyav")
    problems: list[str] = []

    def read() -> None:
        try:
            list(read_frames(tmp_path / "x.mkv"))
        except BadMedia as problem:
            problems.append(str(problem))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert_no_connection(listener)
    reader.join(20)
    assert len(problems) == 1


def test_a_title_that_is_not_utf_8_does_not_matter(tmp_path: Path, write_video: WriteVideo) -> None:
    path = tmp_path / "x.avi"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "Xberraschung"
        stream = container.add_stream("mjpeg", rate=25, width=64, height=48, pix_fmt="yuvj420p")
        for number in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 + 9 * number, np.uint8))))
        container.mux(stream.encode())
    data = path.read_bytes()
    assert b"Xberraschung" in data
    path.write_bytes(data.replace(b"Xberraschung", b"\xdcberraschung"))
    assert len(list(read_frames(path))) == 3


# recognised by content


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "MPO", "DDS", "QOI"])
def test_images_are_recognised_by_their_first_bytes(kind: str) -> None:
    head = saved(photo(), kind)[: media.HEAD_BYTES]
    assert recognise(head) == ({"images", "videos"} if kind == "GIF" else {"images"})


@pytest.mark.parametrize(("suffix", "codec"), [*CONTAINERS, ("ts", "mpeg2video"), ("flv", "flv1"), ("wmv", "wmv2")])
def test_videos_are_recognised_by_their_first_bytes(
    tmp_path: Path, write_video: WriteVideo, suffix: str, codec: str
) -> None:
    head = write_video(tmp_path / f"x.{suffix}", codec=codec).read_bytes()[: media.HEAD_BYTES]
    assert recognise(head) == ({"images", "videos"} if suffix == "gif" else {"videos"})


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"G" * 3,
        b"BM",
        b"BMW builds cars and this is a text about them, long enough to hold a header",
        b"\0\0\0\x18ftypM4A mp42",
        b"OggS" + bytes(24) + b"\x01vorbis",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"%PDF-1.7",
        b"PK\3\4",
        b"Good morning. " * 40,
    ],
)
def test_other_files_are_not_recognised(head: bytes) -> None:
    assert recognise(head) == frozenset()


def test_heic_is_read_if_it_can_be_and_explained_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(photo()).save(tmp_path / "x.heic")
    head = (tmp_path / "x.heic").read_bytes()[: media.HEAD_BYTES]
    assert recognise(head) == {"images"} and ".heic" in media.image_suffixes()
    assert distance(read_image(tmp_path / "x.heic"), photo()) < 6
    assert read_image_size(tmp_path / "x.heic") == (48, 32)
    formats = tuple(name for name in media.image_formats() if name != "HEIF")
    monkeypatch.setattr(media, "image_formats", lambda: formats)
    for read in (read_image, read_image_size):
        with pytest.raises(BadMedia) as caught:
            read(tmp_path / "x.heic")
        assert str(caught.value) == HEIF_REASON and "pip install pillow-heif" in HEIF_REASON


def test_a_video_with_the_name_of_an_image_is_called_one(tmp_path: Path, write_video: WriteVideo) -> None:
    path = write_video(tmp_path / "x.mp4").rename(tmp_path / "x.jpg")
    with pytest.raises(BadMedia, match="it is a video, not an image"):
        read_image(path)


# headers and windows


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_size_of_an_image_is_that_of_its_pixels(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo(40, 24).save(tmp_path / "x.jpg", exif=exif)
    height, width, _ = read_image(tmp_path / "x.jpg").shape
    assert read_image_size(tmp_path / "x.jpg") == (width, height)


@pytest.mark.parametrize(("suffix", "codec"), CONTAINERS)
@pytest.mark.parametrize("library", ["pyav", "opencv"])
def test_frames_are_counted_without_decoding(
    tmp_path: Path, write_video: WriteVideo, suffix: str, codec: str, library: str, request: pytest.FixtureRequest
) -> None:
    path = write_video(tmp_path / f"x.{suffix}", codec=codec)
    if library == "opencv":
        request.getfixturevalue("without_pyav")
    facts = read_video_header(path)
    assert (facts.width, facts.height) == (64, 48)
    if suffix not in ("mpg", "mpeg"):  # whose headers state neither
        assert facts.frames == pytest.approx(20, abs=1) and facts.seconds == pytest.approx(0.8, abs=0.05)
        assert count_frames(path) == 20
    if library == "pyav":
        assert count_frames(path) == 20
        with pytest.raises(BadMedia, match="more than 19 frames"):
            count_frames(path, LimitsConfig(max_frames=19))


@pytest.mark.parametrize("library", ["pyav", "opencv"])
def test_only_the_frames_of_the_spans_are_read(
    tmp_path: Path, write_video: WriteVideo, library: str, request: pytest.FixtureRequest
) -> None:
    path = write_video(tmp_path / "x.mp4")
    if library == "opencv":
        request.getfixturevalue("without_pyav")
    assert numbers(path, spans=[range(2, 4), range(8, 10)]) == [2, 3, 8, 9]
    assert numbers(path, every=3, spans=[range(1, 3), range(4, 6)]) == [3, 6, 12, 15]
    assert numbers(path, spans=[range(15, 30)]) == [15, 16, 17, 18, 19], "a video may be shorter than expected"


def test_decoding_stops_after_the_last_span(
    tmp_path: Path, write_video: WriteVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, decoded = write_video(tmp_path / "x.mp4"), list[int]()
    real = media._decode_video

    def decode(*given: Any) -> Iterator[Any]:
        for number, frame in enumerate(real(*given)):
            decoded.append(number)
            yield frame

    monkeypatch.setattr(media, "_decode_video", decode)
    assert numbers(path, spans=[range(3, 6)]) == [3, 4, 5]
    assert decoded[-1] == 5


def test_files_that_are_no_videos_have_no_header(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("hello")
    (tmp_path / "empty.mp4").touch()
    for name, reason in (("text.mp4", "cannot be decoded"), ("empty.mp4", "empty"), ("missing.mp4", "No such file")):
        with pytest.raises(BadMedia, match=reason):
            read_video_header(tmp_path / name)
