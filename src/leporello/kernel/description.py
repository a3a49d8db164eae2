"""The description of a kernel: what one step of an inside does to one row, as an ordered list of blocks.

A kernel takes every row of a batch through all steps of a sequence. Rows never interact, and every step is the same, so
the description is that of one step of one row. It names no target: the C emitter of the engine `cpu` writes it as C,
`interpreter.py` runs it with torch, and both must agree. The numbers of steps and rows are those of a call. All other
sizes are static, or made of free lengths, which a call passes (`Size`).

A kernel has **buffers**, values in memory, each contiguous and with a static shape per row, and **blocks**, which read
and write them:

    Pointwise   loops that store values computed element by element; several stores may share the loops
    Reduction   loops that store a sum, a maximum, ... over further loops
    Product     a row times an invariant matrix, for each head

What a block computes is an **expression** over loop variables: loads, constants, and operators of the table `OPERATORS`
(operators.py) applied to other expressions. An expression that is used twice is one object; emitters compute it once.

Example: the cell h' = tanh(x + h W) with three hidden units, whose output is h'. `print(kernel.text())` gives

    kernel Small, forward in time
      state   h [3] float32
      next    h' [3] float32
      read    x [3] float32
      write   h_1 [3] float32
      fixed   w [3, 3] float32
      scratch mm [3] float32
      matrix  0 is w, k along axis 0, n along axis 1
      block 0
        for n < 3: product over k < 3 in float32
          mm[n] = sum of h[k] * matrix 0[k, n]
      block 1, needs element of mm by 0
        for i0 < 3:
          t0 = tanh(x[i0] + mm[i0])
          h'[i0] = t0
          h_1[i0] = t0

Element n of the product needs the whole row of h; element i0 of block 1 needs only the same element of what block 0 has
made. `Dependency` tells these two cases apart, since on a GPU the first is a barrier and the second is none. Block 0 of
a step needs "next" of the step before: between steps there is always a barrier.

**Number types.** A buffer has a storage type, in which its elements are kept in memory, and an arithmetic type, to
which loads convert and from which stores round. Operators compute in the type of their value (comparisons in that of
their operands). Products and reductions say in which type they add. `lower` makes them all the same, as torch does.

**Order.** Blocks are listed in an order in which they can run. Any order that respects `Kernel.dependencies` gives the
same result. At the end of a step what is in "next" becomes "state": a target keeps two buffers and exchanges them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from leporello.kernel.index import Index
from leporello.loop.sizes import AnySize, Size

# ---- memory

Place = Literal["state", "next", "read", "write", "row", "fixed", "scratch", "total"]


@dataclass(frozen=True)
class Buffer:
    """A value in memory, contiguous in each row.

    place        "state": before the step; "next": after it; "read", "write": one element of a sequence;
                 "row": the same at every step, one for each row; "fixed": one for all rows and steps; "scratch":
                 within a step; "total": the sum over all rows and steps of what is stored, which nothing reads
    slot         its index among the buffers of its place
    sizes        of its axes, without the row axis
    dtype        the storage type: of its elements in memory
    arithmetic   the type that a load gives and a store takes
    """

    name: str
    place: Place
    slot: int
    sizes: tuple[AnySize, ...]
    dtype: torch.dtype
    arithmetic: torch.dtype

    @property
    def count(self) -> AnySize:
        """Elements in one row."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Matrix:
    """An invariant that rows are multiplied by; a target may pack it as it likes, once for all steps.

    fixed   the slot of the buffer that holds it, among those with the place "fixed"
    heads   how many heads it is multiplied with; inner and outer are the sizes of the summed and of the other axis
    axes    which axes of the buffer's value are the head, the inner and the outer axis; a head axis of None: all heads
            share one matrix
    """

    fixed: int
    heads: int
    inner: int
    outer: int
    axes: tuple[int | None, int, int]


# ---- expressions


@dataclass(frozen=True)
class Load:
    """An element of a buffer."""

    buffer: Buffer
    index: Index


@dataclass(frozen=True)
class Along:
    """An offset into a buffer that is computed in the step: `number`, clamped to 0 ... size - 1, times `stride`."""

    number: Expression
    size: AnySize
    stride: AnySize


@dataclass(frozen=True)
class Fetch:
    """An element of a buffer at a computed position: `index` plus every offset of `by`."""

    buffer: Buffer
    index: Index
    by: tuple[Along, ...]


@dataclass(frozen=True)
class Constant:
    value: float | int | bool | Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Position:
    """The value of an index, converted to `dtype`: what `arange` gives."""

    index: Index
    dtype: torch.dtype


@dataclass(frozen=True)
class Apply:
    """A pointwise operator of `OPERATORS`, applied to expressions.

    dtype   of its value, and the type it computes in, unless its operands are compared or tested
    """

    operator: str
    arguments: tuple[Expression, ...]
    dtype: torch.dtype


