"""The interpreter: runs the description of a kernel with torch, exactly as written; the slow twin of every target.

Loops over rows and features are vectorised, steps and blocks are not. Nothing is assumed that the description does not
say: an element that is read before this step has written it is an error, and so is a result that is not wholly written,
a block that reads what another of its own iterations stores, one that reads what its dependencies do not tell, and an
order of blocks that the dependencies forbid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from leporello.kernel.description import (
    Apply,
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

CALLER, NOBODY = -1, -2  # instead of a block's number


class InvalidKernel(ValueError):
    """A description that breaks a rule of `description`, or tensors or an order of blocks that do not fit it."""


def run(
    kernel: Kernel,
    *,
    states: Sequence[Tensor | None],
    reads: Sequence[Tensor],
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    steps: int,
    batch: int,
    order: Sequence[int] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Take all rows through all steps; returns the states after the last step, and the sequences that were written.

    Both lists are in the order of the slots, with shapes as those of `states` and `reads`. Behind the sequences are the
    totals, [*sizes].

    states   [batch, *sizes] each, in the order of the slots, before the first step; None stands for zeros
    reads    [steps, batch, *sizes]: sequences
    rows     [batch, *sizes]: the same at every step
    fixed    [*sizes]: the same for all rows; one that is used only as a matrix may have other axes than its buffer, if
             they are those of `Matrix.axes`
    order    in which the blocks of a step run, instead of their own; it must respect the kernel's dependencies
    """
    numbers = list(range(len(kernel.blocks))) if order is None else list(order)
    _check_order(kernel, numbers)
    zeros = [torch.zeros(batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["state"]]
    present = [zero if state is None else state for state, zero in zip(states, zeros, strict=True)]
    _check_tensors(kernel.buffers["state"], present, (batch,))
    _check_tensors(kernel.buffers["read"], reads, (steps, batch))
    _check_tensors(kernel.buffers["row"], rows, (batch,))
    step = _Step(kernel, batch, fixed, rows)
    writes = [torch.empty((steps, batch, *buffer.sizes), dtype=buffer.dtype) for buffer in kernel.buffers["write"]]
    for time in reversed(range(steps)) if kernel.reverse else range(steps):
        step.begin(present, [sequence[time] for sequence in reads])
        for number in numbers:
            step.block(number)
        present = [step.result(buffer) for buffer in kernel.buffers["next"]]
        for sequence, buffer in zip(writes, kernel.buffers["write"], strict=True):
            sequence[time] = step.result(buffer)
    return present, [*writes, *step.totals.values()]


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
    """The memory of one step, with who has written what; `begin` clears it for the next step.

    lasting    the values of fixed buffers and of those of a row, which are the same at every step
    totals     what all steps by now have added up
    values     of each buffer, [batch, elements], that of a fixed one [elements]
    writers    for each element of a buffer, the index of the block that has written it, CALLER for inputs, NOBODY at
               first
    elements   for each element of a buffer, which element of that block's loops has written it
    """

    def __init__(self, kernel: Kernel, batch: int, fixed: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.kernel, self.batch, self.fixed = kernel, batch, list(fixed)
        self.lasting: dict[Buffer, Tensor] = {}
        self.totals = {buffer: torch.zeros(buffer.sizes, dtype=buffer.dtype) for buffer in kernel.totals}
        for buffer, tensor in zip(kernel.buffers["fixed"], fixed, strict=True):
            if tuple(tensor.shape) == buffer.sizes:
                self.lasting[buffer] = tensor.reshape(buffer.count)
        for buffer, tensor in zip(kernel.buffers["row"], rows, strict=True):
            self.lasting[buffer] = tensor.reshape(batch, buffer.count)
        self.values: dict[Buffer, Tensor] = {}
        self.writers: dict[Buffer, Tensor] = {}
        self.elements: dict[Buffer, Tensor] = {}

    def begin(self, states: Sequence[Tensor], reads: Sequence[Tensor]) -> None:
        """Begin a step: only what the caller passes counts as written, and other floating-point memory is NaN."""
        buffers = self.kernel.buffers
        self.values = dict(self.lasting)
        for buffer, tensor in zip((*buffers["state"], *buffers["read"]), (*states, *reads), strict=True):
            self.values[buffer] = tensor.reshape(self.batch, buffer.count)
        self.writers = {buffer: torch.full((buffer.count,), CALLER) for buffer in self.values}
        for buffer in (*buffers["next"], *buffers["write"], *buffers["scratch"]):
            self.values[buffer] = torch.zeros(self.batch, buffer.count, dtype=buffer.dtype)
            if buffer.dtype.is_floating_point:
                self.values[buffer].fill_(torch.nan)
            self.writers[buffer] = torch.full((buffer.count,), NOBODY)
            self.elements[buffer] = torch.zeros(buffer.count, dtype=torch.int64)

    def result(self, buffer: Buffer) -> Tensor:
        """What is in a buffer at the end of the step: [batch, *sizes]; raises if an element was never written."""
        if (self.writers[buffer] == NOBODY).any():
            raise InvalidKernel(f"{buffer.place} '{buffer.name}' is not wholly written.")
        return self.values[buffer].reshape(self.batch, *buffer.sizes)

    def block(self, number: int) -> None:
        block = self.kernel.blocks[number]
        if isinstance(block, Product):
            self._product(number, block)
        elif isinstance(block, Reduction):
            self._reduction(number, block)
        else:
            self._pointwise(number, block)

    # ---- blocks

    def _pointwise(self, number: int, block: Pointwise) -> None:
        loops = _Loops(self, number, block.sizes)
        for store in block.stores:
            self._store(number, store.buffer, loops.positions(store.index), loops.value(store.value))
            loops.stored[store.buffer] = store.index

    def _reduction(self, number: int, block: Reduction) -> None:
        loops = _Loops(self, number, block.sizes, block.over)
        value = loops.value(block.value).expand(self.batch, *block.sizes, *block.over)
        if block.operator not in ("any", "all"):  # which test a value of any type
            value = value.to(block.accumulation)
        reduced = OPERATORS[block.operator].meaning(value.reshape(self.batch, *block.sizes, -1))
        self._store(number, block.buffer, _Loops(self, number, block.sizes).positions(block.index), reduced)

    def _product(self, number: int, block: Product) -> None:
        matrix = self.kernel.matrices[block.matrix]
        head, inner, outer = matrix.axes
        tensor = self.fixed[matrix.fixed]
        factor = tensor.permute(inner, outer)[None] if head is None else tensor.permute(head, inner, outer)
        if tuple(factor.shape[1:]) != (block.inner, block.outer) or factor.shape[0] not in (1, block.heads):
            raise InvalidKernel(f"matrix {block.matrix} is {list(tensor.shape)}, and has other axes than {matrix}.")
        positions = torch.arange(block.heads * block.inner) + block.offset
        left = self.load(number, block.left, positions).reshape(self.batch, block.heads, 1, block.inner)
        left, factor = (value.to(block.arithmetic).to(block.accumulation) for value in (left, factor))
        product = (left @ factor).reshape(self.batch, -1)
        self._store(number, block.out, torch.arange(block.heads * block.outer), product)

    # ---- memory

    def load(self, number: int, buffer: Buffer, positions: Tensor, elements: Tensor | None = None) -> Tensor:
        """Elements of a buffer at these positions, in its arithmetic type: [batch, ...], or [1, ...] of a fixed one.

        number     the index of the block that reads
        elements   which element of the block's loops reads each position; None if all of them read all
        """
        self._check_read(number, buffer, positions, elements)
        value = self.values[buffer]
        return (value[positions][None] if buffer.place == "fixed" else value[:, positions]).to(buffer.arithmetic)

    def fetch(self, number: int, buffer: Buffer, positions: Tensor) -> Tensor:
        """Elements of a buffer at positions of their own in each row, [batch or 1, ...], in its arithmetic type.

        As the positions are computed, the block counts as reading the whole buffer.
        """
        self._check_read(number, buffer, torch.arange(buffer.count), None)
        value = self.values[buffer]
        if buffer.place == "fixed":
            return value[positions].to(buffer.arithmetic)
        positions = positions.expand(self.batch, *positions.shape[1:])
        return value.gather(1, positions.flatten(1)).reshape(positions.shape).to(buffer.arithmetic)

    def _check_read(self, number: int, buffer: Buffer, positions: Tensor, elements: Tensor | None) -> None:
        """Raise unless what a block reads has been written, by blocks that its dependencies name as they say."""
        if buffer not in self.values:
            raise InvalidKernel(f"block {number} reads '{buffer.name}', which was passed in another shape.")
        if positions.numel() and (positions.min() < 0 or positions.max() >= buffer.count):
            raise InvalidKernel(f"block {number} reads '{buffer.name}' outside its {buffer.count} elements.")
        writers = self.writers[buffer][positions]
        for writer in writers.unique().tolist():
            if writer == NOBODY:
                raise InvalidKernel(f"block {number} reads {buffer.place} '{buffer.name}' before it is written.")
            if writer in (CALLER, number):
                continue
            needs = [n for n in self.kernel.dependencies[number] if (n.block, n.buffer) == (writer, buffer)]
            if not needs or needs[0].access == "order":
                raise InvalidKernel(f"block {number} reads '{buffer.name}' of block {writer}, and does not say so.")
            distances = (0,) if needs[0].access == "element" else needs[0].offsets
            if distances:
                self._check_distances(number, buffer, distances, positions, elements, writers == writer)

    def _check_distances(
        self,
        number: int,
        buffer: Buffer,
        distances: Sequence[int],
        positions: Tensor,
        elements: Tensor | None,
        chosen: Tensor,
    ) -> None:
        """Raise unless what is read was written by elements at these distances from the reading one.

        positions   that are read, by `elements` of the block's loops; None: by all of them
        chosen      which of the positions to check: those written by one block
        """
        if elements is None:
            raise InvalidKernel(f"block {number} reads all of '{buffer.name}', and says that it reads elements.")
        away, chosen = torch.broadcast_tensors(self.elements[buffer][positions] - elements, chosen)
        if not set(away[chosen].unique().tolist()) <= set(distances):
            raise InvalidKernel(f"block {number} reads other elements of '{buffer.name}' than its dependency tells.")

    def _store(self, number: int, buffer: Buffer, positions: Tensor, value: Tensor) -> None:
        """Write to a buffer, one element for each iteration of the block's loops, and note the writers."""
        if buffer.place == "total":
            added = value.expand(self.batch, *positions.shape).reshape(self.batch, -1).sum(0)
            self.totals[buffer].view(-1).index_add_(0, positions.flatten(), added)
            return
        if buffer.place not in ("next", "write", "scratch"):
            raise InvalidKernel(f"block {number} writes to {buffer.place} '{buffer.name}'.")
        if positions.unique().numel() != positions.numel():
            raise InvalidKernel(f"block {number} writes one element of '{buffer.name}' twice.")
        value = value.to(buffer.arithmetic).to(buffer.dtype).expand(self.batch, *positions.shape)
        positions = positions.flatten()
        self.values[buffer] = self.values[buffer].index_copy(1, positions, value.reshape(self.batch, -1))
        self.writers[buffer][positions] = number
        self.elements[buffer][positions] = torch.arange(positions.numel())


class _Loops:
    """Expressions inside the loops of a block, in all iterations at once.

    Values are [batch, *sizes, *over]; an axis along which a value does not change may have size 1.

    variables   the values of each loop variable, along its own axis of [*sizes, *over]
    elements    the element of the loops over `sizes` that each iteration belongs to, counted in row-major order
    stored      for each buffer that earlier stores of this block have written, the index of the last store
    """

    def __init__(self, step: _Step, number: int, sizes: Sequence[int], over: Sequence[int] = ()) -> None:
        self.step, self.number = step, number
        self.shape = (*sizes, *over)
        self.variables: dict[str, Tensor] = {}
        names = [f"i{axis}" for axis in range(len(sizes))] + [f"k{axis}" for axis in range(len(over))]
        for axis, (name, size) in enumerate(zip(names, self.shape, strict=True)):
            self.variables[name] = torch.arange(size).reshape([-1 if a == axis else 1 for a in range(len(self.shape))])
        self.elements = torch.arange(math.prod(sizes)).reshape([*sizes, *[1] * len(over)])
        self.stored: dict[Buffer, Index] = {}
        self._values: dict[int, Tensor] = {}

    def positions(self, index: Index) -> Tensor:
        """An index at every iteration: [*sizes, *over]."""
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
            name = expression.buffer.name
            raise InvalidKernel(f"block {self.number} reads '{name}' where another of its iterations writes it.")
        positions = _evaluate(expression.index, self.variables)
        if isinstance(expression, Load):
            return self.step.load(self.number, expression.buffer, positions, self.elements)
        offsets = positions[None]
        for along in expression.by:
            offsets = offsets + self.value(along.number).clamp(0, along.size - 1).long() * along.stride
        return self.step.fetch(self.number, expression.buffer, offsets)


def _evaluate(index: Index, variables: Mapping[str, Tensor]) -> Tensor:
    """The positions that an index means, for tensors of values of the loop variables; broadcastable to their loops."""
    position = torch.tensor(index.const).reshape([1] * next((value.dim() for value in variables.values()), 0))
    for variable, factor in index.terms:
        if isinstance(variable, str):
            value = variables[variable]
        else:
            dividend = _evaluate(variable.index, variables)
            value = dividend // variable.size if isinstance(variable, Quotient) else dividend % variable.size
        position = position + value * factor
    return position
