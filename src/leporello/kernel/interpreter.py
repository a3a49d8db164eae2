"""The interpreter: runs the description of a kernel with torch, exactly as written; the slow twin of every target.

Loops over rows and features are vectorised, steps and blocks are not. Nothing is assumed that the description does not
say: an element that is read before this step has written it is an error, and so is a result that is not wholly written,
a block that reads what another of its own iterations stores, or an order of blocks that the dependencies forbid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from leporello.kernel.description import (
    Apply,
    Block,
    Buffer,
    Constant,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Position,
    Product,
    Reduction,
)
from leporello.kernel.index import Index, Quotient
from leporello.kernel.operators import OPERATORS


class InvalidKernel(ValueError):
    """A description that does not mean one thing."""


def run(
    kernel: Kernel,
    *,
    states: Sequence[Tensor],
    reads: Sequence[Tensor],
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    steps: int,
    batch: int,
    order: Sequence[int] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Take all rows through all steps; the states after the last, and the sequences that were written.

    states   [batch, *sizes] each, in the order of the slots, before the first step
    reads    [steps, batch, *sizes]: sequences
    rows     [batch, *sizes]: the same at every step
    fixed    [*sizes]: the same for all rows; one that is only multiplied by may have the shape that `Matrix.axes` say
    order    in which the blocks of a step run, instead of their own; it must respect the kernel's dependencies
    """
    numbers = list(range(len(kernel.blocks))) if order is None else list(order)
    _check_order(kernel, numbers)
    _check_tensors(kernel.buffers["state"], states, (batch,))
    _check_tensors(kernel.buffers["read"], reads, (steps, batch))
    _check_tensors(kernel.buffers["row"], rows, (batch,))
    step = _Step(kernel, batch, fixed, rows)
    present = list(states)
    writes = [torch.empty((steps, batch, *buffer.sizes), dtype=buffer.dtype) for buffer in kernel.buffers["write"]]
    for time in reversed(range(steps)) if kernel.reverse else range(steps):
        step.begin(present, [sequence[time] for sequence in reads])
        for number in numbers:
            step.block(number)
        present = [step.result(buffer) for buffer in kernel.buffers["next"]]
        for sequence, buffer in zip(writes, kernel.buffers["write"], strict=True):
            sequence[time] = step.result(buffer)
    return present, writes


def _check_order(kernel: Kernel, order: list[int]) -> None:
    if sorted(order) != list(range(len(kernel.blocks))):
        raise InvalidKernel(f"{order} is no order of {len(kernel.blocks)} blocks.")
    done: set[int] = set()
    for number in order:
        for dependency in kernel.dependencies[number]:
            if dependency.block not in done:
                raise InvalidKernel(f"block {number} runs before block {dependency.block}, which it depends on.")
        done.add(number)


def _check_tensors(buffers: Sequence[Buffer], tensors: Sequence[Tensor], leading: tuple[int, ...]) -> None:
    for buffer, tensor in zip(buffers, tensors, strict=True):
        shape = (*leading, *buffer.sizes)
        if tuple(tensor.shape) != shape or tensor.dtype != buffer.dtype:
            raise InvalidKernel(
                f"{buffer.place} '{buffer.name}' is {tensor.dtype} {list(tensor.shape)}, "
                f"the kernel reads {buffer.dtype} {list(shape)}."
            )


