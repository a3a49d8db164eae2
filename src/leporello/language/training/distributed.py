"""Several processes that train one network: `Ranks`, and the device of each.

They are started by torchrun. For a single process no method communicates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from leporello.errors import ArgumentError


@dataclass(frozen=True)
class Ranks:
    """The processes of a training.

    rank    of this process, from 0
    count   of processes
    """

    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and messages for all."""
        return self.rank == 0

    def data_parallel(self, net: nn.Module, device: torch.device) -> nn.Module:
        """The network, wrapped so that gradients are averaged over processes; itself for a single one."""
        if self.count == 1:
            return net
        devices = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(net, device_ids=devices)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, in all of them. The argument is not changed."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def broadcast(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of the main process, in every process: their clocks differ, their decisions must not."""
        if self.count == 1:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            message = message.cuda()
        dist.broadcast(message, 0)
        return message.tolist()

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the main one; an empty list in the others."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.gather_object(value, values if self.is_main else None, 0)
        return values if self.is_main else []

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.count > 1:
            dist.barrier()

    def leave(self) -> None:
        """Leave the process group, together with all other processes.

        The barrier lets other threads run. A thread of gloo may still hold tensors of the last gather. It cannot free
        them while this thread holds the GIL, and destroying the group waits for that thread.
        """
        if self.count > 1:
            dist.barrier()
            dist.destroy_process_group()


def ranks_here(device: torch.device) -> Ranks:
    """The processes that torchrun started, or this single one. Joins the process group of torch if needed.

    device   of this process: it decides the backend
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), count)


def device_of(name: str) -> torch.device:
    """The device of a name: cpu, cuda, cuda:1; auto: cuda if there is one.

    Each of the processes that torchrun starts on one machine takes the GPU of its local rank.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError("'device' names no device.", came=repr(name), expected="auto, cpu, cuda, or cuda:1")
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        raise ArgumentError(
            "there is no such device here.",
            came=repr(name),
            expected=", ".join(["cpu", *(f"cuda:{index}" for index in range(count * (device.type == "cuda")))]),
            tries="device auto, which takes what there is",
        )
    return device
