"""From a `CModel` to the text of a C file and its header: C99 without dependencies but libm, for one row.

The struct of a model holds its state and the memory of a step; the weights are constants. A product is a call of a
small function, other blocks are loops. The same model gives the same text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from leporello.engine.cpu.c_blocks import BlockWriter
from leporello.engine.cpu.c_emitter import in_comment
from leporello.engine.cpu.c_memory import buffer_names
from leporello.engine.cpu.c_operators import TYPES, literal
from leporello.kernel.dependencies import loaded, register_values, touched
from leporello.kernel.description import Buffer, Kernel, Matrix, Pointwise, Product
from leporello.nets.export.c_dialect import C99, STORED_NARROWER, helpers_for
from leporello.nets.export.c_model import CModel, Value, identifier

TILE = 8  # columns of a matrix whose sums are in registers
LINE_WIDTH = 118


# ---- where everything is


class StepLayout:
    """The buffers of a kernel as C sees them in `model_step`.

    names       of the pointers to buffers
    registers   scratch buffers whose elements stay in registers
    work        scratch buffers in the memory of the struct: type -> elements
    offsets     of scratch buffers in the memory of their type
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = buffer_names(kernel)
        self.registers: Collection[Buffer] = register_values(kernel)
        self.work: dict[torch.dtype, int] = {}
        self.offsets: dict[Buffer, int] = {}
        self._place_scratch()

    def element(self, buffer: Buffer, index: str) -> str:
        return f"{self.names[buffer]}[{index}]"

    def _place_scratch(self) -> None:
        """Give each scratch buffer the first memory that is free from its first use to its last."""
        uses: dict[Buffer, list[int]] = {}
        for number, block in enumerate(self.kernel.blocks):
            for buffer in touched(block):
                if buffer.place == "scratch" and buffer not in self.registers:
                    uses.setdefault(buffer, []).append(number)
        placed: list[Buffer] = []
        for buffer in sorted(uses, key=lambda buffer: (uses[buffer][0], buffer.slot)):
            others = sorted(
                (self.offsets[other], int(other.count))
                for other in placed
                if other.dtype == buffer.dtype and uses[other][-1] >= uses[buffer][0]
            )
            offset = 0
            for begin, count in others:
                if offset + int(buffer.count) <= begin:
                    break
                offset = max(offset, begin + count)
            self.offsets[buffer] = offset
            self.work[buffer.dtype] = max(self.work.get(buffer.dtype, 0), offset + int(buffer.count))
            placed.append(buffer)


# ---- the step


class _StepWriter(BlockWriter):
    """Writes the blocks of a step, for the one row there is."""

    layout: StepLayout

    def __init__(self, model: CModel, layout: StepLayout) -> None:
        super().__init__(layout, C99, depth=2, pragmas=False)
        self.kernel, self.matrices = model.kernel, matrix_names(model)

    def blocks(self) -> None:
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                self._product(block)
                continue
            self.emit("{", 1)
            if isinstance(block, Pointwise):
                self.pointwise(block)
            else:
                self.reduction(block)
            self.emit("}", 1)

    def _product(self, block: Product) -> None:
        matrix = self.kernel.matrices[block.matrix]
        names = self.layout.names
        heads = int(block.heads)
        per_head = 0 if matrix.heads == 1 else block.inner * block.outer
        at = {
            "w": self.matrices[matrix] + (f" + head * {per_head}" if heads > 1 and per_head else ""),
            "left": f"{names[block.left]}" + (f" + {block.offset}" if block.offset else ""),
            "out": f"{names[block.out]}",
        }
        if heads > 1:
            at["left"] += f" + head * {block.inner}"
            at["out"] += f" + head * {block.outer}"
            self.emit(f"for (long head = 0; head < {heads}; head++)", 1)
        function = product_name(self.kernel, matrix)
        self.emit(
            f"{function}({at['w']}, {at['left']}, {at['out']}, {block.inner}, {block.outer});", 1 + int(heads > 1)
        )


