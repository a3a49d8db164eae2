"""`export_c`: a network as a C file and a header, compiled and compared before they are written."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from leporello.atomic_write import write_atomically
from leporello.call.inputs import map_tensors
from leporello.engine.cpu.build import refuse_no_compiler
from leporello.kernel.description import Apply, Expression, Kernel, Pointwise, Product, operands
from leporello.kernel.operators import OPERATORS
from leporello.loop.batch_axis import batch_in_front
from leporello.loop.state import Tree, leaves_of
from leporello.nets.export.c_check import TOLERANCE, Compiled, Errors, Sizes, compared, results_of, sizes_of
from leporello.nets.export.c_model import CModel, called, identifier, model_of, recurrent_of, sequences_of
from leporello.nets.export.c_source import constant_bytes, header_of, source_of
from leporello.nets.export.report import ExportReport
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
    """

    step_error: float
    sizes: Sizes
    work: Work

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
        rows = [
            ["written", ", ".join(map(str, self.files))],
            ["flash", f"{self.flash_bytes:,} bytes: constants {sizes.constants:,}, code {code}"],
            ["RAM", f"{self.ram_bytes:,} bytes: struct {sizes.struct:,}, stack {stack}"],
            ["a step", f"{step}, {work.others:,} other operations"],
            ["error of a step", f"{self.step_error:.1e} at most, {self.tolerance:.0e} allowed"],
            ["on the example", f"{self.largest_error:.1e} at most"],
        ]
        return plain_table(rows, left=(0, 1))


def export_c(
    net: nn.Module, path: Path, *, example: Tree = None, state: Tree = None, steps: int | None = None
) -> CReport:
    """Write path, and a header beside it, and return a report; both are compiled and compared with the network first.

    example   inputs as for a call, of any length and batch
    state     the state that a reset sets; by default the cell's initial state
    steps     how many are compared, for a system without inputs
    """
    refuse_no_compiler()
    recurrent, runs = recurrent_of(net)
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
    return _report(model, path, errors, sizes)


def _report(model: CModel, path: Path, errors: Errors, sizes: Sizes) -> CReport:
    return CReport(
        files=(path, path.with_suffix(".h")),
        largest_error=errors.run,
        tolerance=TOLERANCE[model.kernel.dtype],
        step_error=errors.step,
        sizes=sizes,
        work=work_of(model.kernel),
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
