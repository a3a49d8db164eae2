"""`check_gradients`: a network's engine against the plain Python loop in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.call.arguments import Call, checked_call
from leporello.call.initial_state import reset_state
from leporello.call.inputs import is_floating, state_options
from leporello.call.values import passing_of
from leporello.errors import ArgumentError, GradientMismatch
from leporello.loop.context import context_of
from leporello.loop.state import Tree, leaf_names, leaves_of, map_leaves
from leporello.loop.tracing.cell_tensors import buffers_restored
from leporello.loop.tracing.found_tensors import ReadInstead, found_in
from leporello.nets.plain_loop import plain_loop
from leporello.nets.precision import TOLERANCE, narrowest_precision
from leporello.nets.recurrent import Recurrent
from leporello.text_table import html_table, html_text


@dataclass(frozen=True)
class GradientReport:
    """The largest errors, relative to the largest value of each tensor, or to a thousandth of the largest of all where
    that is more: a gradient that is zero but for rounding has no scale of its own.

    outputs, gradients   by name
    tolerance            what rounding explains in the narrowest precision that reaches what is compared
    precision            that precision; None in a report that was made by hand
    because              where it comes from, if it is narrower than that of the net's outputs
    against              what they were compared with: the gradients with those of the engine `reference`, where torch
                         cannot differentiate the loop, because the step writes over values that its gradient needs
    """

    engine: str
    tolerance: float
    outputs: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    against: str = "the plain loop"
    precision: torch.dtype | None = None
    because: str | None = None

    @property
    def worst(self) -> float:
        return max([0.0, *self.outputs.values(), *self.gradients.values()])

    @property
    def ok(self) -> bool:
        return self.worst <= self.tolerance

    def __str__(self) -> str:
        return "\n".join(
            [self._verdict(), *(f"  {title:<9} {name:<20} {error}" for title, name, error in self._rows())]
        )

    def _repr_html_(self) -> str:
        return html_text(self._verdict()) + html_table(("", "of", "relative error"), self._rows())

    def _verdict(self) -> str:
        verdict = "agrees with" if self.ok else "DIFFERS from"
        judged = f"tolerance {self.tolerance:g}"
        if self.precision is not None:
            judged += f", what rounding to {str(self.precision).removeprefix('torch.')} explains"
        because = f": {self.because}" if self.because else ""
        return f"{self.engine} {verdict} {self.against} in float64 ({judged}{because})"

    def _rows(self) -> list[tuple[str, str, str]]:
        """A row for each error, the largest of its kind first."""
        return [
            (title, name, f"{error:.1e}")
            for title, errors in (("outputs", self.outputs), ("gradients", self.gradients))
            for name, error in sorted(errors.items(), key=lambda item: -item[1])
        ]


def check_gradients(
    net: Recurrent, inputs: Tree = None, state: Tree = None, *, raises: bool = False, seed: int = 0, **arguments: Any
) -> GradientReport:
    """Compare outputs and all gradients of a net with the plain loop, on a random weighting of the outputs.

    Both follow the net's gradient method: under lp.Truncated the plain loop detaches the state at the same borders.

    inputs, state, arguments   those of a call
    raises                     raise `GradientMismatch` if an error is larger than rounding explains
    seed                       of the weighting, and of the coins of `forcing`

    >>> from leporello.cells import GRU
    >>> check_gradients(Recurrent(GRU(3, 4)), torch.randn(5, 2, 3)).ok
    True
    """
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to check.",
            came=type(net).__name__,
            expected="lp.Recurrent",
            tries="check its parts one by one, or lp.Recurrent(cell)",
        )
    if net.gradient.random:
        raise ArgumentError(
            f"the gradients of {net.gradient} are random: only their mean can be compared.",
            tries="net.gradient = lp.RTRL(), whose gradients are that mean",
        )
    draws = net.draw(inputs, state, **arguments)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        call = checked_call(net.cell, inputs, state, batch_first=net.batch_first, **arguments)
    of_inputs = net.gradient.backwards
    loop = net._plan_cache.loop(net.cell, call)
    found, written = {name: read() for name, read in loop.found.items()}, tuple(loop.written)
    as_it_is = torch.float64 in _own_dtypes(net.cell, call)
    read = {name: tensor.detach() if as_it_is else _wide(tensor.detach()) for name, tensor in found.items()}
    wide = {name: tensor.requires_grad_(found[name].requires_grad) for name, tensor in read.items()}
    fast = _Side.of(net, _on_new_leaves(net.cell, call, lambda leaf: leaf, of_inputs), draws, found, written)
    shared = {key: found.read() for key, found in found_in(net.cell).items()}  # a copy of the net has the same
    shared |= {id(buffer): buffer.detach() for buffer in net.cell.buffers() if not buffer.is_leaf}
    exact = copy.deepcopy(net, shared)
    exact.cell._apply(_wide)  # .to(float64) would make complex parameters real
    slow = _Side.of(
        exact, _on_new_leaves(exact.cell, call, _wide, of_inputs), [_wide(draw) for draw in draws], wide, written
    )
    instead = {id(tensor): wide[name] for name, tensor in found.items()}
    with torch.enable_grad():
        passing = passing_of(call, net.gradient)
        values, gradients = fast.run(lambda: net._run(fast.call, passing), seed)
        with ReadInstead(instead), _Widened(net.cell, fast.call):
            plain = partial(plain_loop, exact.cell, slow.call, slow.draws, passing)
            try:
                exact_values, exact_gradients = slow.run(plain, seed)
                against = "the plain loop"
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error) or instead:
                    raise
                with torch.no_grad():
                    exact_values, _ = slow.run(plain, seed)
                exact.engine = "reference"  # of the step's graph, in which nothing is written over
                _, exact_gradients = slow.run(lambda: exact._run(slow.call, passing), seed)
                against = "the plain loop, its gradients with those of the engine reference,"
    precision, because = narrowest_precision(loop, values, gradients)
    report = GradientReport(
        engine=net.engine,
        tolerance=TOLERANCE[precision],
        outputs=_errors(values, exact_values),
        gradients=_errors(gradients, exact_gradients),
        against=against,
        precision=precision,
        because=because,
    )
    if raises and not report.ok:
        raise GradientMismatch("the engine's gradients differ from the plain loop's.", report=report)
    return report


def _on_new_leaves(cell: nn.Module, call: Call, function: Callable[[Tensor], Tensor], of_inputs: bool) -> Call:
    """A copy of the call whose tensors are leaves that require gradients.

    Resets go back to the new state, or to one that the cell makes of its parameters: gradients reach either.

    function    applied to each tensor
    of_inputs   whether inputs require one too
    """

    def new(leaf: Any, requires: bool = True) -> Any:
        if not isinstance(leaf, Tensor) or not is_floating(leaf):
            return leaf
        return function(leaf.detach()).clone().requires_grad_(requires)

    inputs, state = map_leaves(lambda leaf: new(leaf, of_inputs), call.inputs), map_leaves(new, call.state)
    contexts = [replace(leaf, tensor=new(leaf.tensor, of_inputs)) for leaf in call.contexts]
    names = [name for name, _ in call.states]
    sequences = [pair for pair in zip(leaf_names(inputs, "x"), leaves_of(inputs), strict=True) if pair[1] is not None]
    initial = call.initial
    if initial is not None:
        initial = reset_state(cell, state, call.batch, state_options(cell, sequences, state))
    return replace(
        call,
        inputs=inputs,
        state=state,
        targets=None if call.targets is None else function(call.targets.detach()),
        initial=initial,
        context=context_of(contexts, call.context),
        contexts=contexts,
        sequences=sequences,
        states=list(zip(names, leaves_of(state), strict=True)) if names else [],
    )


def _wide(leaf: Tensor) -> Tensor:
    if leaf.is_complex():
        return leaf.to(torch.complex128)
    return leaf.double() if leaf.is_floating_point() else leaf


def _own_dtypes(cell: nn.Module, call: Call) -> set[torch.dtype]:
    """The real dtypes of parameters, inputs and states. What else a net in float64 reads, it reads as it is."""
    leaves = [*cell.parameters(), *(leaf for _, leaf in (*call.sequences, *call.states))]
    return {leaf.dtype.to_real() for leaf in leaves if is_floating(leaf)}


class _Widened(TorchDispatchMode):
    """What a step casts or makes in the dtype of its net, as in `(u > 0).float()`, becomes float64 or complex128.

    So does float32 where the net's own dtype is smaller. Of a net in float64 nothing changes.
    """

    def __init__(self, cell: torch.nn.Module, call: Call) -> None:
        super().__init__()
        own = _own_dtypes(cell, call)
        narrow = {torch.float16, torch.bfloat16, torch.float32} if own & {torch.float16, torch.bfloat16} else own
        narrow = narrow if torch.float64 not in own else set()
        self.wide = dict.fromkeys(narrow, torch.float64)
        self.wide |= {dtype.to_complex(): torch.complex128 for dtype in narrow if dtype != torch.bfloat16}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in self.wide:
            kwargs["dtype"] = self.wide[kwargs["dtype"]]
        return torch.utils._pytree.tree_map_only(Tensor, self._widened, func(*args, **kwargs))

    def _widened(self, value: Tensor) -> Tensor:
        return value.to(self.wide.get(value.dtype, value.dtype))


@dataclass
class _Side:
    """One of the two runs that are compared: the net's own, or the plain loop's in float64."""

    net: Recurrent
    call: Call
    draws: Sequence[Tensor]
    found: Mapping[str, Tensor]  # tensors that the step reads and the cell does not register
    written: Sequence[str]  # buffers that the step writes to

    @staticmethod
    def of(
        net: Recurrent, call: Call, draws: Sequence[Tensor], found: Mapping[str, Tensor], written: Sequence[str]
    ) -> _Side:
        return _Side(net, replace(call, draws=list(draws)), list(draws), found, written)

    def run(self, compute: Any, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
        """Outputs, final states and written buffers by name, and the gradients; buffers are restored."""
        with buffers_restored(self.net.cell):
            values, gradients = self._run(compute, seed)
            buffers = {name: self.net.cell.get_buffer(name) for name in self.written}
            values |= {f"buffer {name}": buffer.detach().clone() for name, buffer in buffers.items()}
        return values, gradients

    def _run(self, compute: Any, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
        """Outputs and final states by name, and by name the gradients of inputs, states and parameters (or None).

        They are the gradients of a random weighting of those outputs and states.

        compute   runs the call: () -> outputs, final state
        """
        outputs, final = compute()
        values = dict(zip(leaf_names(outputs, "o"), leaves_of(outputs), strict=True))
        values |= {f"final {name}": leaf for (name, _), leaf in zip(self.call.states, leaves_of(final), strict=False)}
        values = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        sources = {name: leaf for name, leaf in (*self.call.sequences, *self.call.states) if leaf.requires_grad}
        sources |= {leaf.name: leaf.tensor for leaf in self.call.contexts if leaf.tensor.requires_grad}
        sources |= {name: p for name, p in self.net.cell.named_parameters() if p.requires_grad}
        sources |= {name: tensor for name, tensor in self.found.items() if tensor.requires_grad}
        weights = [_weights(value, seed + index) for index, value in enumerate(values.values()) if value.requires_grad]
        differentiable = [value for value in values.values() if value.requires_grad]
        if not differentiable or not sources:
            return values, dict.fromkeys(sources)
        gradients = torch.autograd.grad(differentiable, list(sources.values()), weights, allow_unused=True)
        return {name: value.detach() for name, value in values.items()}, dict(zip(sources, gradients, strict=True))


def _weights(value: Tensor, seed: int) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if value.is_complex() else torch.float64
    return torch.randn(value.shape, generator=numbers, dtype=dtype).to(value.device, value.dtype)


SMALLEST_SCALE = 1e-3  # of an error, as a share of the largest value of all: below it, sums of rounded terms cancel


def _errors(values: Mapping[str, Tensor | None], exact: Mapping[str, Tensor | None]) -> dict[str, float]:
    """The error of each tensor, by name."""
    largest = max((_largest(value) for value in exact.values() if value is not None), default=0.0)
    return {name: _error(values[name], exact[name], SMALLEST_SCALE * largest) for name in exact}


def _error(value: Tensor | None, exact: Tensor | None, smallest_scale: float) -> float:
    """The largest difference, relative to the largest value, or to the smallest scale where that is larger.

    Infinite where one is missing or alone is NaN.
    """
    if value is None or exact is None:
        missing = exact if value is None else value
        return 0.0 if missing is None or not missing.abs().max() > 0 else float("inf")
    if not exact.numel():
        return 0.0
    if not torch.equal(value.isnan(), exact.isnan()):
        return float("inf")
    difference = _largest(_number(value) - _number(exact))
    scale = max(_largest(exact), smallest_scale)
    return difference / scale if scale > 0 else difference


def _largest(value: Tensor) -> float:
    return _number(value).abs().nan_to_num(0.0).max().item() if value.numel() else 0.0


def _number(value: Tensor) -> Tensor:
    """In the widest type of its kind; numbers for true and false."""
    return _wide(value) if is_floating(value) else value.double()
