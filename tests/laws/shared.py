"""One gradient for all engines: what a call asks and its derivative are rewritten once, and each engine runs them.

Knows the functions that make them, and that none of these looks at an engine; a third of a law's time went there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from leporello.call import plan_cache
from leporello.engine import plan
from leporello.loop.loop import Loop


@contextmanager
def one_gradient_for_all_engines() -> Iterator[None]:
    """For calls of one net, all of one form."""
    with ExitStack() as stack:
        for module, name in ((plan_cache, "rewritten"), (plan, "part"), (plan, "differentiate")):
            stack.enter_context(mock.patch.object(module, name, _once(getattr(module, name))))
        yield


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same result for the same loop; for a derivative also the same inputs and outputs that have one."""
    made: dict[Any, Any] = {}

    def once(loop: Loop, *others: Any, **options: Any) -> Any:
        key = (loop, *(other if isinstance(other, tuple) else None for other in others), *options.items())
        if key not in made:
            made[key] = function(loop, *others, **options)
        return made[key]

    return once