Expression = Load | Fetch | Constant | Position | Apply


def dtype_of_expression(value: Expression) -> torch.dtype:
    return value.buffer.arithmetic if isinstance(value, (Load, Fetch)) else value.dtype


def operands(value: Expression) -> tuple[Expression, ...]:
    """The expressions that an expression is directly made of."""
    if isinstance(value, Apply):
        return value.arguments
    return tuple(along.number for along in value.by) if isinstance(value, Fetch) else ()


# ---- blocks


@dataclass(frozen=True)
class Store:
    """What is stored where, inside the loops of a block."""

    buffer: Buffer
    index: Index
    value: Expression


@dataclass(frozen=True)
class Pointwise:
    """Loops over `sizes` (variables i0, i1, ...) that store values, in this order within one iteration.

    A store may read what an earlier store of the same iteration has written, but nothing of another iteration: the
    iterations can run in any order.
    """

    sizes: tuple[AnySize, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Reduction:
    """Loops over `sizes` (i0, i1, ...) that store one value each, reduced over loops over `over` (k0, k1, ...).

    operator       a reduction of `OPERATORS`: "sum", "amax", ...; "argmax" and "argmin" reduce over one loop. So do
                   "largest" and "smallest", in the order of torch.topk, and "ascending" and "descending", in that of
                   torch.sort: they give the position of the first element, the second, ... along the last of i0, i1,
                   ..., on which `value` does not depend
    value          what is reduced, over both kinds of variables; `index`, where it is stored, has i0, i1, ... only
    accumulation   the type it adds, multiplies or compares in
    """

    sizes: tuple[AnySize, ...]
    over: tuple[AnySize, ...]
    operator: str
    value: Expression
    buffer: Buffer
    index: Index
    accumulation: torch.dtype


@dataclass(frozen=True)
class Product:
    """For each head h a row times a matrix: out[h, n] = sum over k of left[h, k] matrix[h, k, n].

    left[h, k] is the element offset + h * inner + k of `left`, out[h, n] the element h * outer + n of `out`.

    matrix         its index among the kernel's matrices
    arithmetic     the type that both factors are converted to before they are multiplied
    accumulation   the type that products are added in
    """

    left: Buffer
    offset: AnySize
    heads: AnySize
    inner: int
    outer: int
    matrix: int
    out: Buffer
    arithmetic: torch.dtype
    accumulation: torch.dtype


Block = Pointwise | Reduction | Product


@dataclass(frozen=True)
class Dependency:
    """That a block must run after an earlier one of the same step.

    block    the index of the earlier block
    buffer   the buffer through which they are connected
    access   "element": each element reads only what the same element of the earlier block has stored, so that whoever
             computes both needs no barrier; elements are counted in row-major order of the loops, those of a product in
             the order of its result
             "row": an element reads what other elements have stored: a product or a reduction of a row, or a view
             across features; a barrier on a GPU
             "order": it reads nothing, but writes what the earlier block reads or writes too
    offsets  with "row": each element reads only at these distances from itself, as the gates of an LSTM are read,
             which are side by side in one product: whoever computes these elements of both blocks needs no barrier
             either; empty if there are no such distances
    """

    block: int
    buffer: Buffer
    access: Literal["element", "row", "order"]
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """One step of an inside.

    name           of the loop, for people
    reverse        whether steps run from the last to the first
    buffers        by place, in the order of their slots; each of "next" becomes that of "state" with the same slot
    dtype          of the products, and of most else
    dependencies   for each block, those on earlier blocks of the same step
    """

    name: str
    reverse: bool
    blocks: tuple[Block, ...]
    buffers: dict[Place, tuple[Buffer, ...]]
    matrices: tuple[Matrix, ...]
    dtype: torch.dtype
    dependencies: tuple[tuple[Dependency, ...], ...]

    @property
    def totals(self) -> tuple[Buffer, ...]:
        """The sums over all rows and steps; few kernels have any."""
        return self.buffers.get("total", ())

    def text(self) -> str:
        """The kernel for readers, one line for each buffer, loop and store; the same text for the same kernel."""
        return "\n".join(_lines(self))


# ---- text

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}, {'backward' if kernel.reverse else 'forward'} in time"
    for place, buffers in kernel.buffers.items():
        for buffer in buffers:
            types = _types(buffer.dtype, "computed", buffer.arithmetic)
            yield f"  {place:<8}{_name(buffer)} {list(buffer.sizes)} {types}"
    for number, matrix in enumerate(kernel.matrices):
        head, inner, outer = matrix.axes
        axes = f"k along axis {inner}, n along axis {outer}" + (
            f", heads along axis {head}" if head is not None else ""
        )
        yield f"  matrix  {number} is {_name(kernel.buffers['fixed'][matrix.fixed])}, {axes}"
    for number, block in enumerate(kernel.blocks):
        needs = ", ".join(map(_need, kernel.dependencies[number]))
        yield f"  block {number}, needs {needs}" if needs else f"  block {number}"
        yield from (f"    {line}" for line in _block_lines(block))


