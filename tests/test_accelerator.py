"""Which device it is."""

import pytest
import torch
import torch.distributed as dist

from unshuffle.accelerator import choose_device, choose_precision, has_kernels, own_device
from unshuffle.errors import UserError


def test_a_process_alone_takes_what_is_named() -> None:
    assert own_device("cuda:1") == "cuda:1"
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "sentence"), [("tpu", "device tpu cannot be used; there are auto"), ("cpu:x", "cannot be used")]
)
def test_what_is_no_device(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        choose_device(name)


def test_every_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert [own_device(name) for name in ("cuda", "cpu")] == ["cuda:2", "cpu"]
    with pytest.raises(UserError, match="cuda:1 is one GPU for 3 processes"):
        own_device("cuda:1")


def test_precision_follows_the_device_unless_it_is_named() -> None:
    cpu = torch.device("cpu")
    assert not has_kernels(cpu)
    assert [choose_precision(name, cpu) for name in ("auto", "fp32", "bf16")] == ["fp32", "fp32", "bf16"]
