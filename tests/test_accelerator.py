"""The choice of device and precision."""

import pytest
import torch
import torch.distributed as dist

from unshuffle.accelerator import choose_device, choose_precision, has_kernels, local_device
from unshuffle.errors import UserError


def test_a_single_process_uses_the_named_device() -> None:
    assert local_device("cuda:1") == "cuda:1"
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "sentence"), [("tpu", "device tpu cannot be used: choose auto"), ("cpu:x", "cannot be used")]
)
def test_an_unknown_device_is_a_user_error(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        choose_device(name)


def test_every_process_uses_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert [local_device(name) for name in ("cuda", "cpu")] == ["cuda:2", "cpu"]
    with pytest.raises(UserError, match="cuda:1 is one GPU for 3 processes"):
        local_device("cuda:1")


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ({"avx512_bf16": True}, "bf16"),
        ({"avx512_bf16": False, "avx512_f": True}, "fp32"),  # bf16 would be emulated
        ({"architecture": "aarch64", "bf16": True}, "fp32"),  # not measured
    ],
)
def test_auto_precision_depends_on_the_instructions_of_a_cpu(
    capabilities: dict[str, object], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    cpu = torch.device("cpu")
    assert not has_kernels(cpu)
    assert [choose_precision(name, cpu) for name in ("auto", "fp32", "bf16")] == [precision, "fp32", "bf16"]
    assert choose_precision("auto", torch.device("mps")) == "fp32"
