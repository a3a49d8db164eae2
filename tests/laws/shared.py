"""One gradient for all engines: what a call asks and its derivative are rewritten once, and each engine runs them.

Knows the functions that make them, and that none of these looks at an engine; a third of a law's time went there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from leporello.loop.loop import Loop
from leporello.rewrite.pipeline import Pipeline


@contextmanager
def one_gradient_for_all_engines() -> Iterator[None]:
    """For calls of one net, all of one form."""
    with ExitStack() as stack:
        for name in ("call", "forward", "backward"):
            stack.enter_context(mock.patch.object(Pipeline, name, _once(getattr(Pipeline, name))))
        yield


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same result for the same loop; for a derivative also the same inputs and outputs that have one."""
    made: dict[Any, Any] = {}

    def once(pipeline: Pipeline, loop: Loop, **options: Any) -> Any:
        context = pipeline.context
        asked = (context.forced, context.always, context.restarts, context.lengths, context.wanted)
        key = (loop, asked, tuple(one.name for one in context.method), *options.items())
        if key not in made:
            made[key] = function(pipeline, loop, **options)
        return made[key]

    return once
