"""`Network`: what a call knows of the network it belongs to, and names of networks for graphs of torch.compile.

A graph holds texts and tensors but no Python objects, so it refers to its network by a handle. A copy of a network is
another network and has another handle.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

from torch import nn

from leporello.call.plan_cache import PlanCache
from leporello.gradient.method import Method


class Network(Protocol):
    """A cell with the options of its calls."""

    cell: nn.Module
    gradient: Method
    engine: str
    batch_first: bool
    _plan_cache: PlanCache
    _handle: str


_numbers = itertools.count()
_networks: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def handle_of(network: Network) -> str:
    """A new handle for a network."""
    handle = str(next(_numbers))
    _networks[handle] = network
    return handle


def network_of(handle: str) -> Network:
    return _networks[handle]
