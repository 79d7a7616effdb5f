"""What the device can do beyond plain torch."""

from functools import lru_cache
from importlib.util import find_spec

import torch


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels run there: on NVIDIA GPUs that know bf16, where Triton is installed."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def choose_precision(name: str, device: torch.device) -> str:
    """fp32 or bf16; auto is bf16 where it pays."""
    if name != "auto":
        return name
    return "bf16" if has_kernels(device) else "fp32"


def prefer_speed() -> None:
    """Let the libraries search for their fastest ways, for training in bf16 on a GPU."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # for the validations, which stay in fp32


def wait_for(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
