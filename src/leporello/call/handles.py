"""Networks by a name that a graph can hold: a text, where the graph holds no Python.

A copy of a network is another network and has another name. Knows names; holds no network.
"""

from __future__ import annotations

import itertools
import weakref

from torch import nn

_numbers = itertools.count()
_networks: weakref.WeakValueDictionary[str, nn.Module] = weakref.WeakValueDictionary()


def handle_of(network: nn.Module) -> str:
    """A new name for a network."""
    handle = str(next(_numbers))
    _networks[handle] = network
    return handle


def network_of(handle: str) -> nn.Module:
    return _networks[handle]
