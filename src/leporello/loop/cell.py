"""`Cell`: a module that is one step, with its state declared once; and `named`, which names a value inside a step.

A cell that is called with a whole sequence refuses it: `refuse_row`, `refuse_sequence` and `gained_an_axis` tell a
sequence from the input of one step by its shape.
"""

from __future__ import annotations

import contextlib
import functools
import keyword
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leporello.errors import ArgumentError, NotOneStep
from leporello.loop.construction import Constructed
from leporello.loop.state import Tree, batch_of, described, leaves_of, state_of, state_type
from leporello.loop.torch_names import OwnNames


class Cell(Constructed, OwnNames, nn.Module):
    """One step of a recurrence: `forward(x, state) -> (output, next state)`.

    The state is declared once, its leaves with their sizes (or shapes) without the batch axis. One leaf is passed as a
    tensor, several as a named tuple:

    >>> class Leaky(Cell):
    ...     def __init__(self, inputs, hidden):
    ...         super().__init__(h=hidden)
    ...         self.U, self.W = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    ...     def forward(self, x, h):
    ...         h = 0.9 * h + 0.1 * torch.tanh(self.U(x) + self.W(h))
    ...         return h, h
    >>> Leaky(3, 4).initial_state(batch=2).shape
    torch.Size([2, 4])

    learned   the initial state is a parameter per leaf (zeros at first) instead of zeros
    leaves    name=size or name=(sizes...) for each state leaf

    A cell with a feedback delay names that leaf in `feedback`, and may define `feed(output)`: what is fed back. The
    leaf then carries feed(output), or the true value where a step is forced.

    A class whose output is a leaf of the next state may name that leaf in `output_leaf`, beside its forward:
    `lp.Summary` then computes no other outputs.
    """

    feedback: str | None = None
    output_leaf: str | None = None

    def __init__(self, *, learned: bool = False, **leaves: int | tuple[int, ...]) -> None:
        super().__init__()
        self.leaves = {name: _shape(name, size) for name, size in leaves.items()}
        if len(self.leaves) > 1:
            state_type(tuple(self.leaves))  # created now: torch.compile creates no types
        self.initial = nn.ParameterDict()
        if learned:
            for name, shape in self.leaves.items():
                self.initial[name] = nn.Parameter(torch.zeros(shape))

    def _missing_forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} needs forward(x, state) -> (output, next state)")

    forward: Callable[..., tuple[Any, Any]] = _missing_forward  # a type that a forward with other names fits

    def feed(self, output: Any) -> Any:
        """What is fed back of an output; the output itself unless a cell says otherwise."""
        return output

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        """The state before the first step: zeros, or the learned initial state, for `batch` rows."""
        like = next((p for p in self.parameters() if p.is_floating_point() or p.is_complex()), None)
        device = device or (like.device if like is not None else None)
        dtype = dtype or (like.dtype if like is not None else None)
        values = [
            self.initial[name].to(device=device, dtype=dtype).expand(batch, *shape)
            if name in self.initial
            else torch.zeros(batch, *shape, device=device, dtype=dtype)
            for name, shape in self.leaves.items()
        ]
        return state_of(list(self.leaves), values)

    def extra_repr(self) -> str:
        """The sizes, for `print(net)`."""
        sizes = [f"{name}={getattr(self, name)}" for name in ("inputs", "hidden", "outputs") if _is_size(self, name)]
        state = [f"{name}={shape[0] if len(shape) == 1 else shape}" for name, shape in self.leaves.items()]
        return ", ".join([*sizes, *([f"state: {', '.join(state)}"] if state else [])])

    def __repr__(self) -> str:
        """As torch has it, without the line of an initial state that is not learned."""
        return re.sub(r"\n *\(initial\): ParameterDict\(\)(?=\n)", "", super().__repr__())

    def state_names(self) -> list[str]:
        """The names of the state's leaves, in the order of the tree."""
        return list(self.leaves)

    def with_names(self, state: Tree) -> Tree:
        """A plain tuple of the declared leaves as the named tuple of them; other states stay as they are."""
        plain = type(state) is tuple and len(state) == len(self.leaves) > 1
        return state_of(list(self.leaves), state) if plain else state

    def feedback_leaf(self) -> str | None:
        """The name of the state leaf that carries what is fed back, None for a cell without feedback."""
        if self.feedback is not None and self.feedback not in self.leaves:
            raise ArgumentError(
                f"the cell's feedback '{self.feedback}' is no leaf of its state.",
                cell=type(self).__name__,
                expected=", ".join(map(repr, self.leaves)) or "a cell with a state",
                tries=f"super().__init__({self.feedback}=size) declares it",
            )
        return self.feedback

    def __call__(self, x: Any = None, state: Any = None, *args: Any, **options: Any) -> tuple[Any, Any]:
        refuse_row(self, x, state)
        if state is None:
            state = self.initial_state(batch_of(x) or 1, **_device_and_dtype(x))
        state = self.with_names(state)
        if not may_be_sequence(x, state):
            return super().__call__(x, state, *args, **options)
        refuse_sequence(self, x, state)
        try:
            result = super().__call__(x, state, *args, **options)
        except RuntimeError as error:  # shapes that do not fit
            raise not_one_step(self, x) from error
        if gained_an_axis(result, state):
            raise not_one_step(self, x)
        return result


