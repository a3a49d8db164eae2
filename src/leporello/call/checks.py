"""Checks of the arguments that go along with a sequence: lengths, resets, targets, forcing and draws.

An eager call checks their numbers at once. In a graph of torch.compile there are no numbers yet: `graph_arguments.py`
puts the same range checks into the graph as operators.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.inputs import ArgumentAxes
from leporello.errors import ArgumentError, DeviceMismatch
from leporello.loop.context import ContextLeaf, context_leaves
from leporello.loop.port import Port
from leporello.loop.state import described, dtype_name
from leporello.loop.step import context_name


def lengths_in_range(lengths: Tensor, length: int) -> Tensor:
    """The lengths; raises if one is out of range. On a GPU they are not read, which would wait for it."""
    if lengths.is_cpu:
        numbers = lengths.tolist()
        if min(numbers) < 1 or max(numbers) > length:
            row = int(((lengths < 1) | (lengths > length)).nonzero()[0])
            raise ArgumentError(
                "the argument 'lengths' is out of range.",
                came=f"{int(lengths[row])} in row {row}",
                expected=f"from 1 to {length}, the length of the inputs",
                tries="take rows without a step out of the batch" if int(lengths[row]) < 1 else None,
            )
    return lengths


def classes_in_range(targets: Tensor, classes: int, name: str, one_step: bool) -> Tensor:
    """Targets as class indices; raises if one does not exist. On a GPU they are not read, which would wait for it.

    classes          their number
    name, one_step   how the caller writes the argument
    """
    if targets.is_cpu:
        wrong = (targets < 0) | (targets >= classes)
        if wrong.any():
            time, row = wrong.nonzero()[0].tolist()
            raise ArgumentError(
                f"the argument '{name}' holds a class that does not exist.",
                came=f"{int(targets[time, row])} in row {row}" + ("" if one_step else f" at step {time}"),
                expected=f"from 0 to {classes - 1}: {classes} values are fed back",
                tries="put any class where nothing is forced, and say where with forcing=mask"
                if targets[time, row] < 0
                else None,
            )
    return targets


def probability_in_range(forcing: Any, shape: str) -> Any:
    """A probability as a float; raises if it is not between 0 and 1.

    shape   of a mask, as the caller writes it
    """
    if not 0 <= float(forcing) <= 1:
        raise ArgumentError(
            "the argument 'forcing' is no probability.",
            came=repr(forcing),
            expected=f"a number from 0 to 1, or bool {shape}",
        )
    return float(forcing)


@dataclass(frozen=True)
class RangeChecks:
    """How the values of arguments are checked: each function returns its first argument, or raises.

    In a compiled graph they are operators: the returned tensor must be used, or the check drops out of the graph.
    """

    lengths: Callable[[Tensor, Any], Tensor] = lengths_in_range
    classes: Callable[[Tensor, int, str, bool], Tensor] = classes_in_range
    probability: Callable[[Any, str], Any] = probability_in_range


EAGER = RangeChecks()


def checked_lengths(
    lengths: Any, length: int, batch: int, device: torch.device, range_checks: RangeChecks = EAGER
) -> Tensor | None:
    """The argument `lengths` as an integer tensor (batch,) on the call's device; an ArgumentError if it is none.

    Lengths in the memory of the CPU must lie between 1 and `length`. Those on a GPU are not read, which would wait for
    it, but clamped to that range.

    None stays None.

    range_checks   how the range is checked: by reading the values, or by an operator of a compiled graph
    """
    if lengths is None:
        return None
    expected = f"integers ({batch},): one length per row"
    lengths = _as_integers(lengths, expected)
    if tuple(lengths.shape) != (batch,):
        raise ArgumentError("the argument 'lengths' has the wrong shape.", came=described(lengths), expected=expected)
    _refuse_meta("lengths", lengths, device)
    lengths = range_checks.lengths(lengths, length)
    return lengths.to(device) if lengths.is_cpu else lengths.to(device).clamp(1, length)


def _as_integers(lengths: Any, expected: str) -> Tensor:
    try:
        integers = lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            "the argument 'lengths' holds no integers.", came=repr(lengths), expected=expected
        ) from None
    if integers.dtype.is_floating_point or integers.dtype.is_complex or integers.dtype == torch.bool:
        raise ArgumentError(
            "the argument 'lengths' holds no integers.",
            came=described(integers),
            expected=expected,
            tries="mask.sum(0) counts the steps of a mask" if integers.dtype == torch.bool else "lengths.long()",
        )
    return integers


def _refuse_meta(name: str, value: Tensor, device: torch.device) -> None:
    """Raise if a tensor is on the device `meta` and the call is not: it has no values to copy."""
    if value.device.type == "meta" != device.type:
        raise DeviceMismatch(
            f"the argument '{name}' lies on the device 'meta', which holds no numbers.", inputs=str(device)
        )


def checked_context(cell: nn.Module, context: Any, batch: int, device: torch.device) -> list[ContextLeaf]:
    """The tensors of the argument `context`; raises for one that is none, or has another batch or device."""
    leaves = context_leaves(cell, context, context_name(cell))
    for leaf in leaves:
        at = "" if leaf.tensor is context else f", at '{leaf.name}'"
        if not isinstance(leaf.tensor, Tensor):
            raise ArgumentError(
                "the argument 'context' holds what is no tensor.",
                came=type(leaf.tensor).__name__ + at,
                expected="a tensor (batch, ...), or tuples and dicts of them",
                tries="torch.as_tensor(values); a number that steps read can be an attribute of the cell",
            )
        if leaf.tensor.device != device:
            raise DeviceMismatch(
                "the argument 'context' lies on another device than the inputs.",
                context=f"{leaf.tensor.device}{at}",
                inputs=str(device),
                tries=f'context.to("{device}")',
            )
        if not leaf.shared and (not leaf.tensor.dim() or leaf.tensor.shape[0] != batch):
            raise ArgumentError(
                "the argument 'context' has another batch than the inputs.",
                came=described(leaf.tensor) + at,
                expected=f"the batch in front, ({batch}, ...)",
                tries="lp.shared(tensor), if it has no batch axis and every row reads all of it; "
                "tensor.transpose(0, 1), if the batch is its second axis",
            )
    return leaves


def checked_time(time: Any, batch: int, device: torch.device) -> int | Tensor:
    """The number of the first step: an integer, or (batch,) integers."""
    if time is None:
        return 0
    if isinstance(time, numbers.Integral) and not isinstance(time, bool):
        return int(time)
    fits = isinstance(time, Tensor) and not time.is_floating_point() and time.dtype != torch.bool
    if not fits or time.shape not in ((), (batch,)):
        raise ArgumentError(
            "the argument 'time' is no number of a step.",
            came=described(time) if isinstance(time, Tensor) else repr(time),
            expected=f"an integer, or a tensor of {batch} integers, one per row",
            tries="time=0 for a sequence that begins; the steps before it for one that goes on",
        )
    return time.to(device)


def checked_mask(
    argument: str, value: Any, length: int, batch: int, device: torch.device, axes: ArgumentAxes
) -> Tensor | None:
    """A mask argument, `resets` or `forcing`, on the device; None stays None, and an ArgumentError if it is no mask.

    value   boolean (length, batch), time first already
    axes    how the caller writes it, for the error
    """
    if value is None:
        return None
    name = axes.name(argument)
    expected = f"bool {axes.shape(length, batch)}: {axes.shape('length', 'batch')}"
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        raise ArgumentError(
            f"the argument '{name}' is not boolean.",
            came=axes.described(value),
            expected=expected,
            tries=f"{name}.bool()" if isinstance(value, Tensor) else f"torch.as_tensor({name}, dtype=torch.bool)",
        )
    if tuple(value.shape) != (length, batch):
        raise ArgumentError(
            f"the argument '{name}' has the wrong shape.", came=axes.described(value), expected=expected
        )
    _refuse_meta(name, value, device)
    return value.to(device)


def checked_coin(
    forcing: Any, length: int, batch: int, device: torch.device, axes: ArgumentAxes, range_checks: RangeChecks = EAGER
) -> Tensor | bool:
    """Where targets are fed back: a boolean per step and row, or True for everywhere and False for nowhere.

    forcing   such a mask, or the probability with which it is drawn here
    """
    if isinstance(forcing, Tensor) and forcing.dim():
        coin = checked_mask("forcing", forcing, length, batch, device, axes)
        assert coin is not None
        return coin
    if isinstance(forcing, Tensor):
        _refuse_meta("forcing", forcing, device)
    real = isinstance(forcing, numbers.Real) or (isinstance(forcing, Tensor) and not forcing.is_complex())
    if not real:
        raise ArgumentError(
            "the argument 'forcing' is no probability.",
            came=repr(forcing),
            expected=f"a number from 0 to 1, or bool {axes.shape(length, batch)}",
        )
    probability = range_checks.probability(forcing, axes.shape(length, batch))
    if not isinstance(probability, Tensor) and probability in (0, 1):
        return bool(probability)
    return torch.rand(length, batch, device=device) < probability


def checked_targets(
    targets: Any, fed: Tensor, length: int, batch: int, axes: ArgumentAxes, range_checks: RangeChecks = EAGER
) -> Tensor:
    """Targets in the form of the value that is fed back, (length, batch, ...); class indices become one-hot vectors.

    fed   the leaf of the state that is fed back, (batch, ...)
    """
    wanted = (length, batch, *fed.shape[1:])
    fits = isinstance(targets, Tensor) and targets.device == fed.device and tuple(targets.shape) == wanted
    if fits and (fed.is_complex() or not targets.is_complex()):
        return targets.to(fed.dtype)
    name = axes.name("targets")
    expected = f"{dtype_name(fed.dtype)} {axes.shape(*wanted)}, like what is fed back"
    if fed.dim() == 2:
        expected += f"; or classes 0 to {fed.shape[1] - 1} as integers {axes.shape(length, batch)}"
    if not isinstance(targets, Tensor):
        raise ArgumentError(
            f"the argument '{name}' is no tensor.",
            came=axes.described(targets),
            expected=expected,
            tries="torch.as_tensor(values)",
        )
    if targets.device != fed.device:
        raise DeviceMismatch(
            f"the argument '{name}' lies on another device than the inputs.",
            **{name: str(targets.device)},
            inputs=str(fed.device),
            tries=f'{name}.to("{fed.device}")',
        )
    indices = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if indices and tuple(targets.shape) == wanted[:2] and fed.dim() == 2:
        targets = range_checks.classes(targets, fed.shape[1], name, axes.one_step)
        return nn.functional.one_hot(targets.long(), fed.shape[1]).to(fed.dtype)
    raise ArgumentError(
        f"the argument '{name}' has the wrong form.",
        came=axes.described(targets),
        expected=expected,
        tries=f"{name}.long(), if it holds classes" if tuple(targets.shape) == wanted[:2] and fed.dim() == 2 else None,
    )


def checked_draws(
    draws: Any, ports: Sequence[Port], length: int, batch: int, *, one_step: bool = False
) -> list[Tensor]:
    """The argument `draws` as a list; raises unless it has one tensor for each draw of the step, in its form.

    ports      the draws of the step
    one_step   whether they come without the length axis, which the result has
    """
    singles = [one_step and port.kind == "draw" for port in ports]
    shapes = [port.drawn_shape(length, batch)[single:] for port, single in zip(ports, singles, strict=True)]
    wanted = [
        f"{port.distribution} {dtype_name(port.dtype)} {shape}" for port, shape in zip(ports, shapes, strict=True)
    ]
    expected = ", ".join(wanted) or "none: this step draws no random numbers"
    if not isinstance(draws, (list, tuple)) or len(draws) != len(ports):
        raise ArgumentError(
            "the argument 'draws' has the wrong number of tensors.",
            came=str(len(draws)) if isinstance(draws, (list, tuple)) else described(draws),
            expected=f"a list of {len(ports)}: {expected}" if ports else expected,
            tries="net.draw(inputs, ...) makes them",
        )
    for index, (draw, port) in enumerate(zip(draws, ports, strict=True)):
        form = (shapes[index], port.dtype, port.device)
        fits = isinstance(draw, Tensor) and (tuple(draw.shape), draw.dtype, draw.device) == form
        if not fits:
            where = f" on {draw.device}" if isinstance(draw, Tensor) and draw.device != port.device else ""
            raise ArgumentError(
                f"draws[{index}] has the wrong form.",
                came=described(draw) + where,
                expected=wanted[index] + (f" on {port.device}" if where else ""),
                tries="net.draw(inputs, ...) makes them",
            )
    return [draw.unsqueeze(0) if single else draw for draw, single in zip(draws, singles, strict=True)]
