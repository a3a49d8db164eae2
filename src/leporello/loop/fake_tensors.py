"""`FakeTensorFamily`: fake tensors that share one symbolic batch, and how to find the batch in their shapes.

A Loop and all its rewrites belong to one family, so that a rewrite can compute the shape of an operator it adds.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode, _DeconstructedSymType
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.backends import opt_einsum
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify
from torch.fx.experimental.sym_node import SymNode

from leporello.loop.phases import no_garbage_collection, timed_phase
from leporello.loop.sizes import AnySize, LengthsFixed, Size, nominal

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_EXAMPLE_BATCHES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # the symbol's hint: the first that is no feature size
_UNLIKE_LENGTHS = range(41, 1 << 31, 2)  # the hint for a length of 1: the first that is no other size


MAX_CACHED_OPERATORS = 100_000  # then all are forgotten
_cached_operators: dict[Any, Any] = {}


class _OperatorCache(dict[Any, Any]):
    """Where torch keeps the results of operators on fake tensors of one family, by operator and shapes.

    A result that was found while nothing was assumed about the number of rows holds in other families too, and is
    shared with them; others stay here.
    """

    def __init__(self, shapes: ShapeEnv) -> None:
        super().__init__()
        self.shapes = weakref.ref(shapes)

    def get(self, key: Any, default: Any = None) -> Any:
        own = super().get(key)
        return _cached_operators.get(key, default) if own is None else own

    def __setitem__(self, key: Any, result: Any) -> None:
        shapes = self.shapes()
        if shapes is None or shapes.guards:
            super().__setitem__(key, result)
            return
        if len(_cached_operators) >= MAX_CACHED_OPERATORS:
            _cached_operators.clear()
        _strip_shapes(key)
        _cached_operators[key] = result


def _strip_shapes(key: Any) -> None:
    """Replace, in place, the symbolic sizes of a cache key by equal ones that hold no reference to their ShapeEnv.

    Otherwise the shared cache would keep the ShapeEnv of every trace alive.
    """
    for part in key.key:
        value = getattr(part, "value", None)
        node = getattr(value, "node", None)
        if isinstance(node, SymNode):
            kind: Any = getattr(value, "ty", type(value))
            part.value = _DeconstructedSymType(kind, _DeconstructedSymNode.from_node(node))


def load_tracer() -> ModuleType:
    """Load what a trace needs of torch, with sympy and all of dynamo: half a second, once a process.

    A network does so as it is made, so that its first call need not. Returns our module of symbolic sizes.
    """
    with timed_phase("loading torch's tracer"), no_garbage_collection():
        from leporello.loop import symbolic_shapes
    return symbolic_shapes


class FakeTensorFamily:
    """One symbol for the number of rows, and fake tensors with that symbol in their shapes.

    feature_sizes   sizes that the symbol's hint must differ from. torch assumes the hint where a step decides by the
                    number of rows; the batch can then still be told from other axes by its size
    rows            a number instead of the symbol, for a step that depends on the number
    lengths         examples of free lengths: each is a symbol of its own, in `lengths`. One of 1 is traced as another
                    one: torch takes symbols to be 2 and more

    traces    with free lengths, all graphs as they were traced: also with values of which a step reads the shape alone
    checked   by a graph and lengths whether its values have the shapes that it says, as `holds_at_one` found
    """

    def __init__(self, feature_sizes: Sequence[int] = (), rows: int | None = None, lengths: Sequence[int] = ()) -> None:
        symbolic_shapes = load_tracer()
        free = next((size for size in _EXAMPLE_BATCHES if size not in feature_sizes), 37)
        self.example_rows = rows if rows is not None else free
        self.shapes = symbolic_shapes.Shapes(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )  # numbers and sizes that depend on data are refused in the user's line that reads them
        self.shapes.fake_tensor_cache = _OperatorCache(self.shapes)
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=False)
        self.rows: Any = self.example_rows if rows is not None else self.shapes.free_size("rows", self.example_rows)
        self.example_lengths = list(lengths)
        self._numbers: set[int] = set()
        self.traces: list[fx.Graph] = []
        self.checked: dict[tuple[fx.Graph, tuple[int, ...]], bool] = {}
        self._differs_at_one: set[int] = set()
        unlike = next(size for size in _UNLIKE_LENGTHS if size not in feature_sizes)
        hints = [example if example > 1 else unlike for example in lengths]
        self.lengths = [self.shapes.free_size(f"length{index}", hint) for index, hint in enumerate(hints)]
        _row_symbols[self.shapes] = None if isinstance(self.rows, int) else self.rows.node.expr
        _length_symbols[self.shapes] = {symbol.node.expr: index for index, symbol in enumerate(self.lengths)}

    def tensor(self, shape: Sequence[Any], dtype: torch.dtype, device: torch.device, *, rows: bool) -> Tensor:
        """A fake tensor [rows, *shape], or [*shape] without the row axis; a `Size` is the symbol that it stands for."""
        sizes = self.with_symbols(shape)
        full = (self.rows, *sizes) if rows else tuple(sizes)
        with self.mode:
            return torch.empty(full, dtype=dtype, device=device)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """While the block runs, operators on tensors of this family compute shapes only."""
        with self.mode, enable_python_dispatcher(), plain_operators():
            yield

    def traced(self, function: Callable[..., Any], *arguments: Any, decompositions: Any = None) -> fx.GraphModule:
        """The graph of function(*arguments), by make_fx; operators that write in place are in it as they are."""

        def lazily(*values: Any) -> Any:
            with maybe_enable_thunkify():  # arithmetic on sizes is recorded only where an operator reads it
                return function(*values[len(self.lengths) :])

        with self.active():
            module = make_fx(lazily, decomposition_table=decompositions)(*self.lengths, *arguments)
        if self.lengths:
            self._note_numbers(module.graph)
            self.traces.append(fx.Graph())
            self.traces[-1].graph_copy(module.graph, {})
            _lengths_in_place(module.graph, len(self.lengths))
        return module

    def graph_of(self, function: Callable[..., Any], *arguments: Any, decompositions: Any = None) -> fx.GraphModule:
        """The graph of function(*arguments), as of `traced`, but without operators that write in place.

        Where there are some, a second trace makes them functional. That is not done in the first one because torch's
        functional wrappers cost as much as all the rest.
        """
        module = self.traced(function, *arguments, decompositions=decompositions)
        if not any(map(writes_in_place, module.graph.nodes)):
            return module
        return self.traced(dispatch_functionalize(function), *arguments, decompositions=decompositions)

    @contextlib.contextmanager
    def no_new_guards(self) -> Iterator[None]:
        """Fail where the block adds a guard on the number of rows; does nothing where that is a number already."""
        if self.batch_is_concrete():
            yield
            return
        strict = getattr(
            self.shapes, "error_on_new_guards", contextlib.nullcontext
        )  # older torch: checked afterwards only
        with strict():
            yield
        if self.batch_is_concrete():
            raise RuntimeError(f"guards are frozen, and one was added: {self.guards()[0].expr}")

    def guards(self) -> list[Any]:
        """What the trace assumes about the number of rows, and where; empty for a step that works for every batch."""
        symbol = _row_symbols[self.shapes]
        guards = [guard for guard in self.shapes.guards if not self.lengths or symbol in guard.expr.free_symbols]
        return [d for d in self.shapes.at_one if d.of_step and symbol in d.expr.free_symbols] + guards

    def batch_is_concrete(self) -> bool:
        """Whether the number of rows is a plain number: passed as one, or guarded on by the step."""
        return isinstance(self.rows, int) or bool(self.guards())

    def per_row(self, size: Any) -> AnySize | None:
        """By what the number of rows is multiplied in a symbolic size; None for a size of another form."""
        times, symbols = size.node.expr / self.rows.node.expr, _length_symbols[self.shapes]
        if not times.is_Integer and not (
            times.free_symbols and all(symbol in symbols for symbol in times.free_symbols)
        ):
            return None
        return _as_size(times, symbols)

    def with_symbols(self, argument: Any) -> Any:
        """An argument of an operator with torch's symbols in the place of each `Size`."""
        if isinstance(argument, (tuple, list)):
            return [*map(self.with_symbols, argument)]
        return argument.value(self.lengths) if isinstance(argument, Size) else argument

    def _note_numbers(self, graph: fx.Graph) -> None:
        """Note the free lengths of which an operator reads another number than a size, such as a square root."""
        symbols = _length_symbols[self.shapes]
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                self._numbers |= {symbols[symbol] for symbol in value.node.expr.free_symbols if symbol in symbols}

    def fixed_lengths(self) -> set[int]:
        """Which free lengths are no symbols any more: the trace holds only for their example, or for some lengths."""
        symbols = _length_symbols[self.shapes]
        fixed = self._numbers | {i for symbol, i in symbols.items() if self.shapes.replace(symbol) != symbol}
        for guard in self.shapes.guards:
            fixed |= {symbols[symbol] for symbol in guard.expr.free_symbols if symbol in symbols}
        return fixed

    def note_ones(self, size: Any) -> None:
        """Note that a trace would have been another one where a symbolic size without rows is 1."""
        symbols = _length_symbols[self.shapes]
        self._differs_at_one |= {symbols[symbol] for symbol in size.node.expr.free_symbols}

    def differ_at_one(self) -> set[int]:
        """Free lengths by which Python code has decided whether they are 1, or could not: a trace is for the others."""
        symbols = _length_symbols[self.shapes]
        asked = {symbol for decision in self.shapes.at_one for symbol in decision.expr.free_symbols}
        return self._differs_at_one | {symbols[symbol] for symbol in asked if symbol in symbols}

    def sizes_for(self, value: Tensor, rows: int, lengths: Sequence[int]) -> list[int]:
        """The sizes of a fake tensor, for a number of rows and free lengths."""
        return [self.number_for(size, rows, lengths) for size in value.shape]

    def number_for(self, size: Any, rows: int, lengths: Sequence[int]) -> int:
        """A symbolic size, or an integer, for a number of rows and free lengths."""
        if isinstance(size, int):
            return size
        numbers = {symbol: lengths[index] for symbol, index in _length_symbols[self.shapes].items()}
        return int(size.node.expr.subs(numbers | {_row_symbols[self.shapes]: rows}))


