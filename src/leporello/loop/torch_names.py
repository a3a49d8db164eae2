"""Arguments of torch.nn that networks and cells here call otherwise: who writes one is told the name or the class."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leporello.errors import ArgumentError

# torch.nn's argument -> what does it here; {cell} is the class that was called
OTHER_NAMES = {
    "input_size": "{cell}(inputs=...)",
    "hidden_size": "{cell}(hidden=...)",
    "proj_size": "lp.LSTM(inputs, hidden, projection=...)",
    "num_layers": "lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4))): a cell for each layer",
    "bidirectional": "lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)): a cell for each direction",
    "dropout": "lp.Stack(cell, cell, dropout=...), between the cells of a stack",
    "batch_first": "lp.Recurrent(cell, batch_first=True)",
    "device": "net.to(device)",
    "dtype": "net.to(dtype)",
}


class _OwnSignature:
    """The signature of a class is that of its `__init__`, as help and notebooks show it, though it has a `__new__`."""

    def __get__(self, instance: Any, kind: type) -> inspect.Signature:
        if instance is not None:  # a call of an instance is another function
            raise AttributeError("__signature__")
        whole = inspect.signature(kind.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty)


class OwnNames:
    """A class that refuses torch.nn's names for its arguments, with what they are called here."""

    if not TYPE_CHECKING:  # a checker finds them by __init__
        __signature__ = _OwnSignature()

        def __new__(cls, *args: Any, **options: Any) -> OwnNames:
            _refuse_names_of_torch(cls, options)
            return super().__new__(cls)


def _refuse_names_of_torch(kind: type, names: Iterable[str]) -> None:
    """Raise for an argument of torch.nn that the initialiser of a class does not take."""
    for name in (one for one in OTHER_NAMES if one in names):  # in the order of the table
        own = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
        if not any(one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD for one in own):
            raise ArgumentError(
                f"the argument '{name}' is torch.nn's; here it has another name or place.",
                came=f"{kind.__name__}({name}=...)",
                expected=f"{kind.__name__}({', '.join(one.name for one in own)})",
                tries=OTHER_NAMES[name].format(cell=f"lp.{kind.__name__}"),
            )
