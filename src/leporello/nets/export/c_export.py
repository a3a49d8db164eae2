"""`export_c`: a network as a C file and a header, compiled and compared before they are written."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from leporello.atomic_write import write_atomically
from leporello.call.inputs import map_tensors
from leporello.engine.cpu.build import refuse_no_compiler
from leporello.errors import ArgumentError
from leporello.kernel.description import Apply, Expression, Kernel, Pointwise, Product, operands
from leporello.kernel.operators import OPERATORS
from leporello.loop.batch_axis import batch_in_front
from leporello.loop.state import Tree, leaves_of
from leporello.nets.export.c_check import TOLERANCE, Compiled, Errors, Sizes, compared, results_of, sizes_of
from leporello.nets.export.c_model import CModel, called, identifier, model_of, recurrent_of, sequences_of
from leporello.nets.export.c_source import constant_bytes, header_of, source_of
from leporello.nets.export.report import ExportReport
from leporello.nets.quantise import QuantiseReport, with_exact_rows
from leporello.nets.quantise import quantise as quantised_net
from leporello.text_table import plain_table


@dataclass(frozen=True)
class Work:
    """What one step computes.

    multiply_adds   in products
    others          other operators on single numbers: sums, comparisons, ...
    functions       calls of libm and divisions
    """

    multiply_adds: int
    others: int
    functions: int


@dataclass(frozen=True)
class CReport(ExportReport):
    """What was written as C, how far it is from the network, and what it takes.

    step_error   the largest error of one step from the network's own state, relative to the largest value above 1
    sizes        in bytes: flash is constants and code, RAM the struct and the stack
    work         of one step
    quantised    how far the quantised network is from the one it was made of; None without quantise=
    """

    step_error: float
    sizes: Sizes
    work: Work
    quantised: QuantiseReport | None = None

    @property
    def ok(self) -> bool:
        """Whether each step gives what the network's gives."""
        return self.step_error <= self.tolerance

    @property
    def flash_bytes(self) -> int:
        """Constants, and code where its size is known."""
        return self.sizes.constants + (self.sizes.code or 0)

    @property
    def ram_bytes(self) -> int:
        """The struct, and the stack where that is known."""
        return self.sizes.struct + (self.sizes.stack or 0)

    def __str__(self) -> str:
        sizes, work = self.sizes, self.work
        code = "unknown" if sizes.code is None else f"{sizes.code:,}"
        stack = "unknown" if sizes.stack is None else f"{sizes.stack:,}"
        step = f"{work.multiply_adds:,} multiply-adds in products, {work.functions:,} functions and divisions"
        amplified = ", since the recurrence amplifies rounding" if self.largest_error > 100 * self.tolerance else ""
        rows = [
            ["written", ", ".join(map(str, self.files))],
            ["flash", f"{self.flash_bytes:,} bytes: constants {sizes.constants:,}, code {code}"],
            ["RAM", f"{self.ram_bytes:,} bytes: struct {sizes.struct:,}, stack {stack}"],
            ["a step", f"{step}, {work.others:,} other operations"],
            ["error of a step", f"{self.step_error:.1e} at most, {self.tolerance:.0e} allowed"],
            ["on the example", f"{self.largest_error:.1e} at most{amplified}"],
        ]
        if self.quantised is not None:
            error, size = self.quantised.largest_error, self.quantised.largest_output
            rows.append(["by quantising", f"{error:.1e} at most on the data, of outputs up to {size:.3g}"])
        return plain_table(rows, left=(0, 1))


def export_c(
    net: nn.Module,
    path: Path,
    *,
    example: Tree = None,
    state: Tree = None,
    steps: int | None = None,
    quantise: Literal["int8"] | None = None,
    data: Tree = None,
) -> CReport:
    """Write path, and a header beside it, and return a report; both are compiled and compared with the network first.

    example    inputs as for a call, of any length and batch
    state      the state that a reset sets; by default the cell's initial state
    steps      how many are compared, for a system without inputs
    quantise   "int8": matrices are stored so, as `lp.quantise` does it; the C is compared with the quantised network
    data       inputs on which the scales of int8 are chosen; by default the example
    """
    refuse_no_compiler()
    recurrent, runs = recurrent_of(net)
    quantised = None
    if quantise is not None:
        if quantise != "int8":
            raise ArgumentError("the argument 'quantise' is no type.", came=repr(quantise), expected='"int8"')
        small = with_exact_rows(quantised_net(recurrent, example if data is None else data))
        recurrent, runs, quantised = small, small, small.report
    elif data is not None:
        raise ArgumentError(
            "the argument 'data' stands without 'quantise'.", came="data=...", tries='quantise="int8", data=inputs'
        )
    options = {} if steps is None else {"steps": steps}
    call, loop = called(recurrent, example, state, **options)
    model = model_of(recurrent, call, loop, identifier(path.stem))
    header_name = path.with_suffix(".h").name
    header, source = header_of(model), source_of(model, header_name)
    with tempfile.TemporaryDirectory(prefix="leporello-") as folder:
        (Path(folder) / header_name).write_text(header, encoding="utf-8")
        (Path(folder) / path.name).write_text(source, encoding="utf-8")
        compiled = Compiled(model, Path(folder), path.name)
        with torch.no_grad():
            outputs, final = runs(example, state, **options)
            if recurrent.batch_first:
                outputs = map_tensors(lambda leaf: leaf.transpose(0, 1), outputs)
            leaves = [leaf for leaf in leaves_of(outputs) if leaf is not None]
            after = leaves_of(batch_in_front(recurrent.cell, final))
            wanted = results_of(model, call, leaves, after)
            errors = compared(compiled, call, sequences_of(call, model), *wanted)
        sizes = sizes_of(compiled, Path(folder), path.name, constant_bytes(model))
    write_atomically(path.with_suffix(".h"), header)
    write_atomically(path, source)
    return _report(model, path, errors, sizes, quantised)


def _report(model: CModel, path: Path, errors: Errors, sizes: Sizes, quantised: QuantiseReport | None) -> CReport:
    return CReport(
        files=(path, path.with_suffix(".h")),
        largest_error=errors.run,
        tolerance=TOLERANCE[model.kernel.dtype],
        step_error=errors.step,
        sizes=sizes,
        work=work_of(model.kernel),
        quantised=quantised,
    )


def work_of(kernel: Kernel) -> Work:
    """The operations of one step."""
    counted: Counter[str] = Counter()
    for block in kernel.blocks:
        if isinstance(block, Product):
            counted["multiply_adds"] += int(block.heads) * block.inner * block.outer
            continue
        sizes = block.sizes if isinstance(block, Pointwise) else (*block.sizes, *block.over)
        values = [store.value for store in block.stores] if isinstance(block, Pointwise) else [block.value]
        times = math.prod(map(int, sizes))
        for operator in _operators(values):
            streamed = OPERATORS[operator].streamed
            counted["others" if streamed else "functions"] += times
        counted["others"] += 0 if isinstance(block, Pointwise) else times
    return Work(counted["multiply_adds"], counted["others"], counted["functions"])


def _operators(values: list[Expression]) -> list[str]:
    """The operators of expressions, each object once."""
    found, pending, seen = [], list(values), set[int]()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            found += [value.operator] if isinstance(value, Apply) else []
            pending += operands(value)
    return found