# Libraries and fused operators of torch that choose by the number of rows, or hide what they compute: the getter and
# the setter of the switch that turns each off.
_SWITCHES: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (opt_einsum._get_enabled, opt_einsum._set_enabled),
)


@contextlib.contextmanager
def plain_operators() -> Iterator[None]:
    """While the block runs, convolutions, attention and recurrent modules are plain operators, for any batch."""
    before = [is_on() for is_on, _ in _SWITCHES]
    try:
        for _, switch in _SWITCHES:
            switch(False)
        yield
    finally:
        for (_, switch), was_on in zip(_SWITCHES, before, strict=True):
            switch(was_on)


def writes_in_place(node: fx.Node) -> bool:
    """Whether an operator of a traced graph writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


_row_symbols: weakref.WeakKeyDictionary[ShapeEnv, Any] = weakref.WeakKeyDictionary()
_length_symbols: weakref.WeakKeyDictionary[ShapeEnv, dict[Any, int]] = weakref.WeakKeyDictionary()


def _lengths_in_place(graph: fx.Graph, count: int) -> None:
    """Remove the free lengths from the placeholders of a traced graph: where an operator reads a number that is made of
    them alone, a `Size` stands among its arguments."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and node.op != "output" and not has_row_symbol(value):
            number = without_symbols(value)
            for user in list(node.users):
                user.args, user.kwargs = fx.map_arg(
                    (user.args, user.kwargs),
                    lambda read, node=node, number=number: number if read is node else read,  # type: ignore[misc]
                )
    graph.eliminate_dead_code()
    for node in [node for node in graph.nodes if node.op == "placeholder"][:count]:
        graph.erase_node(node)


