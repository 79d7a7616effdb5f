import zipfile

import numpy as np
import pytest
import torch

from unshuffle.data.batches import Samples
from unshuffle.data.held_out import HeldOut, load_held_out, save_held_out
from unshuffle.data.media import decode_jpeg, encode_jpeg
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError


def smooth(count: int, frames: int, side: int) -> torch.Tensor:
    ramp = torch.arange(side)[:, None] * 3 + torch.arange(side)[None]
    colours = torch.arange(count * frames * 3).view(count, frames, 1, 1, 3) * 5
    return (ramp[None, None, :, :, None] + colours).remainder(200).to(torch.uint8)


def test_samples_come_back_with_their_names_and_nearly_their_pixels(tmp_path) -> None:
    clips = HeldOut(smooth(2, 3, 32), ["a/<b>.mp4", "c\udcff.mp4"])
    images = HeldOut(smooth(4, 1, 16), ["1", "2", "3", "4"])
    save_held_out(tmp_path / "held_out.npz", {"spatial": images, "temporal": clips})
    loaded = load_held_out(tmp_path / "held_out.npz")
    assert list(loaded) == ["spatial", "temporal"]
    for task, kept in (("spatial", images), ("temporal", clips)):
        assert list(loaded[task].names) == list(kept.names)
        assert loaded[task].pixels.shape == kept.pixels.shape and loaded[task].pixels.dtype == torch.uint8
        difference = (loaded[task].pixels.float() - kept.pixels.float()).abs()
        assert difference.mean() < 4
    assert [path.name for path in tmp_path.iterdir()] == ["held_out.npz"]


def test_none_were_kept(tmp_path) -> None:
    assert load_held_out(tmp_path / "held_out.npz") == {}


def test_a_damaged_file_is_one_sentence(tmp_path) -> None:
    path = tmp_path / "held_out.npz"
    save_held_out(path, {"spatial": HeldOut(smooth(2, 1, 16), ["a", "b"])})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"held_out\.npz is damaged"):
        load_held_out(path)


def test_a_header_that_numpy_cannot_parse_is_one_sentence(tmp_path) -> None:
    path = tmp_path / "held_out.npz"
    header = b"{'descr': ("
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("names", "jpeg", "ends"):
            archive.writestr(f"spatial_{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UserError, match=r"held_out\.npz is damaged"):
        load_held_out(path)


def test_some_of_all_are_evenly_spread_and_named_by_their_items() -> None:
    source = synthetic_images(20, 32, seed=0)
    samples = Samples(source, np.arange(1, 20, 2), 1, 32)
    pixels = samples.centres()
    some = HeldOut.of(samples, pixels, 4)
    assert list(some.names) == [source.names[item] for item in (1, 7, 13, 19)]
    assert torch.equal(some.pixels, pixels[[0, 3, 6, 9]])
    assert len(HeldOut.of(samples, pixels, 100)) == 10


def test_jpeg_keeps_shape_and_look() -> None:
    pixels = smooth(1, 1, 24)[0, 0].numpy()
    again = decode_jpeg(encode_jpeg(pixels, 95))
    assert again.shape == pixels.shape
    assert np.abs(again.astype(int) - pixels).mean() < 4
