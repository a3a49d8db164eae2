"""`Origin`: where a value that is not finite came from, as a record and as a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

Where = Literal["parameter", "buffer", "input", "state", "forward", "loss", "backward"]
Kind = Literal["nan", "inf", "-inf"]

# Operators by the names under which users call them, where torch's own differ.
CALLED = {
    "mm": "matmul",
    "addmm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "linear": "matmul",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "rsub": "sub",
    "_to_copy": "to",
    "convert_element_type": "to",
    "getitem": "split",
}


@dataclass(frozen=True)
class Origin:
    """The first value that is not finite.

    where      "parameter", "buffer", "input", "state": it was so before the first step; "forward": an operator of a
               step made it; "backward": the gradient of an operator of a step did; "loss": the loss or its gradient
    kind       what it is: "nan", "inf" or "-inf"
    operator   as one calls it: exp, log, matmul; None for what was there before
    name       of the value, where the cell has one for it
    step, row  from 0; None for what belongs to none
    line       of the cell that called the operator, where it is known
    """

    where: Where
    kind: Kind
    operator: str | None = None
    name: str | None = None
    step: int | None = None
    row: int | None = None
    line: str | None = None

    def __str__(self) -> str:
        if self.where in ("parameter", "buffer", "input"):
            return f"the {self.where} {self.name} holds {self.kind} already{self.place}"
        if self.where == "state":
            return f"the state {self.name} holds {self.kind} before the first step{self.place}"
        value = f", in {self.name}" if self.name else ""
        if self.where == "forward":
            return f"{self.operator} gives {self.kind}{value}{self.place}"
        if self.where == "loss":
            return f"{self.operator or 'the loss'} gives {self.kind} in the loss{self.place}"
        return f"the gradient of {self.operator or 'a step'} is {self.kind}{value}{self.place}"

    @property
    def place(self) -> str:
        """`, at step 7 of row 2`; empty where it belongs to no step."""
        if self.step is None:
            return "" if self.row is None else f", in row {self.row}"
        return f", at step {self.step}" + ("" if self.row is None else f" of row {self.row}")


def kind_of(value: Tensor) -> Kind | None:
    """What a value holds that is not finite; nan, if that is among it; None for finite values and integers."""
    if not (value.is_floating_point() or value.is_complex()) or bool(value.isfinite().all()):
        return None
    if bool(value.isnan().any()):
        return "nan"
    return "-inf" if not value.is_complex() and not bool((value == torch.inf).any()) else "inf"


def called(target: Any) -> str:
    """An operator by the name under which one calls it."""
    packet = getattr(target, "overloadpacket", None)
    name = getattr(packet or target, "__name__", str(target))
    return CALLED.get(name, name)


def made_by(node: fx.Node, where: Where, kind: Kind, step: int, row: int | None) -> Origin:
    """The origin where an operator of a step made the value, or (where="backward") its gradient."""
    return Origin(where, kind, called(node.target), node.meta.get("label"), step, row, node.meta.get("line"))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a node's value, which may be several."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