def _need(dependency: Dependency) -> str:
    text = f"{dependency.access} of {_name(dependency.buffer)} by {dependency.block}"
    return f"{text} at {', '.join(map(str, dependency.offsets))}" if dependency.offsets else text


def _block_lines(block: Block) -> Iterator[str]:
    if isinstance(block, Product):
        heads = "" if block.heads == 1 else f"h < {block.heads}, "
        of, to = (f" + {size} * h" if block.heads > 1 else "" for size in (block.inner, block.outer))
        offset = f"{block.offset} + " if block.offset else ""
        factor = f"{'h, ' if block.heads > 1 else ''}k, n"
        types = _types(block.arithmetic, "added", block.accumulation)
        yield f"for {heads}n < {block.outer}: product over k < {block.inner} in {types}"
        left, matrix = f"{_name(block.left)}[{offset}k{of}]", f"matrix {block.matrix}[{factor}]"
        yield f"  {_name(block.out)}[n{to}] = sum of {left} * {matrix}"
        return
    loops = _loops(block.sizes, "i")
    yield f"for {loops}:" if loops else "once:"
    names: dict[int, str] = {}
    if isinstance(block, Pointwise):
        shared = _shared([store.value for store in block.stores])
        for store in block.stores:
            yield from _named(store.value, shared, names)
            sign = "+=" if store.buffer.place == "total" else "="
            yield f"  {_name(store.buffer)}[{store.index}] {sign} {_spelt(store.value, names)}"
        return
    yield from _named(block.value, _shared([block.value]), names)
    over = _loops(block.over, "k") or "one element"
    reduction = f"{block.operator} over {over} in {str(block.accumulation).removeprefix('torch.')}"
    yield f"  {_name(block.buffer)}[{block.index}] = {reduction} of {_spelt(block.value, names)}"


def _loops(sizes: tuple[AnySize, ...], letter: str) -> str:
    return ", ".join(f"{letter}{axis} < {size}" for axis, size in enumerate(sizes) if size != 1)


def _shared(values: list[Expression]) -> set[int]:
    """The ids of the operators that are used more than once in these expressions."""
    uses, pending, shared = Counter(map(id, values)), list(values), set[int]()
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            uses.update(map(id, operands(value)))
            pending += operands(value)
        if isinstance(value, Apply) and uses[id(value)] > 1:
            shared.add(id(value))
    return shared


def _named(value: Expression, shared: set[int], names: dict[int, str]) -> Iterator[str]:
    """A line for each shared operator that a value is made of and that has no name yet, innermost first.

    names   of operators, by id; those of the new lines are added here
    """
    if id(value) in names:
        return
    for part in operands(value):
        yield from _named(part, shared, names)
    if id(value) in shared:
        text = _spelt(value, names)
        names[id(value)] = f"t{len(names)}"
        yield f"  {names[id(value)]} = {text}"


def _spelt(value: Expression, names: dict[int, str], *, operand: bool = False) -> str:
    """An expression as text, with what has a name under its name.

    operand   whether it is the operand of an infix operator, and goes into parentheses if it is infix itself
    """
    if id(value) in names:
        return names[id(value)]
    if isinstance(value, Constant):
        return str(value.value)
    if isinstance(value, Position):
        return f"({value.index})"
    if isinstance(value, Load):
        return f"{_name(value.buffer)}[{value.index}]"
    if isinstance(value, Fetch):
        offsets = [f"{along.stride} * clamp({_spelt(along.number, names)}, {along.size})" for along in value.by]
        return f"{_name(value.buffer)}[{' + '.join([str(value.index), *offsets])}]"
    if value.operator in INFIX:
        text = f" {INFIX[value.operator]} ".join(_spelt(part, names, operand=True) for part in value.arguments)
        return f"({text})" if operand else text
    name = str(value.dtype).removeprefix("torch.") if value.operator == "cast" else value.operator
    return f"{name}({', '.join(_spelt(part, names) for part in value.arguments)})"


def _name(buffer: Buffer) -> str:
    return f"{buffer.name}'" if buffer.place == "next" else buffer.name


def _types(first: torch.dtype, word: str, second: torch.dtype) -> str:
    """Two types as text, the second only where it differs: "float32, added in float64"."""
    one, other = (str(dtype).removeprefix("torch.") for dtype in (first, second))
    return one if first == second else f"{one}, {word} in {other}"
