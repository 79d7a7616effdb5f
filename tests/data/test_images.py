from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.data.images import find_images, read_image
from unshuffle.data.media import BadMedia, resize_short_side
from unshuffle.errors import UserError


def picture(width: int = 48, height: int = 32) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def distance(one: np.ndarray, other: Image.Image | np.ndarray) -> float:
    return float(np.abs(one.astype(float) - np.asarray(other, float)).mean())


def test_finds_nested_files_of_any_case_in_order_of_relative_path(tmp_path: Path) -> None:
    names = ["b.JPG", "a/z.png", "a.webp", "a/b/c.TiFF", "no.txt", ".hidden.png", ".cache/x.png", "film.mpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a.webp", "a/b/c.TiFF", "a/z.png", "b.JPG"]


def test_follows_links_to_folders_without_going_round_in_circles(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.png").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "images" / "again").symlink_to(tmp_path / "images")
    assert find_images(tmp_path / "images") == [tmp_path / "images" / "linked" / "x.png"]


def test_missing_folder_and_file_in_place_of_folder_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        find_images(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        find_images(tmp_path / "file")


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "jpg", "ppm"])
def test_common_formats_keep_their_pixels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    picture().save(path, lossless=True, quality=95)
    pixels = read_image(path)
    assert pixels.shape == (32, 48, 3) and pixels.dtype == np.uint8
    assert distance(pixels, picture()) < 4


@pytest.mark.parametrize("mode", ["CMYK", "L", "P", "1", "LA", "RGBA", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    path = tmp_path / f"x.{suffix}"
    converted = picture().convert(mode)
    converted.save(path)
    assert distance(read_image(path), converted.convert("RGB")) < 6


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16)
    for suffix in ("png", "tiff"):
        Image.fromarray(ramp).save(tmp_path / f"x.{suffix}")
        assert distance(read_image(tmp_path / f"x.{suffix}")[..., 0], ramp / 257) <= 0.5


@pytest.mark.parametrize(("top", "dtype"), [(1, "f4"), (255, "f4"), (65535, "f4"), (65535, "i4"), (10**6, "i4")])
def test_float_and_integer_tiffs_are_scaled_by_their_range(tmp_path: Path, top: int, dtype: str) -> None:
    ramp = np.linspace(0, top, 48 * 32).reshape(32, 48).astype(dtype)
    Image.fromarray(ramp).save(tmp_path / "x.tiff")
    assert distance(read_image(tmp_path / "x.tiff")[..., 0], ramp * (255 / top)) <= 0.5


def test_transparency_lies_on_white(tmp_path: Path) -> None:
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
    upright = np.asarray(picture())
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


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "lime", "blue")]
    for suffix in ("gif", "webp", "png"):
        frames[0].save(tmp_path / f"x.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
        assert (read_image(tmp_path / f"x.{suffix}") == (255, 0, 0)).all()


@pytest.mark.parametrize(("size", "expected"), [((100, 50), (32, 64)), ((60, 90), (48, 32)), ((20, 20), (32, 32))])
def test_short_side_is_exact_and_shape_is_kept(
    tmp_path: Path, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    picture(*size).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", short_side=32).shape == (*expected, 3)


def test_a_big_jpeg_is_shrunk_as_a_png_is(tmp_path: Path) -> None:
    big = picture(1600, 1200)
    big.save(tmp_path / "x.jpg", quality=95)
    assert distance(read_image(tmp_path / "x.jpg", short_side=64), resize_short_side(big, 64)) < 3


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "bmp", "tiff"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"whole.{suffix}")
    data = (tmp_path / f"whole.{suffix}").read_bytes()
    (tmp_path / f"x.{suffix}").write_bytes(data[: len(data) // 2])
    for short_side in (None, 16):
        with pytest.raises(BadMedia):
            read_image(tmp_path / f"x.{suffix}", short_side)


def test_each_bad_file_is_refused_for_its_own_reason(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty.jpg").touch()
    picture(48, 15).save(tmp_path / "tiny.png")
    picture(16 * 101, 16).save(tmp_path / "thin.png")
    reasons = {"text": "not an image", "empty": "empty", "tiny": "48 x 15 .*too small", "thin": "too thin"}
    for path in find_images(tmp_path):
        with pytest.raises(BadMedia, match=reasons[path.stem]):
            read_image(path)
    with pytest.raises(BadMedia, match="No such file"):
        read_image(tmp_path / "missing.png")


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(100, 100).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(BadMedia, match="decompression bomb"):
        read_image(tmp_path / "x.png")
