"""The C of a model, compiled by the machine's compiler and run beside the network.

Every step is compared from the network's own state: there a difference is an error of the step, not a rounding that
the recurrence has amplified. The whole example, run from its beginning, is compared as well.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.call.arguments import Call
from leporello.call.values import names_of
from leporello.engine.cpu.build import compile_c
from leporello.errors import EngineRefusal, ExportMismatch
from leporello.loop.graph import function_of
from leporello.loop.port import Role
from leporello.nets.export.c_model import CModel, Value
from leporello.rewrite.real_planes import planes_of

FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared")
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}  # of one step, relative to the largest value where above 1
AMPLIFIED = 8  # how much worse than the network's own rounding a step may be
MOST_STEPS, MOST_ROWS = 128, 8  # that are compared one by one


@dataclass(frozen=True)
class Sizes:
    """What a model takes.

    constants   bytes of weights and other constants
    code        bytes of code, as this machine's compiler makes it for size; None where that cannot be told
    struct      bytes of the struct
    stack       bytes of stack of one call, at most, without libm's; None where the compiler does not tell
    """

    constants: int
    code: int | None
    struct: int
    stack: int | None


class Compiled:
    """A model's C, compiled and loaded.

    folder   with the C file and its header
    """

    def __init__(self, model: CModel, folder: Path, file: str) -> None:
        self.model = model
        harness = folder / "harness.c"
        harness.write_text(_harness(model, file), encoding="utf-8")
        compile_c(harness, folder / "harness.so", FLAGS)
        self._library = ctypes.CDLL(str(folder / "harness.so"))
        self._library.harness_size.restype = ctypes.c_ulong
        self.size = int(self._library.harness_size())

    def memory(self) -> Any:
        """A struct, not yet reset."""
        return ctypes.create_string_buffer(self.size)

    def run(self, inputs: Sequence[Tensor], length: int, state: Sequence[Tensor] | None = None, begin: int = 0) -> Any:
        """Outputs, each [length, ...], and the state after them, of one row.

        inputs   each [length, ...], contiguous
        state    before the first step; None: that of a reset
        begin    the number of the first step
        """
        model, memory = self.model, self.memory()
        getattr(self._library, f"{model.name}_reset")(memory)
        if state is not None:
            self._library.harness_put(memory, _addresses(state), ctypes.c_long(begin))
        outputs = [torch.zeros((length, *value.shape), dtype=value.dtype) for value in model.outputs]
        pointers = [ctypes.c_void_p(value.data_ptr()) for value in (*inputs, *outputs)]
        getattr(self._library, f"{model.name}_run")(memory, ctypes.c_long(length), *pointers)
        after = [torch.zeros(value.shape, dtype=value.dtype) for value in model.states]
        self._library.harness_get(memory, _addresses(after))
        return outputs, after


def _addresses(values: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * max(1, len(values)))(*(value.data_ptr() for value in values))


def _harness(model: CModel, file: str) -> str:
    name = model.name
    put = "".join(f"    memcpy(m->{v.name}, leaves[{i}], sizeof m->{v.name});\n" for i, v in _leaves(model))
    get = "".join(f"    memcpy(leaves[{i}], m->{v.name}, sizeof m->{v.name});\n" for i, v in _leaves(model))
    steps = "    m->steps[0] = step;\n" if model.counts_steps else "    (void)step;\n"
    idle = "    (void)leaves, (void)m;\n"
    return (
        f'#include "{file}"\n'
        f"unsigned long harness_size(void) {{ return sizeof(struct {name}); }}\n"
        f"void harness_put(struct {name} *m, void *const *leaves, long step) {{\n{idle}{put}{steps}}}\n"
        f"void harness_get(struct {name} *m, void **leaves) {{\n{idle}{get}}}\n"
    )


def _leaves(model: CModel) -> list[tuple[int, Value]]:
    return [(index, value) for index, value in enumerate(model.states) if value.count]


# ---- comparing


@dataclass(frozen=True)
class Errors:
    """How far the C is from the network.

    step    the largest relative error of a single step from the network's own state; 1 and more below 1
    run     the largest absolute difference of outputs and final state when the example is run from its beginning
    """

    step: float
    run: float


def compared(
    compiled: Compiled, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor], final: Sequence[Tensor]
) -> Errors:
    """Run the C on the example and compare it with the network; raises where a step differs.

    inputs           of the call, [length, batch, ...] each
    outputs, final   what the network gives for it: [length, batch, ...], and the state [batch, ...]
    """
    model = compiled.model
    difference = 0.0
    for row in range(call.batch):
        got, after = compiled.run([value[:, row].contiguous() for value in inputs], call.length)
        for one, other in zip([*got, *after], [v[:, row] for v in outputs] + [v[row] for v in final], strict=True):
            difference = max(difference, _largest(one, other))
    return Errors(_compare_steps(compiled, call, inputs, TOLERANCE[model.kernel.dtype]), difference)


def _compare_steps(compiled: Compiled, call: Call, inputs: Sequence[Tensor], tolerance: float) -> float:
    """The largest relative error of a step; raises where it is above the tolerance."""
    model = compiled.model
    rows = min(call.batch, MOST_ROWS)
    exact = _step_function(model, torch.float64)
    step = _step_function(model, None)
    states = [value[None].expand(rows, *value.shape).contiguous() for value in model.initial]
    worst = 0.0
    for time in range(min(call.length, MOST_STEPS)):
        read = [value[time, :rows].contiguous() for value in inputs]
        outputs, after = step(rows, time, read, states)
        for row in range(rows):
            before = [value[row].contiguous() for value in states]
            got, next_state = compiled.run([value[row : row + 1].contiguous() for value in read], 1, before, time)
            pairs = zip([v[0] for v in got] + next_state, [*outputs, *after], strict=True)
            for index, (one, other) in enumerate(pairs):
                error = _relative(one, other[row])
                if error > tolerance and not _is_rounding(exact, time, read, states, index, row, one, other, tolerance):
                    raise _difference(model, index, time, row, one, other[row])
                worst = max(worst, min(error, tolerance))
        states = after
    return worst


def _difference(model: CModel, index: int, time: int, row: int, one: Tensor, other: Tensor) -> ExportMismatch:
    value = [*model.outputs, *model.states][index]
    return ExportMismatch(
        f"the C differs from the network in '{value.label}'.",
        cell=model.cell,
        came=f"a difference of {_largest(one, other):.3g} at step {time}, row {row}",
        expected="rounding errors",
        tries="please report it, with the cell: nothing was written",
    )


def _is_rounding(
    exact: Callable[..., Any] | None, time: int, read: Any, states: Any, index: int, row: int, one: Tensor,
    other: Tensor, tolerance: float,
) -> bool:  # fmt: skip
    """Whether a value differs no more than the network's own rounding makes it differ from the exact one."""
    if exact is None:
        return False
    try:
        outputs, after = exact(other.shape[0], time, read, states)
    except (RuntimeError, TypeError):
        return False
    best = [*outputs, *after][index][row]
    own = (other[row].double() - best.double()).abs()
    off = (one.double() - best.double()).abs()
    return bool((off <= AMPLIFIED * own + tolerance * best.abs().clamp(min=1)).all())


