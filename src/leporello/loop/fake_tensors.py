"""`FakeTensorFamily`: fake tensors that share one symbolic batch, and how to find the batch in their shapes.

A Loop and all its rewrites belong to one family, so that a rewrite can compute the shape of an operator it adds.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode, _DeconstructedSymType
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.backends import opt_einsum
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

_EXAMPLE_BATCHES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # the symbol's hint: the first that is no feature size


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


class FakeTensorFamily:
    """One symbol for the number of rows, and fake tensors with that symbol in their shapes.

    feature_sizes   sizes that the symbol's hint must differ from. torch assumes the hint where a step decides by the
                    number of rows; the batch can then still be told from other axes by its size
    rows            a number instead of the symbol, for a step that depends on the number
    """

    def __init__(self, feature_sizes: Sequence[int] = (), rows: int | None = None) -> None:
        free = next((size for size in _EXAMPLE_BATCHES if size not in feature_sizes), 37)
        self.example_rows = rows if rows is not None else free
        self.shapes = ShapeEnv(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )  # numbers and sizes that depend on data are refused in the user's line that reads them
        self.shapes.fake_tensor_cache = _OperatorCache(self.shapes)
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=False)
        self.rows: Any = self.example_rows if rows is not None else self._symbol()

    def _symbol(self) -> Any:
        from torch._dynamo.source import ConstantSource  # here, because it loads all of dynamo: most of a second

        source = ConstantSource("rows")
        symbol = self.shapes.create_symbol(
            self.example_rows, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        return self.shapes.create_symintnode(symbol, hint=self.example_rows, source=source)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, rows: bool) -> Tensor:
        """A fake tensor [rows, *shape], or [*shape] without the row axis."""
        full = (self.rows, *shape) if rows else tuple(shape)
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
                return function(*values)

        with self.active():
            return make_fx(lazily, decomposition_table=decompositions)(*arguments)

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
        return list(self.shapes.guards)

    def batch_is_concrete(self) -> bool:
        """Whether the number of rows is a plain number: passed as one, or guarded on by the step."""
        return isinstance(self.rows, int) or bool(self.shapes.guards)


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


def row_axes(value: Tensor) -> list[int]:
    """The axes of a fake tensor whose size is the symbol for the number of rows, or a multiple of it.

    Empty where the family has a number instead of the symbol.
    """
    return [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]


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
