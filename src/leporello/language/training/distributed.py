"""Several processes that train one network: who this is, and what all of them agree on.

Knows torch.distributed and the environment that torchrun sets; knows nothing of text. Alone, every method gives back
what it was given.
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
    """rank   which process this is, from 0
    count  how many there are
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def wrapped(self, net: nn.Module, device: torch.device) -> nn.Module:
        """The network with gradients averaged over processes."""
        if self.count == 1:
            return net
        devices = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(net, device_ids=devices)

    def summed(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def told(self, flags: Sequence[float]) -> list[float]:
        """What the first process says: clocks differ, decisions must not."""
        if self.count == 1:
            return list(flags)
        said = torch.tensor(flags, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            said = said.cuda()
        dist.broadcast(said, 0)
        return said.tolist()

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the first one; elsewhere nothing."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.gather_object(value, found if self.leads else None, 0)
        return found if self.leads else []

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.count > 1:
            dist.barrier()

    def leave(self) -> None:
        """Take no further part, all at the same time.

        Whoever waits lets other threads run: one of gloo's may still hold tensors of the last gathering, cannot let go
        of them while this one holds Python's lock, and the end of the group waits for that thread.
        """
        if self.count > 1:
            dist.barrier()
            dist.destroy_process_group()


def ranks_here(device: torch.device) -> Ranks:
    """The processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), count)


# ---- (language.device) `device_of`: where a network is run. Knows devices of torch; knows nothing of networks.


def device_of(name: str) -> torch.device:
    """The device of a name: cpu, cuda, cuda:1; auto: cuda where there is one.

    Of several processes that torchrun starts on one machine, each takes the GPU of its own number.
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
