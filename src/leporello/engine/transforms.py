"""A plan under the transforms of torch.func: one function of tensors, with a rule for vmap, backward and jvp.

`run` is that function. Below all transforms it runs a plan's sweeps. Each rule says what a transform makes of it, as a
plan of another Loop, which is run in turn: so transforms nest in any order.

    vmap       rows of another axis are more rows of the batch. Where each element has parameters of its own, the Loop
               of all of them (`rewrite/members.py`); where each has a sum over its rows, as a gradient of shared
               parameters has, the sums are taken apart (`rewrite/sums_apart.py`)
    backward   the backward sweep, which reads what the forward sweep has saved
    jvp        the Loop that carries tangents (`rewrite/tangent.py`)

The derivatives of what a rule computes fast are those of the same function in an exact and slower form (`_TwoForms`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leporello.engine.autograd import differentiable_backward, incoming_gradients
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.functorch_levels import is_transforming, tracked
from leporello.engine.operator_plan import OperatorPlan, own_memory
from leporello.engine.plan import Plan
from leporello.engine.state_gradient import ALL, Passing
from leporello.engine.wiring import gradient_key, places_of
from leporello.errors import EngineRefusal
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import has_own_gradients
from leporello.loop.port import Port
from leporello.rewrite.members import members
from leporello.rewrite.sums_apart import SumsApart, is_sum_over_rows, sums_apart
from leporello.rewrite.tangent import tangent

Dims = Sequence[int | None]


@dataclass(frozen=True)
class Sizes:
    """Length and batch of a call."""

    length: int
    batch: int


def run(plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing = ALL) -> list[Tensor]:
    """Outputs in the order of the Loop's, under any transforms; the plan has a target.

    values   in the order of the Loop's inputs
    """
    plan = _wanting(plan, [can and wanted for can, wanted in zip(_can(plan), tracked(values), strict=True)])
    outputs = _Run.apply(plan, Sizes(length, batch), passing.weights, *values)
    return list(outputs[: len(plan.loop.outputs)])


def _can(plan: Plan) -> list[bool]:
    """For each input whether it can have a gradient."""
    constants = plan.loop.constants
    return [port.is_floating and not port.is_drawn and port.name not in constants for port in plan.loop.inputs]


# ---- plans of other Loops, each made once


def _derived(plan: Plan, key: Any, make: Callable[[], Any]) -> Any:
    """What is made of a plan, kept with it. It is made in a fresh thread, outside of the transforms of this one."""
    if key not in plan.derived:
        plan.derived[key] = in_fresh_thread(make)
    return plan.derived[key]


def _wanting(plan: Plan, wanted: Sequence[bool]) -> Plan:
    """The plan of the same Loop with other gradients; all of them share one table."""
    table = plan.derived.setdefault("wanting", {plan.wanted: plan})
    if tuple(wanted) not in table:
        table[tuple(wanted)] = replace(plan, wanted=tuple(wanted), derived={"wanting": table}, method_cache={})
    found: Plan = table[tuple(wanted)]
    return found


def _of_loop(plan: Plan, loop: Loop, *, method: bool = False) -> Plan:
    """A plan of another Loop, of which no gradient is wanted, by the target of a plan.

    method   whether the gradient method is the same
    """
    made = Plan(loop, (False,) * len(loop.inputs), plan.method if method else (), plan.target, instead=plan.instead)
    try:
        made.prepare()
    except EngineRefusal as refusal:
        if plan.instead is None:
            raise
        warnings.warn(
            f"{loop.name} runs on the engine '{plan.instead.name}', which is slower: {refusal.what}", stacklevel=2
        )
        made = replace(made, target=plan.instead, instead=None)
        made.prepare()
    return made


def _operators(plan: Plan) -> OperatorPlan:
    def make() -> OperatorPlan:
        plan.prepare()
        return OperatorPlan(plan)

    made: OperatorPlan = _derived(plan, "operators", make)
    return made


# ---- the function


class _Run(torch.autograd.Function):
    """From values to a Loop's outputs, and what the backward sweep reads of the forward sweep."""

    @staticmethod
    def forward(plan: Plan, sizes: Sizes, weight: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
        operators, contiguous = _operators(plan), [value.detach().contiguous() for value in values]
        sweep = operators.run_forward if operators.trains else operators.run_plain
        return tuple(sweep(sizes.length, sizes.batch, contiguous))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        plan, sizes, weight, *values = inputs
        ctx.call = plan, sizes
        ports = plan.loop.outputs
        ctx.set_materialize_grads(False)
        fixed = [value for value, port in zip(output, ports, strict=False) if not port.is_floating]
        ctx.mark_non_differentiable(*fixed, *output[len(ports) :])
        ctx.save_for_forward(*values)
        if any(plan.wanted):
            ctx.save_for_backward(weight, *values, *(output[place] for place in _operators(plan).reads[1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        plan, sizes = ctx.call
        none: list[Any] = [None] * (3 + len(plan.loop.inputs))
        if all(gradient is None for gradient in gradients):
            return tuple(none)
        weight, *saved = ctx.saved_tensors
        count, ports = len(plan.loop.inputs), list(enumerate(plan.loop.outputs))
        incoming = incoming_gradients(ports, gradients[: len(ports)], sizes.length, sizes.batch)
        forms = _Forms(plan, partial(_backward, plan, sizes), partial(_differentiable, plan, sizes))
        results = _TwoForms.apply(forms, weight, *saved[:count], *incoming, *saved[count:])
        for place, result in zip(_with_gradient(plan), results, strict=True):
            none[3 + place] = result
        return tuple(none)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Any, ...]:
        plan, sizes = ctx.call
        if plan.method:
            raise EngineRefusal(
                "a derivative forward in time is exact, and its gradient method is not.",
                tries="lp.Full(); or a transform that goes back in time, such as torch.func.vjp",
            )
        values, moving = ctx.saved_tensors, tangents[3:]
        moves = tuple(can and change is not None for can, change in zip(_can(plan), moving, strict=True))
        moved_plan: Plan = _derived(plan, ("tangent", *moves), lambda: _of_loop(plan, tangent(plan.loop, moves)))
        added = [
            torch.zeros_like(value) if change is None else change
            for port, value, change, moved in zip(plan.loop.inputs, values, moving, moves, strict=True)
            if moved or (port.kind == "state" and port.is_floating)
        ]
        outputs = run(moved_plan, _with_constants(moved_plan, [*values, *added]), sizes.length, sizes.batch)
        remaining = iter(outputs[len(plan.loop.outputs) :])
        changes = [next(remaining) if port.is_floating else None for port in plan.loop.outputs]
        return (*changes, *[None] * (len(_operators(plan).results) - len(changes)))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, plan: Plan, sizes: Sizes, weight: Tensor | None, *values: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count, dims = info.batch_size, tuple(in_dims[2:])
        if not any(plan.wanted):
            return _mapped(plan, sizes, count, dims, weight, values)
        forward: Plan = _derived(plan, "forward", lambda: _of_loop(plan, plan.forward.loop))
        places = places_of(forward.loop.inputs, plan.loop.inputs)
        plain = _wanting(plan, (False,) * len(values))

        def fast(weight: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
            if not is_transforming():
                contiguous = [value.contiguous() for value in values]
                return tuple(_operators(plan).run_forward(sizes.length, sizes.batch, contiguous))
            return _plain(forward, sizes, None, *[values[place] for place in places])

        forms = _Forms(plan, fast, partial(_plain, plain, sizes), len(plan.loop.outputs)).mapped(dims, count)
        outputs = _TwoForms.apply(forms, weight, *values)
        return outputs, (0,) * len(outputs)


def _plain(plan: Plan, sizes: Sizes, weight: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
    outputs: tuple[Tensor, ...] = _Run.apply(plan, sizes, weight, *values)
    return outputs


def _with_constants(plan: Plan, values: Sequence[Tensor]) -> list[Tensor]:
    """The values of a derived plan's inputs, whose last ones may be constants that its trace has added."""
    added = plan.loop.inputs[len(values) :]
    return [*values, *(plan.loop.constants[port.name] for port in added)]


# ---- backward


def _with_gradient(plan: Plan) -> list[int]:
    """Indices of the inputs that have a gradient."""
    return [place for place, result in enumerate(plan.wiring.results) if result is not None]


def _backward(plan: Plan, sizes: Sizes, weight: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the inputs that have one, by the backward sweep.

    tensors   values of the inputs, gradients of the outputs, what the forward sweep has saved
    """
    operators, length, batch = _operators(plan), sizes.length, sizes.batch
    values, gradients, saved = _parts(plan, tensors)
    outputs = dict(zip(operators.reads[1], saved, strict=True))
    if not is_transforming():
        values = [value.contiguous() for value in values]
        results = operators.run_backward(length, batch, values, outputs, gradients, weight)
        return tuple(own_memory(results, [*values, *(gradient for gradient in gradients if gradient is not None)]))
    wired, sweep = plan.wiring, plan.backward
    reads = wired.backward_inputs(values, operators.kept_of(values, outputs), gradients, weight)
    by_key = {port.key: value for port, value in zip(sweep.inputs, reads, strict=True)}
    alone: Plan = _derived(plan, "backward", lambda: _of_loop(plan, sweep.loop))
    results = _Run.apply(alone, sizes, None, *[by_key[port.key] for port in alone.loop.inputs])
    return tuple(results[place] for place in wired.results if place is not None)


def _differentiable(plan: Plan, sizes: Sizes, weight: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The same by Loops that can be differentiated again."""

    def make() -> None:
        _ = plan.with_states_before
        plan.backward_plan(lambda port: False)

    _derived(plan, "differentiable", make)
    values, gradients, _ = _parts(plan, tensors)
    by_key = differentiable_backward(
        plan, values, gradients, sizes.length, sizes.batch, weight, run=run, is_wanted=lambda value: False
    )
    ports = [plan.loop.inputs[place] for place in _with_gradient(plan)]
    return tuple(by_key[gradient_key(port)] for port in ports)


def _parts(plan: Plan, tensors: Sequence[Any]) -> tuple[list[Tensor], list[Any], list[Tensor]]:
    """Values of a Loop's inputs, gradients of its outputs, and the rest."""
    first, second = len(plan.loop.inputs), len(plan.loop.inputs) + len(plan.loop.outputs)
    return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])


# ---- vmap


def _mapped(
    plan: Plan, sizes: Sizes, count: int, dims: Dims, weight: Tensor | None, values: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The outputs of a plan for each element of an axis, and where that axis is in them.

    count          of the elements
    dims           where the axis is in the weight and in each value; None where there is none
    """
    if _each_by_itself(plan, dims):
        return _one_after_another(plan, sizes, count, dims, weight, values)
    ports, weight_dim, dims = plan.loop.inputs, dims[0], dims[1:]
    if any(dim is not None and not port.rows for port, dim in zip(ports, dims, strict=True)):
        return _by_members(plan, sizes, count, dims, weight if weight_dim is None else None, values, weight_dim is None)
    if weight is not None:
        weight = _as_rows(weight, weight_dim, 1, count)
    rows = [_as_rows(value, d, _rows_axis(port), count) for port, value, d in zip(ports, values, dims, strict=True)]
    if any(map(is_sum_over_rows, plan.loop.outputs)):
        return _with_sums(plan, sizes, count, rows, weight)
    outputs = run(plan, rows, sizes.length, sizes.batch * count, Passing(weight))
    axes = [_rows_axis(port) or 0 for port in plan.loop.outputs]
    pairs = zip(outputs, axes, strict=True)
    return tuple(value.unflatten(axis, (count, sizes.batch)) for value, axis in pairs), tuple(axes)


def _rows_axis(port: Port) -> int | None:
    """The axis of the rows in a port's value; None where it has none."""
    return int(port.kind in ("sequence", "draw")) if port.rows else None


def _as_rows(value: Tensor, dim: int | None, axis: int | None, count: int) -> Tensor:
    """A value whose rows are those of all elements: [..., rows, ...] for each -> [..., elements * rows, ...].

    A value without rows is the same for all elements, and stays as it is.
    """
    if axis is None:
        return value
    if dim is None:
        value = value.unsqueeze(axis)
        return value.expand(*value.shape[:axis], count, *value.shape[axis + 1 :]).flatten(axis, axis + 1)
    return value.movedim(dim, axis).flatten(axis, axis + 1)


def _with_sums(
    plan: Plan, sizes: Sizes, count: int, values: Sequence[Tensor], weight: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`_mapped` for a Loop with sums over rows: those of each element's rows, from the summed values.

    values   with the rows of all elements
    """

    def make() -> tuple[SumsApart, Plan]:
        apart = sums_apart(plan.loop)
        return apart, _of_loop(plan, apart.loop)

    _refuse_lost_gradients(plan, values)
    apart, without = _derived(plan, "sums apart", make)
    length, batch = sizes.length, sizes.batch
    outputs = run(without, values, length, batch * count, Passing(weight))
    others, summed = outputs[: len(apart.others)], outputs[len(apart.others) :]
    reads = [(plan.loop.inputs[place], values[place]) for place in apart.reads]
    own = [_of_elements(port, value, length, count) for port, value in reads]
    own += [
        _of_elements(port, value, length, count)
        for port, value in zip(apart.loop.outputs[len(others) :], summed, strict=True)
    ]
    in_dims = tuple(None if port.kind == "invariant" and not port.rows else 0 for port, _ in reads) + (0,) * len(summed)
    sums = torch.func.vmap(partial(apart.function, length * batch), in_dims=in_dims)(*own)
    results: dict[int, tuple[Tensor, int]] = {place: (value, 0) for place, value in zip(apart.sums, sums, strict=True)}
    for place, value in zip(apart.others, others, strict=True):
        axis = _rows_axis(plan.loop.outputs[place])
        assert axis is not None
        results[place] = (value.unflatten(axis, (count, batch)), axis)
    ordered = [results[place] for place in range(len(results))]
    return tuple(value for value, _ in ordered), tuple(axis for _, axis in ordered)


def _of_elements(port: Port, value: Tensor, length: int, count: int) -> Tensor:
    """All rows of all steps for each element: [length, elements * rows, ...] -> [elements, length * rows, ...]."""
    if not port.rows:
        return value
    if _rows_axis(port) == 0:
        value = value.expand(length, *value.shape)
    return value.unflatten(1, (count, -1)).movedim(1, 0).flatten(1, 2)


def _each_by_itself(plan: Plan, dims: Dims) -> bool:
    """Whether the elements of an axis are run one after another: where an invariant has it, by a target with kernels.

    dims   of the weight, of the values, and of any more tensors
    """
    assert plan.target is not None
    ports = zip(plan.loop.inputs, dims[1:], strict=False)
    return plan.target.kernels and any(dim is not None and not port.rows for port, dim in ports)


def _one_after_another(
    plan: Plan, sizes: Sizes, count: int, dims: Dims, weight: Tensor | None, values: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`_mapped` where an invariant has the axis, for a target with kernels: these compute one network at a time.

    A kernel that held the matrices of all networks would be slower than to call it once for each.
    """
    plain = not is_transforming() and not any(tracked(values))
    results = []
    for own in _elements((weight, *values), dims, count):
        if plain:
            contiguous = [value.detach().contiguous() for value in own[1:] if value is not None]
            results.append(_operators(plan).run_plain(sizes.length, sizes.batch, contiguous))
        else:
            results.append(run(plan, own[1:], sizes.length, sizes.batch, Passing(own[0])))
    outputs = tuple(torch.stack(column) for column in zip(*results, strict=True))
    return outputs, (0,) * len(outputs)


def _elements(tensors: Sequence[Any], dims: Dims, count: int) -> Iterator[list[Any]]:
    """The tensors of each element of an axis."""
    for index in range(count):
        pairs = zip(tensors, dims, strict=True)
        yield [tensor if dim is None else tensor.select(dim, index) for tensor, dim in pairs]


def _by_members(
    plan: Plan,
    sizes: Sizes,
    count: int,
    dims: Dims,
    weight: Tensor | None,
    values: Sequence[Tensor],
    one_weight: bool,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`_mapped` where an invariant, such as a parameter, has the axis, for a target without kernels: the Loop of all.

    Every operator of a step is then called once for all networks.

    one_weight   whether all elements have the same weight
    """
    ports = plan.loop.inputs
    differs = tuple(dim is not None or port.kind == "state" for port, dim in zip(ports, dims, strict=True))
    _refuse_lost_gradients(plan, values)
    if any(tracked(values)) and (not one_weight or any(each.name != "weigh" for each in plan.method)):
        raise EngineRefusal(
            "the gradient method acts on each network by itself, and this vmap joins them before the gradient.",
            tries="the gradient inside of the vmap: torch.func.vmap(torch.func.grad(f)); or lp.Full()",
        )

    def make() -> Plan:
        return _of_loop(plan, members(plan.loop, differs, count), method=True)

    all_members: Plan = _derived(plan, ("members", count, *differs), make)
    own = [_of_members(*each, count) for each in zip(ports, values, dims, strict=True)]
    outputs = run(all_members, _with_constants(all_members, own), sizes.length, sizes.batch, Passing(weight))
    return tuple(outputs), tuple(0 if axis is None else axis + 1 for axis in map(_rows_axis, plan.loop.outputs))


def _of_members(port: Port, value: Tensor, dim: int | None, count: int) -> Tensor:
    """A value with the axis of the members in its place; a state always has one."""
    rows = _rows_axis(port)
    if dim is not None:
        return value.movedim(dim, 0 if rows is None else rows + 1)
    return value.unsqueeze(1).expand(-1, count, *value.shape[1:]) if port.kind == "state" else value


def _refuse_lost_gradients(plan: Plan, values: Sequence[Tensor]) -> None:
    """Refuse a gradient through a Loop whose own gradients a rewrite would lose."""
    if has_own_gradients(plan.loop) and any(tracked(values)):
        raise EngineRefusal(
            "the gradient of an autograd.Function in the step is lost where a vmap is inside of the gradient.",
            loop=plan.loop.name,
            tries='the gradient inside of the vmap: torch.func.vmap(torch.func.grad(f)); or engine="reference"',
        )


# ---- one function in two forms


@dataclass(frozen=True, eq=False)
class _Forms:
    """One function of tensors in two forms, each (*tensors) -> a tuple of tensors.

    plan    what is run; the first tensors are the weight and the values of its inputs
    fast    is run
    exact   is differentiated, instead of the other
    count   of the results that have derivatives, the first ones; None for all. `exact` has no others
    """

    plan: Plan
    fast: Callable[..., Any]
    exact: Callable[..., Any]
    count: int | None = None

    def mapped(self, dims: Dims, count: int) -> _Forms:
        """Both forms for each of `count` elements of an axis; the axis comes first in the results."""

        def one_after_another(*tensors: Tensor | None) -> tuple[Tensor, ...]:
            results = [self.fast(*own) for own in _elements(tensors, dims, count)]
            return tuple(torch.stack(column) for column in zip(*results, strict=True))

        exact = torch.func.vmap(self.exact, in_dims=tuple(dims))
        fast = torch.func.vmap(self.fast, in_dims=tuple(dims))
        return _Forms(self.plan, one_after_another if _each_by_itself(self.plan, dims) else fast, exact, self.count)


class _TwoForms(torch.autograd.Function):
    """Runs the fast form; a derivative, where one is taken, is that of the exact form."""

    @staticmethod
    def forward(forms: _Forms, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(forms.fast(*[None if tensor is None else tensor.detach() for tensor in tensors]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.forms = inputs[0]
        ctx.set_materialize_grads(False)
        if ctx.forms.count is not None:
            ctx.mark_non_differentiable(*output[ctx.forms.count :])
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        places = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        wanted = [place for place, gradient in enumerate(gradients) if gradient is not None]
        results: list[Any] = [None] * (1 + len(tensors))
        if not wanted or not places:
            return tuple(results)
        function = _of_some(ctx.forms.exact, tensors, places, wanted)
        product: Any = torch.func.vjp(function, *[tensors[place] for place in places])[1]
        for place, result in zip(places, product(tuple(gradients[place] for place in wanted)), strict=True):
            results[1 + place] = result
        return tuple(results)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Any, ...]:
        tensors, moving = ctx.saved_tensors, tangents[1:]
        places = [place for place, change in enumerate(moving) if change is not None]
        function = _of_some(ctx.forms.exact, tensors, places, None)
        primals, changes = tuple(tensors[place] for place in places), tuple(moving[place] for place in places)
        return torch.func.jvp(function, primals, changes)[1]

    @staticmethod
    def vmap(info: Any, in_dims: Any, forms: _Forms, *tensors: Tensor | None) -> tuple[tuple[Tensor, ...], Any]:
        outputs = _TwoForms.apply(forms.mapped(in_dims[1:], info.batch_size), *tensors)
        return outputs, (0,) * len(outputs)


def _of_some(
    form: Callable[..., Any], tensors: Sequence[Any], places: Sequence[int], wanted: Sequence[int] | None
) -> Callable[..., tuple[Tensor, ...]]:
    """A form as a function of the tensors in some places, which returns some of its results; None for all."""

    def function(*own: Tensor) -> tuple[Tensor, ...]:
        everything = list(tensors)
        for place, value in zip(places, own, strict=True):
            everything[place] = value
        results = form(*everything)
        return tuple(results) if wanted is None else tuple(results[place] for place in wanted)

    return function
