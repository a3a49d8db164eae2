"""`device_of`: where a network is run. Knows devices of torch; knows nothing of networks."""

from __future__ import annotations

import os

import torch

from leporello.errors import ArgumentError


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