def has_row_symbol(size: Any) -> bool:
    """Whether a symbolic number is made of the number of rows."""
    shapes = size.node.shape_env
    return not _length_symbols[shapes] or _row_symbols[shapes] in size.node.expr.free_symbols


def size_of(size: Any) -> AnySize:
    """A size of a fake tensor that does not depend on the number of rows: an integer, or a `Size`."""
    if isinstance(size, int):
        return size
    expression, symbols = size.node.expr, _length_symbols[size.node.shape_env]
    if not all(symbol in symbols for symbol in expression.free_symbols):
        raise ValueError(f"the size {expression} depends on the number of rows")
    return _as_size(expression, symbols)


def _as_size(expression: Any, symbols: dict[Any, int]) -> AnySize:
    """An expression of free lengths as a size.

    Raises `LengthsFixed` for what is no sum of products of them, such as half a length.
    """
    if expression.is_Integer:
        return int(expression)
    total: AnySize = 0
    polynomial = expression.as_poly(*symbols)
    if polynomial is None or not all(factor.is_Integer for factor in polynomial.coeffs()):
        raise LengthsFixed(f"the size {expression} is no sum of products of lengths.")
    for powers, factor in polynomial.terms():
        product: AnySize = int(factor)
        for symbol, power in zip(symbols, powers, strict=True):
            for _ in range(power):
                product = product * Size.length(symbols[symbol])
        total = total + product
    return total


def count_of(value: Tensor) -> int:
    """The number of elements of a fake tensor without rows; for free lengths of common size."""
    return math.prod(nominal(size_of(size)) for size in value.shape)


def without_symbols(argument: Any) -> Any:
    """An argument of an operator with a `Size` in the place of torch's symbols of free lengths, also in lists."""
    if isinstance(argument, (tuple, list)):
        symbolic = any(isinstance(part, torch.SymInt) for part in argument)
        return [*map(without_symbols, argument)] if symbolic else argument
    if isinstance(argument, torch.SymInt):
        return argument if has_row_symbol(argument) else size_of(argument)
    return argument


def row_axes(value: Tensor) -> list[int]:
    """The axes of a fake tensor whose size is the symbol for the number of rows, or a multiple of it.

    Empty where the family has a number instead of the symbol.
    """
    return [axis for axis, size in enumerate(value.shape) if not isinstance(size, int) and has_row_symbol(size)]


def clean_row_axis(value: Any) -> int | None:
    """The one axis whose size is the symbol for the number of rows.

    None if there is none or several, if it is merged with features (a multiple of the symbol), and for no tensor.
    """
    if not isinstance(value, Tensor):
        return None
    axes = row_axes(value)
    if len(axes) != 1 or not _is_symbol(value.shape[axes[0]]):
        return None
    return axes[0]


def _is_symbol(size: Any) -> bool:
    return bool(size.node.expr.is_symbol)


def has_rows(value: Any) -> bool:
    """Whether a value of a graph, or any tensor in it, has the row axis."""
    if isinstance(value, (tuple, list)):
        return any(has_rows(part) for part in value)
    return isinstance(value, Tensor) and bool(row_axes(value))
