"""`Unasserted`: operators that give nothing and only check, as one_hot and linalg.solve have them, stay out of a graph.

Known shortcoming: where eager torch would raise (a class out of range, a matrix without inverse) a Loop computes on.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Unasserted(TorchDispatchMode):
    """While active, what only checks is left out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.returns and not func._schema.is_mutable:
            return None
        return func(*args, **(kwargs or {}))