def _step_function(model: CModel, dtype: torch.dtype | None) -> Callable[..., Any]:
    """The Loop's step with torch's operators: (rows, time, inputs, states) -> outputs and next states.

    dtype   that floating-point numbers are converted to; None: as they are
    """
    loop = model.loop
    function = function_of(loop.graph)
    places = {value.label: index for index, value in enumerate(model.inputs)}
    slots = {value.label: index for index, value in enumerate(model.states)}
    invariants = {port.name: loop.invariant(port.name) for port in loop.inputs if port.kind == "invariant"}
    order = [port.name for port in loop.outputs if port.kind == "state"]

    def converted(value: Tensor) -> Tensor:
        return value if dtype is None or not value.is_floating_point() else value.to(dtype)

    def value_of(port: Any, rows: int, time: int, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        if port.kind == "state":
            return states[slots[port.name]]
        if port.role is Role.TIME:
            return torch.full((rows, 1), time)
        if port.kind == "sequence":
            return inputs[places[port.name]]
        value = invariants[port.name]
        assert value is not None
        return planes_of(value, 0) if port.planes and value.is_complex() else value

    def run(rows: int, time: int, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> Any:
        with torch.no_grad():
            values = [converted(value_of(port, rows, time, inputs, states).detach()) for port in loop.inputs]
            results = dict(zip([port.key for port in loop.outputs], function(rows, *values), strict=True))
        outputs = [results["sequence", value.label].contiguous() for value in model.outputs]
        after = [results["state", name].contiguous() for name in order]
        return outputs, [after[order.index(value.label)] for value in model.states]

    return run


def _difference_of(one: Tensor, other: Tensor) -> Tensor:
    """The absolute difference, 0 where both are the same, NaN and infinities too."""
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    return (one - other).abs().nan_to_num(nan=float("inf")).masked_fill(same, 0)


def _largest(one: Tensor, other: Tensor) -> float:
    return float(_difference_of(one, other).max()) if one.numel() else 0.0


def _relative(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest finite value where that is above 1."""
    finite = other.double().nan_to_num(nan=0, posinf=0, neginf=0)
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return _largest(one, other) / scale


def results_of(model: CModel, call: Call, outputs: Sequence[Tensor], states: Sequence[Tensor]) -> Any:
    """What a network gives, in the model's order and with complex numbers as planes.

    outputs   leaves, [length, batch, ...]
    states    leaves of the final state, in the call's order, rows first
    """
    _, names = names_of(call)
    by_name = dict(zip(names, states, strict=True))
    given = [planes_of(v, 2) if of.planes else v for of, v in zip(model.outputs, outputs, strict=True)]
    return given, [planes_of(by_name[v.label], 1) if v.planes else by_name[v.label] for v in model.states]


# ---- sizes


def sizes_of(compiled: Compiled, folder: Path, file: str, constants: int) -> Sizes:
    """What the model takes on this machine, compiled for size."""
    code, stack = None, None
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "model.o"
        try:
            compile_c(folder / file, built, ("-std=c99", "-Os", "-c", "-fstack-usage"))
        except EngineRefusal:  # a compiler without that flag
            compile_c(folder / file, built, ("-std=c99", "-Os", "-c"))
        usage = built.with_suffix(".su")
        if usage.exists():
            stack = sum(int(line.split("\t")[1]) for line in usage.read_text().splitlines() if "\t" in line)
        size = shutil.which("size")
        if size is not None:
            shown = subprocess.run([size, str(built)], capture_output=True, text=True, check=False).stdout.split("\n")
            if len(shown) > 1 and shown[0].split()[:2] == ["text", "data"]:
                text, data = map(int, shown[1].split()[:2])
                code = max(0, text + data - constants)
    return Sizes(constants, code, compiled.size, stack)
