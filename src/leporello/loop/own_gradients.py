"""`OwnGradient`: an operator whose gradient is another graph, as an `autograd.Function` in a step defines it.

A step that calls `Function.apply` is traced through the Function's forward and, at once, through its backward: with
`recording`, both leave their operators in the graph, marked by `incoming` (the gradient of a result, which nothing
computes) and `own_gradient` (results, inputs, and the gradients of the inputs). `closed` then moves the operators of
the backward into a graph of their own, and the marks become one `OwnGradient`. Whoever differentiates the Loop's graph
by autograd runs that graph; `without_own_gradients` removes it where nothing is differentiated any more.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import UntraceableStep
from leporello.loop.graph import arguments, call, copied
from leporello.loop.loop import Loop


@torch.library.custom_op("leporello::incoming", mutates_args=())
def _incoming(value: Tensor) -> Tensor:
    return torch.zeros_like(value)


@_incoming.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


@torch.library.custom_op("leporello::own_gradient", mutates_args=())
def _own_gradient(
    values: Sequence[Tensor], inputs: Sequence[Tensor], incoming: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    return [value.clone() for value in values]


@_own_gradient.register_fake
def _(values: Any, inputs: Any, incoming: Any, gradients: Any) -> list[Tensor]:
    return [torch.empty_like(value) for value in values]


incoming = torch.ops.leporello.incoming.default
own_gradient = torch.ops.leporello.own_gradient.default


class OwnGradient:
    """Returns its values unchanged; their gradient is passed on to the inputs by a graph of its own.

    graph   its placeholders: what it reads of the forward step, then the gradients of the values. Its results: a
            gradient for each input
    """

    __name__ = "own_gradient"

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.backward = fx.GraphModule({}, graph).forward

    def __call__(self, values: Sequence[Tensor], inputs: Sequence[Tensor], reads: Sequence[Any]) -> list[Tensor]:
        return list(_Differentiated.apply(self, len(values), len(inputs), *values, *inputs, *reads))


class _Differentiated(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(own: OwnGradient, values: int, inputs: int, *tensors: Any) -> tuple[Tensor, ...]:
        results = tensors[:values]
        if _keeping.active:
            gradients_in = [incoming(value) for value in results]
            gradients = own.backward(*tensors[values + inputs :], *gradients_in)
            results = own_gradient(list(results), list(tensors[values : values + inputs]), gradients_in, gradients)
        return tuple(torch.ops.aten.alias.default(value) for value in results)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        own, values, count, *tensors = inputs
        reads = tensors[values + count :]
        places = {id(value): index for index, value in enumerate(tensors[:values])}
        reads = [output[places[id(read)]] if id(read) in places else read for read in reads]  # its own result
        ctx.own, ctx.values, ctx.count = own, values, count
        ctx.numbers = [None if isinstance(read, Tensor) else read for read in reads]
        ctx.save_for_backward(*[read for read in reads if isinstance(read, Tensor)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        reads = [next(saved) if number is None else number for number in ctx.numbers]
        passed = ctx.own.backward(*reads, *gradients)
        return (None, None, None, *[None] * ctx.values, *passed, *[None] * len(reads))


class _ThreadFlag(threading.local):
    active = False


_keeping = _ThreadFlag()
_recording = _ThreadFlag()


@contextmanager
def kept() -> Iterator[None]:
    """While the block runs, a trace of a graph keeps its own gradients, so that they can be differentiated again."""
    before, _keeping.active = _keeping.active, True
    try:
        yield
    finally:
        _keeping.active = before


# ---- recording


@contextmanager
def recording() -> Iterator[None]:
    """While the block runs, `autograd.Function.apply` leaves the operators of forward and backward in the trace.

    `Function.apply` calls that of its base class, which has none in Python: one is added while the block runs. So it
    also acts where `apply` was read from the Function before. Other threads are not concerned. Blocks do not overlap:
    a trace holds the lock of cells.
    """
    base: Any = torch.autograd.function._SingleLevelFunction

    def apply(cls: Any, *args: Any, **options: Any) -> Any:
        if not _recording.active or not torch.is_grad_enabled():
            return super(base, cls).apply(*args, **options)
        return _recorded(cls, args)

    before, _recording.active = _recording.active, True
    patched = "apply" in vars(base)
    if not patched:
        base.apply = classmethod(apply)
    try:
        yield
    finally:
        _recording.active = before
        if not patched:
            del base.apply


class _RecordedContext:
    """What a Function's forward and backward get as `ctx`."""

    def __init__(self, name: str, needs_input_grad: tuple[bool, ...]) -> None:
        self._name = name
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass  # the trace has a gradient for each result

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise UntraceableStep(
            f"the step calls {self._name}, an autograd.Function that writes to its input.",
            tries="return a new tensor from its forward instead of ctx.mark_dirty",
        )


