"""The loss of each row, as the caller's function gives it, and what is said where it gives none.

Knows losses and outputs; knows nothing of nets or gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from leporello.errors import ArgumentError, LeporelloError
from leporello.loop.state import Tree, described


def refuse_no_loss(loss: Any) -> None:
    if not callable(loss):
        raise ArgumentError(
            "the argument 'loss' is no function.",
            came=described(loss),
            expected="loss(output) -> a number per row; loss(output, target) with targets=",
        )


def row_by_row(
    loss: Callable[..., Any], output: Tree, target: tuple[Tree, ...], rows: int, of: str = "one step's output"
) -> Tensor:
    """The loss of each row, (rows,).

    loss     one that does not reduce over rows
    target   the target in brackets, or nothing
    of       what the output is, in words
    """
    try:
        found = loss(output, *target)
    except LeporelloError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the argument 'loss' fails on {of}" + (" and target." if target else "."),
            says=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            came=", ".join(map(described, (output, *target))),
            tries=None if target else "targets=, if the loss compares the output with something",
        ) from error
    if not isinstance(found, Tensor) or not found.dim() or found.shape[0] != rows or found.is_complex():
        raise ArgumentError(
            "the argument 'loss' gives no number per row.",
            came=described(found),
            expected=f"[{rows}], or [{rows}, ...], which is averaged: {rows} rows came in",
            tries="lambda output: output.square().sum(-1); no sum or mean over rows",
        )
    return found if found.dim() == 1 else found.flatten(1).mean(1)