def product_name(kernel: Kernel, matrix: Matrix) -> str:
    """The function that multiplies with a matrix: by the types of its numbers and of the sums."""
    letter = "d" if kernel.dtype == torch.float64 else "f"
    stored = STORED_NARROWER.get(kernel.buffers["fixed"][matrix.fixed].dtype)
    return f"product_{letter}" if stored is None else f"product_{stored[0]}_{letter}"


def matrix_names(model: CModel) -> dict[Matrix, str]:
    """The names of the packed constants of matrices; those with the same numbers in the same order share them."""
    names: dict[Matrix, str] = {}
    for matrix in model.kernel.matrices:
        stem = f"w_{identifier(model.origins[matrix.fixed])}"
        if matrix not in names:
            names[matrix] = f"{stem}_{len(names)}" if stem in names.values() else stem
    return names


# ---- constants


def matrices_of(model: CModel) -> dict[str, tuple[Matrix, Tensor]]:
    """For each matrix by its name its packed numbers: for each head tiles of columns, in each the rows in order."""
    found: dict[str, tuple[Matrix, Tensor]] = {}
    for matrix, name in matrix_names(model).items():
        head, inner, outer = matrix.axes
        value = model.fixed[matrix.fixed]
        heads = value.permute(inner, outer)[None] if head is None else value.permute(head, inner, outer)
        tiles = [tile.reshape(-1) for one in heads for tile in one.split(TILE, dim=1)]
        found[name] = (matrix, torch.cat(tiles))
    return found


def arrays_of(model: CModel) -> dict[Buffer, Tensor]:
    """The numbers that a step reads element by element, by buffer."""
    kernel, names = model.kernel, loaded(model.kernel)
    found = {buffer: model.fixed[buffer.slot] for buffer in kernel.buffers["fixed"] if buffer.slot in names}
    read = {buffer for block in kernel.blocks for buffer in touched(block)}
    return found | {buffer: model.rows[buffer.slot] for buffer in kernel.buffers["row"] if buffer in read}


def constant_bytes(model: CModel) -> int:
    """Bytes of all constants."""
    values = [value for _, value in matrices_of(model).values()]
    values += [*arrays_of(model).values(), *model.initial]
    return sum(value.numel() * value.element_size() for value in values)


def _array(name: str, value: Tensor, comment: str = "") -> Iterator[str]:
    dtype = value.dtype
    yield f"static const {TYPES[dtype]} {name}[{max(1, value.numel())}] = {{{comment}"
    line = "   "
    for number in value.flatten().tolist() or [0]:
        text = _number(number, dtype) + ","
        if len(line) + 1 + len(text) > LINE_WIDTH:
            yield line
            line = "   "
        line += " " + text
    yield line
    yield "};"


def _number(value: float, dtype: torch.dtype) -> str:
    """A constant as decimal digits that give the same bits when they are read."""
    if not dtype.is_floating_point or math.isnan(value) or math.isinf(value):
        return literal(value, dtype, C99)
    single = dtype == torch.float32
    text = f"{value:.9g}" if single else f"{value:.17g}"
    if not set(text) & set(".e"):
        text += ".0"
    return text + ("f" if single else "")


# ---- the files


def _shape(value: Value) -> str:
    return f"[{', '.join(map(str, value.shape))}]" if value.shape else "a number"


def macro(model: CModel, kind: str, value: Value) -> str:
    """The name of the macro with a value's size."""
    return f"{model.name}_{kind}_{value.name}".upper()


def _described(value: Value) -> str:
    planes = ", real parts first" if value.planes else ""
    label = "" if value.label == value.name else f" ('{in_comment(value.label)}' of the cell)"
    return f"{TYPES[value.dtype]} {_shape(value)}{planes}{label}"


def _parameters(model: CModel, *, many: bool) -> str:
    parts = [f"struct {model.name} *m"] + (["long steps"] if many else [])
    parts += [f"const {TYPES[value.dtype]} *{value.name}" for value in model.inputs]
    parts += [f"{TYPES[value.dtype]} *{value.name}" for value in model.outputs]
    return ", ".join(parts)


