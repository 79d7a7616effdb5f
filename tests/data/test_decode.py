import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unshuffle.data import decode as decoding
from unshuffle.data.decode import decode, decode_batch
from unshuffle.data.media import read_image, read_image_header
from unshuffle.data.source import EncodedImage

CPU, SIDE = torch.device("cpu"), 32


def encoded(number: int, width: int, height: int, mode: str = "RGB", suffix: str = "jpeg") -> EncodedImage:
    coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(buffer, suffix)
    return EncodedImage(f"{number}.jpg", buffer.getvalue(), *read_image_header(buffer.getvalue(), SIDE))


BATCH = [
    encoded(0, 100, 80),
    encoded(1, 33, 47),
    encoded(2, 100, 80),
    encoded(3, 90, 70, "L"),
    encoded(4, 90, 70, "CMYK"),
    encoded(5, 64, 64, suffix="png"),
]


def test_on_the_cpu_the_pixels_equal_those_of_read_image() -> None:
    for encoded_image, image in zip(BATCH, decode_batch(BATCH, CPU), strict=True):
        assert image.dtype == torch.uint8 and image.shape == (encoded_image.height, encoded_image.width, 3)
        np.testing.assert_array_equal(image.numpy(), read_image(encoded_image.data, SIDE))
    assert decode_batch([], CPU) == []


def test_a_damaged_image_becomes_grey_with_a_warning() -> None:
    whole = BATCH[0]
    cut = EncodedImage("cut.jpg", whole.data[: len(whole.data) // 2], whole.height, whole.width, True)
    with pytest.warns(UserWarning, match="cut.jpg is damaged and replaced by grey"):
        pixels = decode(cut)
    assert pixels.shape == (whole.height, whole.width, 3) and (pixels == decoding.GREY).all()


def test_a_frame_of_another_size_is_resized_to_the_requested_one() -> None:
    odd = EncodedImage("odd.jpg", BATCH[0].data, 32, 36, True)
    assert decode(odd).shape == (32, 36, 3)


class FakeGpu:
    """Stands in for nvJPEG: decodes whole images and records its input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> None:
        self.given: list[bytes] = []
        self.fails = fails
        monkeypatch.setattr("torchvision.io.decode_jpeg", self)

    def __call__(self, data: list[Tensor], mode: Any, device: torch.device) -> list[Tensor]:
        self.given = [image.numpy().tobytes() for image in data]
        if self.fails:
            raise RuntimeError("nvjpegDecode failed")
        return [torch.from_numpy(read_image(image)).permute(2, 0, 1) for image in self.given]


def test_plain_jpegs_are_decoded_on_the_gpu_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    images = decoding._decode_on_gpu(BATCH[:4], CPU)
    assert gpu.given == [encoded_image.data for encoded_image in BATCH[:4]]
    for encoded_image, image in zip(BATCH[:4], images, strict=True):
        assert image.shape == (encoded_image.height, encoded_image.width, 3) and image.is_contiguous()
        difference = image.numpy().astype(int) - read_image(encoded_image.data, SIDE)
        assert abs(difference).mean() < 3, "the same image, up to the resizing method"


def test_what_the_gpu_cannot_decode_the_cpu_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, fails=True)
    for encoded_image, image in zip(BATCH[:2], decoding._decode_on_gpu(BATCH[:2], CPU), strict=True):
        np.testing.assert_array_equal(image.numpy(), read_image(encoded_image.data, SIDE))


def test_only_plain_jpegs_are_decoded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu: list[str] = []

    def decode_on_gpu(batch: list[EncodedImage], device: torch.device) -> list[Tensor]:
        on_gpu.extend(encoded_image.name for encoded_image in batch)
        return [torch.zeros(encoded_image.height, encoded_image.width, 3, dtype=torch.uint8) for encoded_image in batch]

    monkeypatch.setattr(decoding, "_decode_on_gpu", decode_on_gpu)
    decode_batch(BATCH, CPU)
    assert not on_gpu
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args, **options: tensor)  # there need be no GPU to go to
    decode_batch(BATCH, torch.device("cuda"))
    assert on_gpu == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_decodes_to_nearly_the_pixels_of_the_cpu() -> None:
    for encoded_image, image in zip(BATCH, decode_batch(BATCH, torch.device("cuda")), strict=True):
        assert (
            image.is_cuda
            and image.dtype == torch.uint8
            and image.shape == (encoded_image.height, encoded_image.width, 3)
        )
        assert abs(image.cpu().numpy().astype(int) - read_image(encoded_image.data, SIDE)).mean() < 4, (
            encoded_image.name
        )
    cut = EncodedImage("cut.jpg", BATCH[0].data[:300], 32, 40, True)
    with pytest.warns(UserWarning, match="cut.jpg is damaged and replaced by grey"):
        images = decode_batch([BATCH[1], cut], torch.device("cuda"))
    np.testing.assert_array_equal(images[0].cpu().numpy(), read_image(BATCH[1].data, SIDE))
