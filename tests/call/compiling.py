"""What tests of torch.compile share: a compiled call beside the same call without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.loop.state import leaves_of
from tests.nets.twins import close, gradients


@pytest.fixture(autouse=True)
def _compiler_begins_anew() -> Iterator[None]:
    """What it has compiled counts towards a limit, and belongs to nets of other tests."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any, backend: str = "aot_eager", dynamic: bool | None = None) -> Callable[..., Any]:
    """In one graph: a break in it raises."""
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)


def agrees_with_eager(
    net: nn.Module, *arguments: Any, function: Any = None, backend: str = "aot_eager", **options: Any
) -> None:
    """Results, their structure, and the gradients of all that requires one, the same random numbers given.

    function   what is compiled and called, instead of the net
    """
    function = net if function is None else function
    sources = [p for p in net.parameters() if p.requires_grad]
    given = leaves_of((arguments, options))
    sources += [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
    seeded(function, *arguments, **options)  # the first call of a form plans, which draws random numbers too
    wanted = seeded(function, *arguments, **options)
    graph = compiled(function, backend)
    seeded(graph, *arguments, **options)
    got = seeded(graph, *arguments, **options)
    assert pytree.tree_structure(got) == pytree.tree_structure(wanted)
    close(got, wanted, what="result")
    close(gradients(got, sources), gradients(wanted, sources), what="gradient")


def seeded(function: Any, *arguments: Any, **options: Any) -> Any:
    torch.manual_seed(11)
    return function(*arguments, **options)