def header_of(model: CModel) -> str:
    """The text of the header."""
    name, guard = model.name, f"{model.name.upper()}_H"
    layout = StepLayout(model.kernel)
    lines = [
        f"/* {name}: the recurrent network {in_comment(model.cell)}, one row, as C99. Written by leporello.",
        "",
        "   Nothing is allocated, there are no threads and no variables: the state and the memory of a step are in",
        f"   struct {name}, of which there may be several. Links with libm.",
        "",
        f"       static struct {name} m;",
        f"       {name}_reset(&m);                            before the first step",
        f"       {name}_step({_call(model, '&m')});",
        "",
        "   A value with several axes is in row-major order. Inputs and outputs may not overlap.",
        "*/",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "/* sizes, in numbers */",
    ]
    lines += [f"#define {macro(model, 'input', v)} {v.count} /* {_described(v)} */" for v in model.inputs]
    lines += [f"#define {macro(model, 'output', v)} {v.count} /* {_described(v)} */" for v in model.outputs]
    lines += [f"#define {macro(model, 'state', v)} {v.count} /* {_described(v)} */" for v in model.states]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", "", f"struct {name} {{"]
    lines += [
        f"    {TYPES[v.dtype]} {v.name}[{max(1, v.count)}]; /* the state '{in_comment(v.label)}' */"
        for v in model.states
    ]
    if model.counts_steps:
        lines.append("    int64_t steps[1]; /* the number of the next step */")
    lines += [
        f"    {TYPES[v.dtype]} next_{v.name}[{max(1, v.count)}]; /* of model_step alone, from here on */".replace(
            "model_step", f"{name}_step"
        )
        for v in model.states
    ]
    lines += [f"    {TYPES[dtype]} work_{TYPES[dtype]}[{count}];" for dtype, count in layout.work.items()]
    if not (model.states or model.counts_steps or layout.work):
        lines.append("    char unused; /* the step has no state */")
    lines += [
        "};",
        "",
        "/* Set the initial state. */",
        f"void {name}_reset(struct {name} *m);",
        "",
        "/* One step: reads the inputs, writes the outputs and the next state.",
        *[f"   {v.name:<12} {_described(v)}, read" for v in model.inputs],
        *[f"   {v.name:<12} {_described(v)}, written" for v in model.outputs],
        "*/",
        f"void {name}_step({_parameters(model, many=False)});",
        "",
        "/* So many steps: each input and output holds that of the first step, then that of the second, and so on. */",
        f"void {name}_run({_parameters(model, many=True)});",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _call(model: CModel, first: str) -> str:
    return ", ".join([first, *(value.name for value in (*model.inputs, *model.outputs))])


def source_of(model: CModel, header: str) -> str:
    """The text of the C file.

    header   the name of the header
    """
    constants = [line for text in _constants(model) for line in text]
    functions = [*_reset(model), "", *_step(model), "", *_run(model)]
    helpers = helpers_for("\n".join(functions))
    kernel = [f"   {in_comment(line)}" for line in model.kernel.text().splitlines()]
    head = [f"/* {header} says how this is used. What a step does:", "", *kernel, "*/"]
    includes = [f'#include "{header}"', "", "#include <math.h>", "#include <string.h>"]
    parts = ["\n".join([*head, "", *includes]), "\n".join(constants), helpers, "\n".join(functions)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _constants(model: CModel) -> Iterator[Iterator[str]]:
    for name, (matrix, value) in matrices_of(model).items():
        heads = f"{matrix.heads} of " if matrix.heads > 1 else ""
        origin = in_comment(model.origins[matrix.fixed])
        columns = f"{matrix.outer} columns in tiles of {TILE}"
        comment = f" /* {origin}: {heads}{matrix.inner} rows, {columns} */"
        yield _array(name, value, comment)
    names = StepLayout(model.kernel).names
    for buffer, value in arrays_of(model).items():
        yield _array(f"c_{names[buffer]}", value)
    for state, value in zip(model.states, model.initial, strict=True):
        if value.any():
            yield _array(f"initial_{state.name}", value)


def _reset(model: CModel) -> list[str]:
    lines = [f"void {model.name}_reset(struct {model.name} *m) {{"]
    for state, value in zip(model.states, model.initial, strict=True):
        if value.any():
            lines.append(f"    memcpy(m->{state.name}, initial_{state.name}, sizeof m->{state.name});")
        else:
            lines.append(f"    memset(m->{state.name}, 0, sizeof m->{state.name});")
    if model.counts_steps:
        lines.append("    m->steps[0] = 0;")
    return [*lines, *(["    (void)m;"] if len(lines) == 1 else []), "}"]


def _step(model: CModel) -> list[str]:
    kernel = model.kernel
    layout = StepLayout(kernel)
    writer = _StepWriter(model, layout)
    writer.emit(f"void {model.name}_step({_parameters(model, many=False)}) {{")
    for buffer, place in _pointers(model, layout):
        constant = "" if buffer.place in ("next", "scratch", "write") else "const "
        writer.emit(f"{constant}{TYPES[buffer.dtype]} *const {layout.names[buffer]} = {place};", 1)
    writer.blocks()
    for index, earlier in model.copies:
        target, source = model.outputs[index], model.outputs[earlier]
        writer.emit(f"memcpy({target.name}, {source.name}, {source.count} * sizeof *{source.name});", 1)
    for state in model.states:
        writer.emit(f"memcpy(m->{state.name}, m->next_{state.name}, sizeof m->{state.name});", 1)
    if model.counts_steps:
        writer.emit("m->steps[0]++;", 1)
    used = {buffer for block in kernel.blocks for buffer in touched(block)}
    idle = [model.inputs[i].name for i in range(len(model.inputs)) if not _is_read(model, i, used)]
    for name in idle + ([] if model.states or layout.work or model.counts_steps else ["m"]):
        writer.emit(f"(void){name};", 1)
    writer.emit("}")
    return writer.lines


def _is_read(model: CModel, index: int, used: set[Buffer]) -> bool:
    buffers = model.kernel.buffers["read"]
    return any(read == index and buffer in used for read, buffer in zip(model.reads, buffers, strict=True))


def _pointers(model: CModel, layout: StepLayout) -> Iterator[tuple[Buffer, str]]:
    """Each buffer in memory that a step uses, with the C text of its address."""
    buffers = model.kernel.buffers
    used = {buffer for block in model.kernel.blocks for buffer in touched(block)}
    places: dict[Buffer, str] = {}
    for state, buffer, following in zip(model.states, buffers["state"], buffers["next"], strict=True):
        places[buffer], places[following] = f"m->{state.name}", f"m->next_{state.name}"
    for read, buffer in zip(model.reads, buffers["read"], strict=True):
        places[buffer] = "m->steps" if read is None else model.inputs[read].name
    for write, buffer in zip(model.writes, buffers["write"], strict=True):
        places[buffer] = model.outputs[write].name
    for buffer in arrays_of(model):
        places[buffer] = f"c_{layout.names[buffer]}"
    for buffer, offset in layout.offsets.items():
        places[buffer] = f"m->work_{TYPES[buffer.dtype]}" + (f" + {offset}" if offset else "")
    yield from ((buffer, place) for buffer, place in places.items() if buffer in used)


def _run(model: CModel) -> list[str]:
    lines = [f"void {model.name}_run({_parameters(model, many=True)}) {{"]
    lines.append("    for (long step = 0; step < steps; step++)")
    ahead = [f"{value.name} + step * {value.count}" for value in (*model.inputs, *model.outputs)]
    lines.append(f"        {model.name}_step({', '.join(['m', *ahead])});")
    return [*lines, "}"]