class _Step:
    """The memory of one step.

    values    of each buffer, [batch, elements], that of a fixed one [elements]
    written   which of its elements this step has written; the caller's are written from the start
    """

    def __init__(self, kernel: Kernel, batch: int, fixed: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.kernel, self.batch, self.fixed = kernel, batch, list(fixed)
        self.lasting: dict[Buffer, Tensor] = {}
        for buffer, tensor in zip(kernel.buffers["fixed"], fixed, strict=True):
            if tuple(tensor.shape) == buffer.sizes:
                self.lasting[buffer] = tensor.reshape(buffer.count)
        for buffer, tensor in zip(kernel.buffers["row"], rows, strict=True):
            self.lasting[buffer] = tensor.reshape(batch, buffer.count)
        self.values: dict[Buffer, Tensor] = {}
        self.written: dict[Buffer, Tensor] = {}

    def begin(self, states: Sequence[Tensor], reads: Sequence[Tensor]) -> None:
        """A new step: nothing is written but what the caller passes."""
        buffers = self.kernel.buffers
        self.values = dict(self.lasting)
        for buffer, tensor in zip((*buffers["state"], *buffers["read"]), (*states, *reads), strict=True):
            self.values[buffer] = tensor.reshape(self.batch, buffer.count)
        self.written = {buffer: torch.ones(buffer.count, dtype=torch.bool) for buffer in self.values}
        for buffer in (*buffers["next"], *buffers["write"], *buffers["scratch"]):
            self.values[buffer] = torch.zeros(self.batch, buffer.count, dtype=buffer.dtype)
            if buffer.dtype.is_floating_point:
                self.values[buffer].fill_(torch.nan)
            self.written[buffer] = torch.zeros(buffer.count, dtype=torch.bool)

    def result(self, buffer: Buffer) -> Tensor:
        """What is in a buffer at the end of the step."""
        if not self.written[buffer].all():
            raise InvalidKernel(f"{buffer.place} '{buffer.name}' is not wholly written.")
        return self.values[buffer].reshape(self.batch, *buffer.sizes)

    def block(self, number: int) -> None:
        block = self.kernel.blocks[number]
        if isinstance(block, Product):
            self._product(block)
        elif isinstance(block, Reduction):
            self._reduction(block)
        else:
            self._pointwise(block)

    # ---- blocks

    def _pointwise(self, block: Pointwise) -> None:
        loops = _Loops(self, block, block.sizes)
        for store in block.stores:
            self._store(store.buffer, loops.positions(store.index), loops.value(store.value))
            loops.stored[store.buffer] = store.index

    def _reduction(self, block: Reduction) -> None:
        loops = _Loops(self, block, block.sizes, block.over)
        value = loops.value(block.value).expand(self.batch, *block.sizes, *block.over)
        if block.operator not in ("any", "all"):  # which test a value of any type
            value = value.to(block.accumulation)
        reduced = OPERATORS[block.operator].meaning(value.reshape(self.batch, *block.sizes, -1))
        index = _Loops(self, block, block.sizes).positions(block.index)
        self._store(block.buffer, index, reduced)

    def _product(self, block: Product) -> None:
        matrix = self.kernel.matrices[block.matrix]
        head, inner, outer = matrix.axes
        tensor = self.fixed[matrix.fixed]
        factor = tensor.permute(inner, outer)[None] if head is None else tensor.permute(head, inner, outer)
        if tuple(factor.shape[1:]) != (block.inner, block.outer) or factor.shape[0] not in (1, block.heads):
            raise InvalidKernel(f"matrix {block.matrix} is {list(tensor.shape)}, and has other axes than {matrix}.")
        elements = torch.arange(block.heads * block.inner) + block.offset
        left = self.load(block.left, elements, block).reshape(self.batch, block.heads, 1, block.inner)
        left, factor = (value.to(block.arithmetic).to(block.accumulation) for value in (left, factor))
        self._store(block.out, torch.arange(block.heads * block.outer), (left @ factor).reshape(self.batch, -1))

    # ---- memory

    def load(self, buffer: Buffer, positions: Tensor, block: Block) -> Tensor:
        """Elements of a buffer at these positions, in its arithmetic type: [batch, ...], or [1, ...] of a fixed one."""
        if buffer not in self.values:
            self._refuse(block, f"reads '{buffer.name}', which was passed in another shape")
        if positions.numel() and (positions.min() < 0 or positions.max() >= buffer.count):
            self._refuse(block, f"reads '{buffer.name}' outside its {buffer.count} elements")
        if not self.written[buffer][positions].all():
            self._refuse(block, f"reads {buffer.place} '{buffer.name}' before it is written")
        value = self.values[buffer]
        return (value[positions][None] if buffer.place == "fixed" else value[:, positions]).to(buffer.arithmetic)

    def fetch(self, buffer: Buffer, positions: Tensor, block: Block) -> Tensor:
        """The same at positions of each row: [batch, ...]."""
        if not self.written[buffer].all():
            self._refuse(block, f"reads {buffer.place} '{buffer.name}' before it is written")
        value = self.values[buffer]
        if buffer.place == "fixed":
            return value[positions].to(buffer.arithmetic)
        positions = positions.expand(self.batch, *positions.shape[1:])
        return value.gather(1, positions.flatten(1)).reshape(positions.shape).to(buffer.arithmetic)

    def _store(self, buffer: Buffer, positions: Tensor, value: Tensor) -> None:
        if buffer.place not in ("next", "write", "scratch"):
            raise InvalidKernel(f"a block writes to {buffer.place} '{buffer.name}'.")
        if positions.unique().numel() != positions.numel():
            raise InvalidKernel(f"'{buffer.name}' is written twice by one store.")
        value = value.to(buffer.arithmetic).to(buffer.dtype).expand(self.batch, *positions.shape)
        self.values[buffer] = self.values[buffer].index_copy(1, positions.flatten(), value.reshape(self.batch, -1))
        self.written[buffer][positions.flatten()] = True

    def _refuse(self, block: Block, what: str) -> NoReturn:
        raise InvalidKernel(f"block {self.kernel.blocks.index(block)} {what}.")


class _Loops:
    """Expressions inside the loops of a block, in all iterations at once.

    Values are [batch, *sizes, *over]; an axis along which a value does not change may have size 1.

    stored   of each buffer that earlier stores of this block have written, the index of the last
    """

    def __init__(self, step: _Step, block: Block, sizes: Sequence[int], over: Sequence[int] = ()) -> None:
        self.step, self.block = step, block
        self.shape = (*sizes, *over)
        self.variables: dict[str, Tensor] = {}
        names = [f"i{axis}" for axis in range(len(sizes))] + [f"k{axis}" for axis in range(len(over))]
        for axis, (name, size) in enumerate(zip(names, self.shape, strict=True)):
            self.variables[name] = torch.arange(size).reshape([-1 if a == axis else 1 for a in range(len(self.shape))])
        self.stored: dict[Buffer, Index] = {}
        self._values: dict[int, Tensor] = {}

    def positions(self, index: Index) -> Tensor:
        """An index at every iteration: [*sizes]."""
        return _evaluate(index, self.variables).expand(self.shape)

    def value(self, expression: Expression) -> Tensor:
        """An expression at every iteration; one that is used twice is computed once."""
        if id(expression) not in self._values:
            self._values[id(expression)] = self._compute(expression)
        return self._values[id(expression)]

    def _compute(self, expression: Expression) -> Tensor:
        if isinstance(expression, Constant):
            return torch.tensor(expression.value, dtype=expression.dtype).reshape([1] * (1 + len(self.shape)))
        if isinstance(expression, Position):
            return _evaluate(expression.index, self.variables)[None].to(expression.dtype)
        if isinstance(expression, Apply):
            arguments = [self.value(argument) for argument in expression.arguments]
            return OPERATORS[expression.operator].meaning(*arguments).to(expression.dtype)
        if self.stored.get(expression.buffer, expression.index) != expression.index or (
            isinstance(expression, Fetch) and expression.buffer in self.stored
        ):
            raise InvalidKernel(f"a block reads '{expression.buffer.name}' where another of its iterations writes it.")
        positions = _evaluate(expression.index, self.variables)
        if isinstance(expression, Load):
            return self.step.load(expression.buffer, positions, self.block)
        offsets = positions[None]
        for along in expression.by:
            offsets = offsets + self.value(along.number).clamp(0, along.size - 1).long() * along.stride
        return self.step.fetch(expression.buffer, offsets, self.block)


def _evaluate(index: Index, variables: Mapping[str, Tensor]) -> Tensor:
    """The position that an index means, for values of the loop variables."""
    position = torch.tensor(index.const).reshape([1] * next((value.dim() for value in variables.values()), 0))
    for variable, factor in index.terms:
        if isinstance(variable, str):
            value = variables[variable]
        else:
            dividend = _evaluate(variable.index, variables)
            value = dividend // variable.size if isinstance(variable, Quotient) else dividend % variable.size
        position = position + value * factor
    return position
