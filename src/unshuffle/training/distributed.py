"""Several processes that train one network: who this one is among them, and what they tell each other.

`torchrun` starts the processes and tells each its rank through the environment. A process on its own is rank 0 of 1,
for which everything here does nothing.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unshuffle.accelerator import local_rank
from unshuffle.data.share import Share
from unshuffle.errors import ReportedElsewhere, UserError

T = TypeVar("T")

# What the processes say to each other goes through the CPU, so that nobody waits for a GPU to hear it. Some may pack
# data or draw pictures for hours while the others wait; a process that dies is noticed at once all the same.
PATIENCE = timedelta(days=30)
LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # what a launcher puts into the environment
_control: dist.ProcessGroup | None = None


@contextmanager
def started() -> Iterator[None]:
    """Join the processes that torchrun has started, if it has and nobody has joined them yet."""
    global _control
    if dist.is_initialized() or not os.environ.keys() >= LAUNCHED or os.environ["WORLD_SIZE"] == "1":
        yield
        return
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    if on_gpus and local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    assert isinstance(group, dist.ProcessGroup)
    _control = group
    try:
        yield
    finally:
        _control = None
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process among all."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def launcher() -> str:
    """The words in front of a command that start as many processes again."""
    if size() == 1:
        return "unshuffle"
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size()):
        return f"torchrun --standalone --nproc_per_node {size()} -m unshuffle"
    return "torchrun [as before] -m unshuffle"


def is_main() -> bool:
    """Whether this is the process that decides, writes and prints."""
    return rank() == 0


def share() -> Share:
    """The part of every batch that is this process's."""
    return Share(rank(), size())


def check_shares(batch_size: int, val_size: int) -> None:
    """Refuse what the processes cannot share."""
    if batch_size % size():
        raise UserError(f"optim.batch_size {batch_size} cannot be shared equally by {size()} processes")
    if val_size < size():
        raise UserError(f"{val_size} samples to validate on are too few for {size()} processes: each needs one")


def parallel(network: nn.Module, *, some_unused: bool) -> nn.Module:
    """The network with gradients averaged over all processes; the one given still holds the weights.

    `some_unused`: a step may leave out parts of the network, which then must not be waited for.
    """
    if size() == 1:
        return network
    wrapped = DistributedDataParallel(network, find_unused_parameters=some_unused)
    # BN's running statistics, which training does not read: `average_buffers` is enough for them; set here because the
    # argument's name depends on torch's version
    wrapped.broadcast_buffers = False
    return wrapped


def average_buffers(network: nn.Module) -> None:
    """Make BN's running statistics those of all processes."""
    if size() == 1:
        return
    for buffer in network.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= size()


def broadcast(value: T) -> T:
    """The main process's value, everywhere."""
    if size() == 1:
        return value
    box: list[T] = [value]
    dist.broadcast_object_list(box, src=0, group=_control)
    return box[0]


def gather(value: T) -> list[T]:
    """The values of all processes, by rank, everywhere."""
    if size() == 1:
        return [value]
    values: list[T] = [value] * size()
    dist.all_gather_object(values, value, group=_control)
    return values


def largest(value: int) -> int:
    """The largest of the processes' values, everywhere."""
    if size() == 1:
        return value
    box = torch.tensor(value)
    dist.all_reduce(box, dist.ReduceOp.MAX, group=_control)
    return int(box)


def means(values: Sequence[float]) -> list[float]:
    """The mean over the processes of each value, everywhere."""
    if size() == 1:
        return list(values)
    box = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(box, group=_control)
    return [float(total) / size() for total in box]


def total(values: Tensor) -> Tensor:
    """The sum over the processes of a tensor on the CPU, everywhere."""
    if size() > 1:
        dist.all_reduce(values, group=_control)
    return values


@contextmanager
def together() -> Iterator[None]:
    """What one process fails at, all fail at, with one to say why: none is left waiting for the others.

    Inside, processes do different things; what they do together must not come after what one alone may fail at.
    """
    if size() == 1:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except (UserError, OSError) as error:
        failure = error
    first = size() - largest(0 if failure is None else size() - rank())
    if failure is not None and first == rank():
        raise failure
    if first < size():
        raise ReportedElsewhere(f"rank {first} has failed")
