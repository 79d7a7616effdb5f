import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unshuffle.data import decode as decoding
from unshuffle.data.decode import decode, decode_batch
from unshuffle.data.images import peek_image, read_image
from unshuffle.data.source import Encoded

CPU, SIDE = torch.device("cpu"), 32


def encoded(number: int, width: int, height: int, mode: str = "RGB", suffix: str = "jpeg") -> Encoded:
    coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(buffer, suffix)
    return Encoded(f"{number}.jpg", buffer.getvalue(), *peek_image(io.BytesIO(buffer.getvalue()), SIDE))


BATCH = [
    encoded(0, 100, 80),
    encoded(1, 33, 47),
    encoded(2, 100, 80),
    encoded(3, 90, 70, "L"),
    encoded(4, 90, 70, "CMYK"),
    encoded(5, 64, 64, suffix="png"),
]


def test_on_the_cpu_the_pixels_are_those_of_the_reader() -> None:
    for one, image in zip(BATCH, decode_batch(BATCH, CPU), strict=True):
        assert image.dtype == torch.uint8 and image.shape == (one.height, one.width, 3)
        np.testing.assert_array_equal(image.numpy(), read_image(one.data, SIDE))
    assert decode_batch([], CPU) == []


def test_what_is_damaged_is_grey_and_said_to_be() -> None:
    whole = BATCH[0]
    cut = Encoded("cut.jpg", whole.data[: len(whole.data) // 2], whole.height, whole.width, True)
    with pytest.warns(UserWarning, match="cut.jpg is grey"):
        pixels = decode(cut)
    assert pixels.shape == (whole.height, whole.width, 3) and (pixels == decoding.GREY).all()


def test_a_frame_of_another_size_takes_the_wanted_one() -> None:
    odd = Encoded("odd.jpg", BATCH[0].data, 32, 36, True)
    assert decode(odd).shape == (32, 36, 3)


class FakeGpu:
    """Stands for nvJPEG, which there is none of here: decodes whole images, and notes what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> None:
        self.given: list[bytes] = []
        self.fails = fails
        monkeypatch.setattr("torchvision.io.decode_jpeg", self)

    def __call__(self, data: list[Tensor], mode: Any, device: torch.device) -> list[Tensor]:
        self.given = [one.numpy().tobytes() for one in data]
        if self.fails:
            raise RuntimeError("nvjpegDecode failed")
        return [torch.from_numpy(read_image(one)).permute(2, 0, 1) for one in self.given]


def test_plain_jpegs_go_to_the_gpu_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    images = decoding._decode_on_gpu(BATCH[:4], CPU)
    assert gpu.given == [one.data for one in BATCH[:4]]
    for one, image in zip(BATCH[:4], images, strict=True):
        assert image.shape == (one.height, one.width, 3) and image.is_contiguous()
        difference = image.numpy().astype(int) - read_image(one.data, SIDE)
        assert abs(difference).mean() < 3, "the same picture, up to the way of resizing"


def test_what_the_gpu_refuses_the_cpu_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, fails=True)
    for one, image in zip(BATCH[:2], decoding._decode_on_gpu(BATCH[:2], CPU), strict=True):
        np.testing.assert_array_equal(image.numpy(), read_image(one.data, SIDE))


def test_only_plain_jpegs_on_a_gpu_take_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def decode_on_gpu(batch: list[Encoded], device: torch.device) -> list[Tensor]:
        taken.extend(one.name for one in batch)
        return [torch.zeros(one.height, one.width, 3, dtype=torch.uint8) for one in batch]

    monkeypatch.setattr(decoding, "_decode_on_gpu", decode_on_gpu)
    decode_batch(BATCH, CPU)
    assert not taken
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args, **options: tensor)  # there need be no GPU to go to
    decode_batch(BATCH, torch.device("cuda"))
    assert taken == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gives_nearly_the_pixels_of_the_cpu() -> None:
    for one, image in zip(BATCH, decode_batch(BATCH, torch.device("cuda")), strict=True):
        assert image.is_cuda and image.dtype == torch.uint8 and image.shape == (one.height, one.width, 3)
        assert abs(image.cpu().numpy().astype(int) - read_image(one.data, SIDE)).mean() < 4, one.name
    cut = Encoded("cut.jpg", BATCH[0].data[:300], 32, 40, True)
    with pytest.warns(UserWarning, match="cut.jpg is grey"):
        images = decode_batch([BATCH[1], cut], torch.device("cuda"))
    np.testing.assert_array_equal(images[0].cpu().numpy(), read_image(BATCH[1].data, SIDE))
