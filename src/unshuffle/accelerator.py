"""The device: which one it is, and what it can do beyond plain torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec

import torch
import torch.distributed as dist

from unshuffle.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device that the config names; auto is the GPU if there is one, and each process has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda", "mps", "xpu"):
        raise UserError(f"device {name} cannot be used; there are auto, cpu, cuda, cuda:1 ..., mps and xpu")
    name = own_device(name)
    try:
        device = torch.zeros(1, device=name).device  # with its number: cuda:0 is another name than cuda
        if device.type == "cuda":
            torch.cuda.set_device(device)  # kernels and recordings go to the current one
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def own_device(name: str) -> str:
    """A GPU of its own for each process of a machine; other devices as they are named."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if processes == 1 or name.split(":")[0] != "cuda":
        return name
    if name != "cuda":
        raise UserError(f"device {name} is one GPU for {processes} processes: name it cuda, and each takes its own")
    return f"cuda:{local_rank()}"


def local_rank() -> int:
    """The number of this process among those that a launcher has started on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if dist.is_initialized() and dist.get_world_size() > 1 else 0


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


@contextmanager
def settings_restored() -> Iterator[None]:
    """Undo `prefer_speed` afterwards: what comes next in this process should compute as it would in a new one."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)


def wait_for(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
