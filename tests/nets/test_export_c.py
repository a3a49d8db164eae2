"""Networks as C: the same numbers as in Python, no warning, no sanitizer's complaint, refusals with the user's line."""

from __future__ import annotations

import ctypes
import ctypes.util
import random
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.build import compiler
from leporello.kernel.operators import OPERATORS
from leporello.nets.export import c_dialect
from leporello.nets.export.c_export import CReport
from tests.cells.examples import EXAMPLES
from tests.engine.steps import REFUSED
from tests.laws.calls import case_of, tensors_of
from tests.nets.twins import quickly
from tests.random_cells import cell_of
from tests.random_programs import SIZE, Numbers

FEW = ("Elman", "LSTM", "LayerNormLSTM", "LIF", "TimeDelay")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c99")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class Timed(lp.Cell):
    """It reads its step's number and class indices, and keeps counts as integers."""

    def __init__(self) -> None:
        super().__init__(h=5, n=1)
        self.E, self.W = nn.Embedding(7, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, n = state
        h = torch.tanh(self.W(h) + self.E(x) + torch.sin(lp.time() * 0.3))
        return h.topk(2, -1).values, (h, n + (h.argmax(-1, keepdim=True) == 2))


class Oscillator(lp.Cell):
    """Without inputs, with a state that starts away from zero."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.turn = nn.Parameter(torch.tensor([[0.8, 0.6], [-0.6, 0.8]]))

    def forward(self, x: None, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h @ self.turn.T
        return h[:, :1], h


NETS: dict[str, Any] = {
    "stack": lambda: lp.Recurrent(lp.Stack(lp.GRU(3, 7), lp.LSTM(7, 5))),
    "layers": lambda: lp.Layers(lp.Recurrent(lp.GRU(3, 7)), lp.Recurrent(lp.LSTM(7, 5))),
    "feedback": lambda: lp.Recurrent(lp.Feedback(lp.LSTM(3 + 4, 4))),
    "summary": lambda: lp.Summary(lp.LSTM(3, 9), nn.Linear(9, 2)),
    "a cell": lambda: lp.GRU(3, 17),
    "batch first": lambda: lp.Recurrent(lp.GRU(3, 8), batch_first=True),
    "double": lambda: lp.Recurrent(lp.GRU(3, 9).double()),
    "learned initial state": lambda: lp.Recurrent(_learned()),
}


def _learned() -> lp.Cell:
    class Learned(lp.Elman):
        def __init__(self) -> None:
            super().__init__(3, 4, 2)
            self.h0 = nn.Parameter(torch.randn(4))

        def initial_state(self, batch: int, **options: Any) -> Tensor:
            return self.h0.expand(batch, 4)

    return Learned()


def inputs_for(net: nn.Module, length: int = 11, batch: int = 3) -> Tensor:
    torch.manual_seed(1)
    first = next(net.parameters(), torch.zeros(()))
    return torch.randn(length, batch, 3, dtype=first.dtype)


def exported(net: Any, folder: Path, example: Any, name: str = "model.c", **options: Any) -> CReport:
    report = lp.export(net, folder / name, example=example, **options)
    assert isinstance(report, CReport)
    assert report.ok
    compiled_without_warnings(folder / name)
    return report


def compiled_without_warnings(file: Path) -> None:
    run = subprocess.run(
        [str(compiler()), *WARNINGS, "-c", "-o", "/dev/null", str(file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def run_by_a_program(folder: Path, inputs: Tensor, numbers: int, flags: tuple[str, ...] = ("-O2",)) -> list[float]:
    """What a C program of a user's gives for float inputs [length, features]: so many numbers at each step."""
    length, features = inputs.shape
    numbers_in = ", ".join(f"{value!r}f" for value in inputs.flatten().tolist())
    (folder / "main.c").write_text(
        '#include "model.h"\n#include <stdio.h>\n'
        f"static const float in[] = {{{numbers_in}}};\nstatic struct model m;\n"
        "int main(void) {\n"
        f"    float out[{numbers}], all[{numbers * length}];\n    model_reset(&m);\n"
        f"    for (int t = 0; t < {length}; t++) {{\n        model_step(&m, in + t * {features}, out);\n"
        f"        fwrite(out, sizeof out, 1, stdout);\n    }}\n    model_reset(&m);\n"
        f"    model_run(&m, {length}, in, all);\n    fwrite(all, sizeof all, 1, stdout);\n    return 0;\n}}\n"
    )
    program = folder / "program"
    sources = [str(folder / "main.c"), str(folder / "model.c")]
    subprocess.run([str(compiler()), *flags, "-o", str(program), *sources, "-lm"], check=True)
    run = subprocess.run([str(program)], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return list(struct.unpack(f"{len(run.stdout) // 4}f", run.stdout))


@pytest.mark.parametrize("name", quickly(EXAMPLES, *FEW))
def test_built_in_cells(name: str, tmp_path: Path) -> None:
    net = lp.Recurrent(EXAMPLES[name]().eval())
    report = exported(net, tmp_path, inputs_for(net))
    assert report.largest_error < 1e-5
    assert report.files == (tmp_path / "model.c", tmp_path / "model.h")


@pytest.mark.parametrize("name", quickly(NETS, "stack", "layers", "feedback", "learned initial state"))
def test_networks(name: str, tmp_path: Path) -> None:
    net = NETS[name]()
    assert exported(net, tmp_path, inputs_for(net)).largest_error < 1e-5


@pytest.mark.parametrize(("length", "batch"), [(1, 1), (7, 1), (1, 3)])
def test_one_step_and_one_row(length: int, batch: int, tmp_path: Path) -> None:
    exported(lp.Recurrent(lp.GRU(3, 5)), tmp_path, torch.randn(length, batch, 3))


def test_indices_the_time_and_integer_states(tmp_path: Path) -> None:
    net = lp.Recurrent(Timed())
    exported(net, tmp_path, torch.randint(0, 7, (9, 3)))
    header = (tmp_path / "model.h").read_text()
    assert "const int64_t *x" in header
    assert "int64_t steps[1]" in header


def test_a_system_without_inputs(tmp_path: Path) -> None:
    net = lp.Recurrent(Oscillator())
    report = exported(net, tmp_path, None, state=torch.tensor([[1.0, 0.5]]), steps=31)
    assert report.largest_error < 1e-4
    assert "initial_h[2] = {\n    1.0f, 0.5f,\n}" in (tmp_path / "model.c").read_text()


def random_case(seed: int) -> Any:
    case = case_of(Numbers(random.Random(seed).randbytes(SIZE + 10)), draws=False)
    plain = replace(case.arguments, state=False, lengths=False, resets=False, forcing="")
    return replace(case, arguments=plain)


@pytest.mark.parametrize("seed", quickly(range(50), *range(5)))
def test_random_cells(seed: int, tmp_path: Path) -> None:
    case = random_case(seed)
    cell = cell_of(case.program)
    inputs = tensors_of(case, cell).inputs
    options = {} if case.program.inputs else {"steps": case.arguments.length}
    exported(lp.Recurrent(cell), tmp_path, inputs, **options)


@pytest.mark.parametrize(
    "name",
    quickly(
        ["LSTM", "LIF", "LayerNormLSTM"],
        "LSTM",
    ),
)
def test_a_program_gives_what_the_network_gives(name: str, tmp_path: Path) -> None:
    net = lp.Recurrent(EXAMPLES[name]())
    inputs = inputs_for(net, batch=1)
    exported(net, tmp_path, inputs)
    with torch.no_grad():
        wanted = net(inputs)[0].flatten()
    given = torch.tensor(run_by_a_program(tmp_path, inputs[:, 0], wanted.numel() // len(inputs)))
    torch.testing.assert_close(given, torch.cat([wanted, wanted]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    quickly(
        ["LSTM", "LIF", "stack", "feedback", "a cell"],
        "stack",
    ),
)
def test_sanitizers_have_nothing_to_say(name: str, tmp_path: Path) -> None:
    net = NETS[name]() if name in NETS else lp.Recurrent(EXAMPLES[name]())
    inputs = inputs_for(net, batch=1)
    exported(net, tmp_path, inputs)
    numbers = int(re.findall(r"_OUTPUT_\w+ (\d+)", (tmp_path / "model.h").read_text())[0])
    given = run_by_a_program(tmp_path, inputs[:, 0], numbers, SANITIZERS)
    assert len(given) == 2 * numbers * len(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_sanitizers_have_nothing_to_say_of_random_cells(seed: int, tmp_path: Path) -> None:
    case = random_case(seed)
    cell = cell_of(case.program)
    inputs = tensors_of(case, cell).inputs
    options = {} if case.program.inputs else {"steps": case.arguments.length}
    report = exported(lp.Recurrent(cell), tmp_path, inputs, **options)
    (tmp_path / "main.c").write_text(_program_with_zeros((tmp_path / "model.h").read_text()))
    sources = [str(tmp_path / "main.c"), str(report.files[0])]
    program = str(tmp_path / "program")
    subprocess.run([str(compiler()), *SANITIZERS, "-o", program, *sources, "-lm"], check=True)
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def _program_with_zeros(header: str) -> str:
    """A program that runs two steps on zeros."""
    declared = re.search(r"void model_run\(struct model \*m, long steps,? ?(.*)\);", header)
    assert declared is not None
    arrays, names = [], []
    for parameter in filter(None, declared[1].split(", ")):
        kind, name = parameter.removeprefix("const ").split(" *")
        size = re.search(rf"#define MODEL_(?:INPUT|OUTPUT)_{name.upper()} (\d+)", header)
        assert size is not None
        arrays.append(f"static {kind} v{name}[{2 * max(1, int(size[1]))}];")
        names.append(f"v{name}")
    calls = ", ".join(["&m", "2", *names])
    lines = ['#include "model.h"', "static struct model m;", *arrays]
    return "\n".join([*lines, f"int main(void) {{ model_reset(&m); model_run(&m, {calls[4:]}); return 0; }}"]) + "\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_every_operator_has_a_portable_spelling(dtype: torch.dtype) -> None:
    for name, operator in OPERATORS.items():
        if operator.reduction or not (operator.floats if dtype.is_floating_point else operator.integers):
            continue
        pattern = c_dialect.C99.pattern(name, dtype)
        assert pattern is not None, name
        letter, ending = ("d", "") if dtype == torch.float64 else ("f", "f")
        text = pattern.format("a", "b", "c", s=letter, m=ending, t="float")
        assert "__builtin" not in text, name
        for function in re.findall(r"[a-z_0-9]+(?=\()", text):
            in_libm = hasattr(ctypes.CDLL(ctypes.util.find_library("m")), function)
            macro = function in ("isinf", "isnan", "signbit", "float")
            assert in_libm or macro or function in c_dialect.helpers_for(text), (name, function)


def test_the_header_is_readable_by_cpp(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.fail("a C++ compiler is needed: apt install g++")
    exported(lp.Recurrent(lp.LSTM(3, 4)), tmp_path, torch.randn(5, 2, 3))
    (tmp_path / "main.cpp").write_text('#include "model.h"\nint size() { return sizeof(struct model); }\n')
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "-o", "/dev/null"]
    subprocess.run(["c++", *flags, str(tmp_path / "main.cpp")], check=True)


def test_names_come_from_the_file_and_from_the_cell(tmp_path: Path) -> None:
    exported(lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 5))), tmp_path, torch.randn(3, 2, 3), name="2nd odd-name.c")
    header = (tmp_path / "2nd odd-name.h").read_text()
    assert "void x_2nd_odd_name_step(struct x_2nd_odd_name *m, const float *x, float *" in header
    assert "#define X_2ND_ODD_NAME_STATE_X_0_H 4" in header
    assert "'1.h' of the cell" in header


class Names(lp.Cell):
    """Names that C keeps for itself, and names that differ in capitals alone."""

    def __init__(self) -> None:
        super().__init__(int=3, h=3, H=3, next_h=3)

    def forward(self, x: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        i, h, g, n = state
        h, g, n = torch.tanh(h + x["double"]), torch.relu(g - x["x"]), n + torch.exp(-x["v_x"])
        outputs = {"tanhf": h * g, "struct": i + h, "STRUCT": g, "é": n, "best": n.argmax(-1), "m": h.amax(-1)}
        return outputs, (torch.softmax(i + n, -1), h, g, n)


def test_names_that_c_keeps_for_itself(tmp_path: Path) -> None:
    inputs = {name: torch.randn(5, 2, 3) for name in ("double", "x", "v_x")}
    exported(lp.Recurrent(Names()), tmp_path, inputs, name="int.c")
    header = (tmp_path / "int.h").read_text()
    macros = re.findall(r"#define (INT__\w+) ", header)
    assert len(macros) == len(set(macros)) == 3 + 6 + 4


def test_rounding_that_the_recurrence_amplifies_is_no_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.RNN(3, 40))
    with torch.no_grad():
        net.cell.W *= 30  # chaotic
    report = exported(net, tmp_path, torch.randn(300, 2, 3))
    assert report.largest_error > 0.1
    assert report.step_error < report.tolerance
    assert "the recurrence amplifies rounding" in str(report)


def test_the_same_network_gives_the_same_text(tmp_path: Path) -> None:
    net = lp.Recurrent(lp.LSTM(3, 9))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        exported(net, tmp_path / folder, torch.randn(5, 2, 3))
    for file in ("model.c", "model.h"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_report_counts_bytes_and_operations(tmp_path: Path) -> None:
    report = exported(lp.Recurrent(lp.RNN(3, 11)), tmp_path, torch.randn(5, 2, 3))
    numbers = 3 * 11 + 11 * 11 + 2 * 11
    assert report.sizes.constants == 4 * numbers + 4 * 11  # with the initial state
    assert report.sizes.struct == 4 * (2 * 11 + 2 * 11)  # the state, the next state, two products
    assert report.work.multiply_adds == 3 * 11 + 11 * 11
    assert report.work.functions == 11
    assert report.sizes.code is not None
    assert 100 < report.sizes.code < 4000
    assert f"{report.flash_bytes:,} bytes" in str(report)


def test_a_wrong_step_is_refused_and_nothing_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    wrong = c_dialect._OF_REALS["product"].replace("k < inner; k++, w += 8", "k < inner - 1; k++, w += 8")
    monkeypatch.setitem(c_dialect._OF_REALS, "product", wrong)
    net = lp.Recurrent(lp.GRU(3, 8))
    with pytest.raises(lp.errors.ExportMismatch, match="the C differs from the network in 'o'") as caught:
        lp.export(net, tmp_path / "model.c", example=torch.randn(5, 2, 3))
    assert "at step 0, row 0" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_c_cannot_hold_is_refused_with_the_line(tmp_path: Path) -> None:
    class Noisy(lp.Cell):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h + x + torch.randn_like(h))
            return h, h

    with pytest.raises(lp.errors.EngineRefusal, match="draws random numbers") as caught:
        lp.export(lp.Recurrent(Noisy(h=3)), tmp_path / "model.c", example=torch.zeros(5, 2, 3))
    assert "h = torch.tanh(h + x + torch.randn_like(h))" in str(caught.value)

    class Odd(lp.Cell):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = REFUSED["erfinv"](x, h, None)
            return h, h

    with pytest.raises(lp.errors.EngineRefusal, match=r"erfinv .* is not covered") as caught:
        lp.export(lp.Recurrent(Odd(h=3)), tmp_path / "model.c", example=torch.zeros(5, 2, 3))
    assert "test_export_c.py" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_no_step_is_refused(tmp_path: Path) -> None:
    both = lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4))
    for net, match in [
        (both, "reads a sequence from its end"),
        (lp.Layers(both, lp.Recurrent(lp.GRU(8, 4))), "Bidirectional reads a sequence from its end"),
        (nn.Linear(3, 4), "is no network that is a step"),
    ]:
        with pytest.raises(lp.errors.ArgumentError, match=match):
            lp.export(net, tmp_path / "model.c", example=torch.zeros(5, 2, 3))
    net = lp.Recurrent(lp.GRU(3, 4))
    with pytest.raises(lp.errors.ArgumentError, match="'path' names no format"):
        lp.export(net, tmp_path / "model.cc", example=torch.zeros(5, 2, 3))
    with pytest.raises(lp.errors.ArgumentError, match="has no option 'quantize'"):
        lp.export(net, tmp_path / "model.c", example=torch.zeros(5, 2, 3), quantize="int8")
    with pytest.raises(lp.errors.ArgumentError, match="not the same for all rows"):
        lp.export(net, tmp_path / "model.c", example=torch.zeros(5, 2, 3), state=torch.randn(2, 4))
