"""`from_torch` and `to_torch`: networks of torch.nn as ours, and back, with their parameters.

States go across by slicing. torch.nn stacks them, (layers * directions, batch, size), layer by layer and the forward
direction first; ours are one per cell, nested as the net is. With torch's h and c, a call of ours has:

                              RNN, GRU                       LSTM
    one layer                 h[0]                           (h[0], c[0])
    several layers            tuple(h)                       tuple(zip(h, c))
    both directions           tuple(h)                       tuple(zip(h, c))
    several layers of both    tuple(zip(h[::2], h[1::2]))    s = list(zip(h, c));  tuple(zip(s[::2], s[1::2]))

What torch.nn takes without a batch axis, (length, features), ours takes with one of size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from leporello.cells import GRU, LSTM, RNN
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers, Stack
from leporello.nets.typing import EngineName

NAMES = {"U": "weight_ih", "W": "weight_hh", "b": "bias_ih", "c": "bias_hh", "P": "weight_hr"}  # ours: torch's


@dataclass(frozen=True)
class Kind:
    """One recurrence under its three names, with the nonlinearities torch.nn has for it (none: no choice)."""

    ours: type[Any]
    net: type[Any]
    cell: type[Any]
    nonlinearities: tuple[str, ...] = ()


KINDS = (
    Kind(RNN, nn.RNN, nn.RNNCell, ("tanh", "relu")),
    Kind(GRU, nn.GRU, nn.GRUCell),
    Kind(LSTM, nn.LSTM, nn.LSTMCell),
)


@dataclass(frozen=True)
class Form:
    """What all cells of one torch.nn module have in common."""

    kind: Kind
    hidden: int
    bias: bool
    nonlinearity: str | None = None
    projection: int = 0

    @property
    def outputs(self) -> int:
        return self.projection or self.hidden

    def ours(self, inputs: int) -> Cell:
        """One of our cells on the meta device: parameters are put in later."""
        options: dict[str, Any] = {} if self.nonlinearity is None else {"nonlinearity": self.nonlinearity}
        if self.projection:
            options["projection"] = self.projection
        with torch.device("meta"):
            return self.kind.ours(inputs, self.hidden, bias=self.bias, **options)

    def theirs(self, maker: type[Any], inputs: int, **options: Any) -> Any:
        """A torch.nn module of class `maker` on the meta device: parameters are put in later."""
        if self.nonlinearity is not None:
            options["nonlinearity"] = self.nonlinearity
        if self.projection:
            options["proj_size"] = self.projection
        return maker(inputs, self.hidden, bias=self.bias, device="meta", **options)

    def __str__(self) -> str:
        options = [f"hidden={self.hidden}", f"bias={self.bias}"]
        options += [f"nonlinearity={self.nonlinearity!r}"] if self.nonlinearity is not None else []
        options += [f"projection={self.projection}"] if self.projection else []
        return f"{self.kind.ours.__name__}({', '.join(options)})"


@dataclass
class Copies:
    """Copies of parameters: dtype, device and requires_grad are kept, and one that is used twice stays one."""

    by_id: dict[int, nn.Parameter] = field(default_factory=dict)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        if id(parameter) not in self.by_id:
            copy = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            self.by_id[id(parameter)] = copy
        return self.by_id[id(parameter)]


def from_torch(module: nn.Module, *, engine: EngineName = "auto", gradient: Any = None) -> nn.Module:
    """A network of torch.nn as one of ours, with copies of its parameters.

        nn.RNN, nn.GRU, nn.LSTM               lp.Recurrent(cell)
          of several layers                   lp.Recurrent(lp.Stack(cell, ...))
          in both directions                  lp.Bidirectional(cell, cell), lp.Layers of those if there are several
        nn.RNNCell, nn.GRUCell, nn.LSTMCell   the cell

    module             as above; bias, proj_size, dropout, batch_first, nonlinearity and train() or eval() are kept
    engine, gradient   those of lp.Recurrent

    >>> from_torch(nn.GRU(3, 4))(torch.zeros(5, 2, 3))[0].shape
    torch.Size([5, 2, 4])
    """
    kind = _kind_of(module)
    _refuse_extras(module)
    copies = Copies()
    if not isinstance(module, nn.RNNBase):
        _refuse_options(module, engine, gradient)
        return _our_cell(_form_of(kind, module), module, "", copies).train(module.training)
    options: dict[str, Any] = {"engine": engine, "gradient": gradient, "batch_first": module.batch_first}
    layers = [
        [_our_cell(_form_of(kind, module), module, f"_l{layer}{way}", copies) for way in _ways(module.bidirectional)]
        for layer in range(module.num_layers)
    ]
    return _our_net(layers, module.dropout, options).train(module.training)


def _our_net(layers: list[list[Cell]], dropout: float, options: dict[str, Any]) -> nn.Module:
    if len(layers[0]) == 2:
        nets = [Bidirectional(*layer, **options) for layer in layers]
        return nets[0] if len(nets) == 1 else Layers(*nets, dropout=dropout)
    cells = [cell for layer in layers for cell in layer]
    return Recurrent(cells[0] if len(cells) == 1 else Stack(*cells, dropout=dropout), **options)


def _ways(bidirectional: bool) -> tuple[str, ...]:
    """What torch.nn appends to the names of the parameters of each direction."""
    return ("", "_reverse") if bidirectional else ("",)


def _our_cell(form: Form, module: nn.Module, suffix: str, copies: Copies) -> Cell:
    cell = form.ours(getattr(module, f"weight_ih{suffix}").shape[1])
    for ours, theirs in NAMES.items():
        if getattr(cell, ours, None) is not None:
            setattr(cell, ours, copies.of(getattr(module, theirs + suffix)))
    return cell


def _kind_of(module: nn.Module) -> Kind:
    for kind in KINDS:
        for known in (kind.net, kind.cell):
            if isinstance(module, known) and type(module).forward is known.forward:
                return kind
    raise ArgumentError(
        "the argument 'module' is no recurrent network of torch.nn.",
        came=type(module).__name__,
        expected=", ".join(f"nn.{known.__name__}" for kind in KINDS for known in (kind.net, kind.cell)),
        tries="carry its recurrent parts across one by one; a step of your own becomes an lp.Cell",
    )


def _form_of(kind: Kind, module: Any) -> Form:
    nonlinearity = module.nonlinearity if kind.nonlinearities else None
    return Form(kind, module.hidden_size, module.bias, nonlinearity, getattr(module, "proj_size", 0))


def _refuse_options(module: nn.Module, engine: str, gradient: Any) -> None:
    if engine != "auto" or gradient is not None:
        raise ArgumentError(
            "a cell is one step and runs on no engine.",
            module=type(module).__name__,
            came=f"engine={engine!r}, gradient={gradient!r}",
            tries="lp.Recurrent(lp.from_torch(module), engine=..., gradient=...)",
        )


def _refuse_extras(module: nn.Module) -> None:
    """Hooks and parametrizations would be lost in silence."""
    for path, part in module.named_modules():
        hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        if hooks or parametrize.is_parametrized(part):
            raise ArgumentError(
                f"a {'hook' if hooks else 'parametrization'} cannot be carried across.",
                module=f"{path} ({type(part).__name__})" if path else type(part).__name__,
                tries="remove it before, and put it on the result again",
            )


def to_torch(net: nn.Module) -> nn.Module:
    """One of our networks as one of torch.nn, with copies of its parameters: what `from_torch` does, backwards.

        lp.Recurrent of lp.RNN, GRU, LSTM, or of an lp.Stack of equal ones    nn.RNN, nn.GRU, nn.LSTM
        lp.Bidirectional of two equal ones, lp.Layers of such nets            the same in both directions
        lp.RNN, lp.GRU, lp.LSTM                                               nn.RNNCell, nn.GRUCell, nn.LSTMCell

    Engine and gradient method stay behind. What torch.nn cannot express is refused.

    >>> to_torch(Recurrent(LSTM(3, 5, projection=2), batch_first=True))
    LSTM(3, 5, proj_size=2, batch_first=True)
    """
    copies = Copies()
    if isinstance(net, Cell):
        form = _form_of_ours(net)
        if form.projection:
            raise _inexpressible("nn.LSTMCell has no projection", net, "wrap it: lp.to_torch(lp.Recurrent(cell))")
        _refuse_extras(net)
        single = form.theirs(form.kind.cell, net.inputs)  # type: ignore[arg-type]
        return _filled(single, [("", net)], copies).train(net.training)
    layers, dropout, batch_first = _layers_of(net)
    form = _common_form(layers)
    _refuse_extras(net)
    both = len(layers[0]) == 2
    module = form.theirs(
        form.kind.net,
        layers[0][0].inputs,  # type: ignore[arg-type]
        num_layers=len(layers),
        bidirectional=both,
        batch_first=batch_first,
        dropout=dropout if len(layers) > 1 else 0.0,
    )
    named = [
        (f"_l{index}{way}", cell)
        for index, layer in enumerate(layers)
        for way, cell in zip(_ways(both), layer, strict=True)
    ]
    module = _filled(module, named, copies).train(net.training)
    return module.to(layers[0][0].U.device)  # type: ignore[arg-type]  # torch.nn notices its new weights


def _filled(module: nn.Module, cells: Sequence[tuple[str, Cell]], copies: Copies) -> nn.Module:
    for suffix, cell in cells:
        for ours, theirs in NAMES.items():
            if getattr(cell, ours, None) is not None:
                setattr(module, theirs + suffix, copies.of(getattr(cell, ours)))
    return module


def _layers_of(net: nn.Module) -> tuple[list[list[Cell]], float, bool]:
    """The cells of each layer, one or two of them; the dropout between layers; batch_first."""
    if type(net) is Recurrent and type(net.cell) is Stack:
        return [[cell] for cell in net.cell.cells], net.cell.dropout, net.batch_first  # type: ignore[list-item]
    if type(net) is Recurrent:
        return [[net.cell]], 0.0, net.batch_first  # type: ignore[list-item]
    if type(net) is Bidirectional:
        return [[net.ahead.cell, net.back.cell]], 0.0, net.batch_first  # type: ignore[list-item]
    if type(net) is Layers:
        return _joined([_layers_of(part) for part in net.nets], net)
    raise _inexpressible(
        f"torch.nn has no {type(net).__name__}", net, "lp.to_torch of its lp.Recurrent, lp.Bidirectional or cell"
    )


def _joined(parts: list[tuple[list[list[Cell]], float, bool]], net: Layers) -> tuple[list[list[Cell]], float, bool]:
    if any(len(layers) > 1 for layers, _, _ in parts):
        raise _inexpressible("a part of these lp.Layers has several layers itself", net, "one layer in each part")
    if len({len(layers[0]) for layers, _, _ in parts}) > 1:
        raise _inexpressible("some layers read in both directions, others in one", net, "lp.to_torch of each part")
    if len({batch_first for _, _, batch_first in parts}) > 1:
        raise _inexpressible("only some layers are batch_first", net, "the same batch_first in each part")
    return [layers[0] for layers, _, _ in parts], net.dropout, parts[0][2]


def _form_of_ours(cell: nn.Module) -> Form:
    kind = next((k for k in KINDS if isinstance(cell, k.ours) and type(cell).forward is k.ours.forward), None)
    if kind is None:
        inside = " as a layer: there the next layer reads both directions" if type(cell) is Stack else ""
        raise _inexpressible(f"torch.nn has no {type(cell).__name__}{inside}", cell, "lp.RNN, lp.GRU or lp.LSTM")
    assert isinstance(cell, Cell)
    if len(cell.initial):
        raise _inexpressible("torch.nn learns no initial state", cell, "a cell made without learned=True")
    if (cell.b is None) != (cell.c is None):
        raise _inexpressible("torch.nn has two biases or none", cell, "both b and c, or neither")
    nonlinearity = cell.nonlinearity if kind.nonlinearities else None
    if nonlinearity is not None and nonlinearity not in kind.nonlinearities:
        raise _inexpressible(
            f"torch.nn has no {kind.ours.__name__} with the nonlinearity {nonlinearity!r}",
            cell,
            f"nonlinearity={' or '.join(map(repr, kind.nonlinearities))}",
        )
    projection = cell.projection if kind.ours is LSTM else 0
    return Form(kind, cell.hidden, cell.b is not None, nonlinearity, projection)  # type: ignore[arg-type]


def _common_form(layers: list[list[Cell]]) -> Form:
    """The form of all cells; refused where they differ, or where a layer does not read the one below."""
    form = _form_of_ours(layers[0][0])
    inputs: Any = layers[0][0].inputs
    for index, layer in enumerate(layers):
        for cell in layer:
            cell_form = _form_of_ours(cell)
            if cell_form != form or cell.inputs != inputs:
                raise ArgumentError(
                    "torch.nn cannot express this net: all its cells must be alike.",
                    layer=index,
                    came=f"{cell_form}, reading {cell.inputs}",
                    expected=f"{form}, reading {inputs}",
                    tries="lp.to_torch of each layer on its own",
                )
        inputs = form.outputs * len(layer)
    return form


def _inexpressible(why: str, part: nn.Module, tries: str) -> ArgumentError:
    return ArgumentError(f"torch.nn cannot express this net: {why}.", came=type(part).__name__, tries=tries)
