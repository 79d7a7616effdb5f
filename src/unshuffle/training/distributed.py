"""Training of one network by several processes: ranks, collectives and errors that end all processes together.

`torchrun` starts the processes and sets their ranks in the environment. A single process is rank 0 of 1, for which all
functions here return at once.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from unshuffle.accelerator import local_rank
from unshuffle.errors import ReportedElsewhere, UserError

T = TypeVar("T")

# Control messages go through the CPU, so that they do not wait for a GPU. One process may pack data or render figures
# for hours while the others wait, hence the long timeout; a process that dies is noticed at once in any case.
CONTROL_TIMEOUT = timedelta(days=30)
LAUNCHER_VARIABLES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_control: dist.ProcessGroup | None = None


@contextmanager
def started() -> Iterator[None]:
    """Join the process group of torchrun; do nothing without torchrun or if it has been joined already."""
    global _control
    if dist.is_initialized() or not os.environ.keys() >= LAUNCHER_VARIABLES or os.environ["WORLD_SIZE"] == "1":
        yield
        return
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    store, own_rank, world_size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=PrefixStore(_attempt(), store), rank=own_rank, world_size=world_size)
    if on_gpus and local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())
    group = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    _control = group
    try:
        yield
    finally:
        _control = None
        dist.destroy_process_group()


def _attempt() -> str:
    """Return a name for this start of the processes.

    After a restart by `torchrun --max-restarts` the store still holds the addresses of the processes before it. On
    several machines the number of restarts can differ from one to the next, so there it is of no use.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"attempt-{restarts if os.environ.get('GROUP_WORLD_SIZE') == '1' else 0}"


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def launcher() -> str:
    """Return the command prefix that starts the same number of processes again."""
    if size() == 1:
        return "unshuffle"
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size()):
        return f"torchrun --standalone --nproc_per_node {size()} -m unshuffle"
    return "torchrun [as before] -m unshuffle"


def is_main() -> bool:
    """Return whether this is the process that decides, writes and prints: rank 0."""
    return rank() == 0


def check_divisible(batch_sizes: Mapping[str, int], val_size: int) -> None:
    """Raise an error if a batch or X_val cannot be split among the processes."""
    for option, batch_size in batch_sizes.items():
        if batch_size % size():
            raise UserError(f"{option} {batch_size} must be a multiple of the number of processes, {size()}")
    if val_size < size():
        raise UserError(f"{val_size} validation samples are too few for {size()} processes: each needs at least one")


def parallel(network: nn.Module, *, some_unused: bool) -> nn.Module:
    """Return a wrapper that averages gradients over all processes; the given network keeps the weights.

    `some_unused`: some steps train only parts of the network, so the wrapper must not wait for all gradients.
    """
    if size() == 1:
        return network
    buffers = [buffer.clone() for buffer in network.buffers()]
    wrapped = DistributedDataParallel(network, find_unused_parameters=some_unused)
    for buffer, own in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(own)  # the wrapper has replaced them by those of rank 0
    # training does not read BN's running statistics, so `average_buffers` is enough for them; set as an attribute
    # because the name of the argument depends on the version of torch
    wrapped.broadcast_buffers = False
    return wrapped


def average_buffers(network: nn.Module) -> None:
    """Average BN's running statistics over all processes."""
    if size() == 1:
        return
    for buffer in network.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= size()


def broadcast(value: T) -> T:
    """Return the value of rank 0 on every rank."""
    if size() == 1:
        return value
    values: list[T] = [value]
    dist.broadcast_object_list(values, src=0, group=_control)
    return values[0]


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in rank order, on every rank."""
    if size() == 1:
        return [value]
    values: list[T] = [value] * size()
    dist.all_gather_object(values, value, group=_control)
    return values


def largest(value: int) -> int:
    """Return the largest value of all ranks on every rank."""
    if size() == 1:
        return value
    maximum = torch.tensor(value)
    dist.all_reduce(maximum, dist.ReduceOp.MAX, group=_control)
    return int(maximum)


def means(values: Sequence[float]) -> list[float]:
    """Return the mean over all ranks of each value, on every rank."""
    return [float(sum_of_ranks) / size() for sum_of_ranks in total(torch.tensor(values, dtype=torch.float64))]


def total(values: Tensor) -> Tensor:
    """Return the sum over all ranks of a CPU tensor, on every rank."""
    if size() > 1:
        dist.all_reduce(values, group=_control)
    return values


@contextmanager
def together() -> Iterator[None]:
    """Raise an error on all ranks if the block fails on one of them, so that none waits for the others.

    The first rank that failed reports the error. Inside the block the ranks may do different things; a collective
    operation must not follow anything that can fail on one rank only.
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