def _shape(name: str, size: int | tuple[int, ...]) -> tuple[int, ...]:
    if keyword.iskeyword(name) or name.startswith("_"):
        raise ArgumentError(
            f"'{name}' is no name for a state leaf.",
            expected="a Python name that begins with a letter and is no keyword",
        )
    shape = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ArgumentError(
            f"the state leaf '{name}' has no valid size.",
            came=repr(size),
            expected="a positive integer, or a tuple of them, without the batch axis",
        )
    return shape


def _is_size(cell: nn.Module, name: str) -> bool:
    value = getattr(cell, name, None)
    return isinstance(value, int) and not isinstance(value, bool)


def _device_and_dtype(x: Any) -> dict[str, Any]:
    """The arguments `device` and `dtype` of `initial_state`, from the first tensor of an input; {} without a tensor.

    An integer input says nothing about the state's dtype, which is then None.
    """
    for leaf in leaves_of(x):
        if isinstance(leaf, Tensor):
            floats = leaf.is_floating_point() or leaf.is_complex()
            return {"device": leaf.device, "dtype": leaf.dtype if floats else None}
    return {}


def features_of(cell: nn.Module) -> int | None:
    """How many features a built-in cell, or a subclass of one, reads; None for other cells, whose `inputs` may mean
    anything."""
    inputs = getattr(cell, "inputs", None)
    return inputs if isinstance(inputs, int) and _is_built_in(type(cell)) else None  # type: ignore[arg-type]


@functools.cache
def _is_built_in(kind: type) -> bool:
    return any(base.__module__.startswith(("leporello.cells.", "leporello.nets.")) for base in kind.__mro__)


def refuse_row(cell: nn.Module, x: Any, state: Any) -> None:
    """Refuse an input of a built-in cell that is not one step, [batch, features]; other cells may read anything.

    [features] alone is accepted if a state is passed with it.
    """
    features = features_of(cell)
    if features is None:
        return
    expected = f"one step: [batch, {features}]"
    if not isinstance(x, Tensor):
        if isinstance(x, PackedSequence):
            raise not_one_step(cell, x)
        raise ArgumentError(
            f"{type(cell).__name__} reads one tensor.",
            came=described(x),
            expected=expected,
            tries="torch.as_tensor(values)",
        )
    if x.dim() > 2:
        raise not_one_step(cell, x)
    if x.dim() == 0 or (x.dim() == 1 and state is None):  # with a state to match, one row may come without its batch
        raise ArgumentError(
            f"the input of {type(cell).__name__} has too few axes.",
            came=described(x),
            expected=expected,
            tries="x.unsqueeze(0) adds a batch axis",
        )
    if x.shape[-1] != features:
        raise ArgumentError(
            f"the input of {type(cell).__name__} has the wrong number of features.",
            came=described(x),
            expected=expected,
            tries=f"build the cell for {x.shape[-1]} inputs",
        )


def may_be_sequence(x: Any, state: Any) -> bool:
    """Whether an input may be a whole sequence: it has more than two axes, and more than any state leaf.

    The first tensor of the input counts. An integer tensor counts one axis more, because a class index stands for a
    vector of features. A PackedSequence always is a sequence.
    """
    first = x if isinstance(x, Tensor) else next((leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor)), None)
    if first is None:
        return False
    axes = first.dim() + (not (first.is_floating_point() or first.is_complex()))  # a class index is a row of features
    return isinstance(x, PackedSequence) or (
        axes > 2 and axes > max([0, *(leaf.dim() for leaf in leaves_of(state) if isinstance(leaf, Tensor))])
    )


def refuse_sequence(cell: nn.Module, x: Any, state: Any) -> None:
    """Refuse an input whose second axis, and not its first, has the size of the state's batch: a sequence.

    For inputs that pass `may_be_sequence`, which have at least two axes.
    """
    first = next(leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor))
    batch = batch_of(state)
    if isinstance(x, PackedSequence) or (batch is not None and first.shape[0] != batch and first.shape[1] == batch):
        raise not_one_step(cell, x)


def gained_an_axis(result: Any, state: Any) -> bool:
    """Whether a leaf of the next state has more axes than before the step.

    result   what the step returned; False unless it is a pair (output, next state)
    """
    if not isinstance(result, tuple) or len(result) != 2:
        return False
    pairs = zip(leaves_of(result[1]), leaves_of(state), strict=False)
    return any(isinstance(new, Tensor) and isinstance(old, Tensor) and new.dim() > old.dim() for new, old in pairs)


def not_one_step(cell: nn.Module, x: Any) -> NotOneStep:
    came = "a PackedSequence" if isinstance(x, PackedSequence) else f"an input {described(x)}"
    return NotOneStep(
        f"{type(cell).__name__} was called with a whole sequence; this is one step.",
        came=came,
        expected=f"the input of one step, [batch, {features_of(cell) or 'features'}]",
        tries="wrap it in lp.Recurrent(cell) and call that with the sequence",
    )


Value = TypeVar("Value", bound=Tensor)


class _Collectors(threading.local):
    """The dicts that `named` fills, a list per thread; empty unless a trace or a recording is running."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Tensor]] = []


_collectors = _Collectors()


def named(value: Value, name: str) -> Value:
    """The value itself, known as `name` to pictures, `explain()` and `lp.record`.

    >>> rate = named(torch.tanh(h), "r")   # doctest: +SKIP
    """
    for table in _collectors.tables:
        table[name] = value
    return value


@contextlib.contextmanager
def collected_names() -> Iterator[dict[str, Tensor]]:
    """The values that are passed to `named` while the block runs, by name; the last value of a name counts."""
    table: dict[str, Tensor] = {}
    _collectors.tables.append(table)
    try:
        yield table
    finally:
        _collectors.tables.remove(table)
