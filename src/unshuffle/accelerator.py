"""The device that computes: which one, at which precision, and whether our kernels run on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec

import torch
import torch.distributed as dist

from unshuffle.errors import UserError


def choose_device(name: str) -> torch.device:
    """Return the device of that name; auto is a GPU if there is one, and each process uses its own GPU."""
    if name == "auto":
        name = "cuda" if has_gpu(name) else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda", "mps", "xpu"):
        raise UserError(f"device {name} cannot be used: choose auto, cpu, cuda, cuda:1 ..., mps or xpu")
    name = local_device(name)
    try:
        device = torch.zeros(1, device=name).device  # with its index: cuda becomes cuda:0
        if device.type == "cuda":
            torch.cuda.set_device(device)  # kernels and CUDA graphs use the current device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def has_gpu(name: str) -> bool:
    """Return whether a device of that name is an NVIDIA GPU; auto is one if there is one."""
    return torch.cuda.is_available() if name == "auto" else name.startswith("cuda")


def local_device(name: str) -> str:
    """Return the name of this process's own GPU where several processes use GPUs; other names are unchanged."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if processes == 1 or name.split(":")[0] != "cuda":
        return name
    if name != "cuda":
        raise UserError(f"device {name} is one GPU for {processes} processes: choose cuda, so that each uses its own")
    return f"cuda:{local_rank()}"


def local_rank() -> int:
    """Index of this process among those that a launcher has started on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if dist.is_initialized() and dist.get_world_size() > 1 else 0


def local_world_size() -> int:
    """Return the number of processes that a launcher has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels run on the device: an NVIDIA GPU with bf16, and Triton is installed."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device is a CPU with instructions for products in bf16; on others bf16 was not measured."""
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


def choose_precision(name: str, device: torch.device) -> str:
    """Return fp32 or bf16; auto is bf16 where our kernels run and on CPUs that multiply in it."""
    if name != "auto":
        return name
    return "bf16" if has_kernels(device) or multiplies_bf16(device) else "fp32"


def prefer_speed() -> None:
    """Let cuDNN search for its fastest algorithms and allow TF32, for training in bf16 on a GPU."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # for validation, which stays in fp32


@contextmanager
def settings_restored() -> Iterator[None]:
    """Undo `prefer_speed` at the end of the block, so that later work computes as in a new process."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