def _recorded(cls: Any, args: tuple[Any, ...]) -> Any:
    """What `cls.apply(*args)` returns, with the operators of forward and backward in the trace."""
    context = _RecordedContext(cls.__name__, tuple(map(_differentiable, args)))
    with torch.no_grad():
        if cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
            output = cls.forward(context, *args)
        else:
            output = cls.forward(*args)
            cls.setup_context(context, args, output)
    results = list(output) if isinstance(output, (tuple, list)) else [output]
    constant = {id(tensor) for tensor in context.non_differentiable}
    places = [i for i, value in enumerate(results) if _differentiable(value) and id(value) not in constant]
    if not places or not any(context.needs_input_grad):
        return output
    values = [results[place] for place in places]
    gradients_in = [_below_autograd(incoming, value) for value in values]
    by_place = dict(zip(places, gradients_in, strict=True))
    gradients = _backward_of(cls)(
        context,
        *[by_place.get(i, torch.zeros_like(v) if isinstance(v, Tensor) else None) for i, v in enumerate(results)],
    )
    gradients = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    _refuse_count(cls, args, gradients)
    pairs = [(x, g) for x, g in zip(args, gradients, strict=False) if _differentiable(x) and g is not None]
    inputs = [x for x, _ in pairs]
    passed = [g.sum_to_size(x.shape).to(x.dtype) for x, g in pairs]
    marked = _below_autograd(own_gradient, values, inputs, gradients_in, passed)
    for place, value in zip(places, marked, strict=True):
        results[place] = value
    return type(output)(results) if isinstance(output, (tuple, list)) else results[0]


def _below_autograd(mark: Any, *args: Any) -> Any:
    """A mark in the trace; autograd, which follows parameters that the cell does not register, passes it over."""
    with torch._C._AutoDispatchBelowAutograd():
        return mark(*args)


def _backward_of(cls: Any) -> Any:
    base = torch.autograd.function._SingleLevelFunction
    return cls.vjp if cls.backward is base.backward else cls.backward


def _refuse_count(cls: Any, args: tuple[Any, ...], gradients: Sequence[Any]) -> None:
    extra = gradients[len(args) :]
    if len(gradients) < len(args) or any(gradient is not None for gradient in extra):
        raise UntraceableStep(
            f"the backward of {cls.__name__}, an autograd.Function, returns another number of gradients than its "
            "forward has arguments.",
            came=f"{len(gradients)}",
            expected=f"{len(args)}, None for what is no tensor",
        )


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


# ---- in graphs


def closed(graph: fx.Graph) -> None:
    """Replace, in place, the marks of `recording` by one `OwnGradient` each, with the operators of its backward."""
    for node in [node for node in graph.nodes if node.target is own_gradient]:
        values, inputs, gradients_in, gradients = arguments(node)
        inside = _between(graph, set(gradients_in), node)
        own = fx.Graph()
        counterparts: dict[fx.Node, fx.Node] = {}
        reads = _read_from_outside([*inside, gradients], {*inside, *gradients_in})
        for outer in (*reads, *gradients_in):
            counterparts[outer] = own.placeholder(outer.name)
            counterparts[outer].meta = dict(outer.meta)
        for inner in inside:
            counterparts[inner] = own.node_copy(inner, counterparts.__getitem__)
        own.output(tuple(counterparts[gradient] for gradient in gradients))
        node.target = OwnGradient(own)
        node.args = (values, inputs, reads)
        for inner in reversed([*gradients_in, *inside]):
            if not inner.users:
                graph.erase_node(inner)


def _between(graph: fx.Graph, starts: set[fx.Node], end: fx.Node) -> list[fx.Node]:
    """The operators that depend on one of the starts and on which the end depends, in order."""
    depending, needed = set(starts), {end}
    for node in graph.nodes:
        if depending.intersection(node.all_input_nodes):
            depending.add(node)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in depending and node in needed and node not in starts | {end}]


def _read_from_outside(readers: Sequence[Any], inside: set[fx.Node]) -> list[fx.Node]:
    """The values that operators, or lists of values, read and that are not inside, each once."""
    sources = [
        source for reader in readers for source in (reader.all_input_nodes if isinstance(reader, fx.Node) else reader)
    ]
    return [source for source in dict.fromkeys(sources) if source not in inside]


def opened(loop: Loop) -> Loop:
    """The Loop with the operators of each own gradient among its own, marked as by `recording`: for its text."""
    if not has_own_gradients(loop):
        return loop
    graph, _ = copied(loop.graph)
    for node in _own_gradients(graph):
        values, inputs, reads = arguments(node)
        with graph.inserting_before(node):
            gradients_in = [call(graph, loop.family, incoming, value) for value in values]
            inner_placeholders = iter([*reads, *gradients_in])
            counterparts: dict[fx.Node, fx.Node] = {}
            gradients: Any = ()
            for inner in node.target.graph.nodes:  # type: ignore[union-attr]
                if inner.op == "placeholder":
                    counterparts[inner] = next(inner_placeholders)
                elif inner.op == "output":
                    gradients = [counterparts[gradient] for gradient in inner.args[0]]
                else:
                    counterparts[inner] = graph.node_copy(inner, counterparts.__getitem__)
        node.target = own_gradient
        node.args = (values, inputs, gradients_in, gradients)
    return opened(loop.replace(graph=graph))


def without_own_gradients(loop: Loop) -> Loop:
    """The Loop without the gradients that its operators define: for what is run, not differentiated."""
    if not has_own_gradients(loop):
        return loop
    graph, _ = copied(loop.graph)
    for node in _own_gradients(graph):
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(arguments(node)[0][user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return loop.replace(graph=graph)


def has_own_gradients(loop: Loop) -> bool:
    """Whether an operator of a Loop defines its own gradient."""
    return bool(_own_gradients(loop.graph))


def _own_gradients(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if isinstance(node.target, OwnGradient)]
