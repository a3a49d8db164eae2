"""Networks as ONNX files: onnxruntime gives what torch gives, for any length and batch; what ONNX lacks is refused."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import MissingPackage
from leporello.nets.export import onnx_check, onnx_loop
from leporello.nets.export.onnx_export import OnnxReport
from leporello.nets.export.onnx_operators import OPERATORS
from tests.cells.examples import EXAMPLES, shaken
from tests.nets.test_export_c import Oscillator
from tests.nets.twins import quickly
from tests.random_cells import cell_of, packed
from tests.random_programs import SIZE, Numbers, program_of

FEW = ("GRU", "LayerNormLSTM", "TimeDelay")
ALL_ASKED = {"lengths": True, "resets": True, "state": True}


def exported(net: nn.Module, folder: Path, **arguments: Any) -> OnnxReport:
    report = lp.export(net, folder / "model.onnx", **arguments)
    assert isinstance(report, OnnxReport)
    assert report.ok
    return report


def run(folder: Path, **inputs: Tensor) -> dict[str, Tensor]:
    """What a program without this library sees of the file."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    values = {name.replace("__", "."): value.detach().numpy() for name, value in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(names, values)), strict=True))


class Reading(lp.Cell):
    """It reads a dict with class indices, its step's number and a constant; one of its outputs is None."""

    def __init__(self) -> None:
        super().__init__(h=5, n=1, learned=True)
        self.E, self.W = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.register_buffer("scale", torch.linspace(0.1, 1, 5))
        nn.init.normal_(self.initial["h"])

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        h = torch.tanh(self.W(state.h) + self.E(x["word"]) + x["value"] * self.scale + torch.sin(lp.time() * 0.3))
        return {"h": h.topk(2, -1).values, "none": None}, (h, state.n + (h.argmax(-1, keepdim=True) == 2))


class Spinning(lp.Cell):
    """Complex numbers within the step."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.angle = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.complex(h, x) * torch.polar(torch.ones(3), self.angle)
        return z.imag, torch.tanh(z.real)


@pytest.mark.parametrize("name", quickly(EXAMPLES, *FEW))
@pytest.mark.parametrize("asked", [{}, ALL_ASKED], ids=["plain", "all asked"])
def test_every_cell_is_the_same_in_onnx(name: str, asked: dict[str, bool], tmp_path: Path) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float())
    exported(net, tmp_path, example=torch.randn(5, 2, net.cell.inputs), **asked)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "stack": lambda: (lp.Recurrent(lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 5))), torch.randn(7, 3, 3)),
    "feedback": lambda: (lp.Recurrent(lp.Feedback(lp.LSTM(7, 4), torch.tanh)), torch.randn(7, 3, 3)),
    "of torch": lambda: (lp.from_torch(nn.LSTM(3, 4, 2)), torch.randn(7, 3, 3)),
    "batch first": lambda: (lp.Recurrent(lp.LSTM(3, 4), batch_first=True), torch.randn(3, 7, 3)),
    "bidirectional": lambda: (lp.Bidirectional(lp.LSTM(3, 4), lp.GRU(3, 5)), torch.randn(7, 3, 3)),
    "bidirectional, batch first": lambda: (
        lp.Bidirectional(lp.LSTM(3, 4), lp.GRU(3, 5), batch_first=True),
        torch.randn(3, 7, 3),
    ),
    "layers": lambda: (
        lp.Layers(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), lp.Recurrent(lp.LSTM(8, 3))),
        torch.randn(7, 3, 3),
    ),
    "summary": lambda: (lp.Summary(lp.LSTM(3, 4), nn.Linear(4, 2)), torch.randn(7, 3, 3)),
    "summary of an output": lambda: (
        lp.Summary(lp.Elman(3, 4, 5), nn.Sequential(nn.Linear(5, 2), nn.LogSoftmax(-1)), batch_first=True),
        torch.randn(3, 7, 3),
    ),
    "summary of a state": lambda: (
        lp.Summary(lp.LSTM(3, 4), lambda state: state.c * 2, reads="state"),
        torch.randn(7, 3, 3),
    ),
    "summary of both ends": lambda: (
        lp.Summary(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), nn.Linear(8, 2)),
        torch.randn(7, 3, 3),
    ),
    "summary of layers": lambda: (
        lp.Summary(
            lp.Layers(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), lp.Bidirectional(lp.GRU(8, 4), lp.LSTM(8, 4))),
            nn.Linear(8, 2),
        ),
        torch.randn(7, 3, 3),
    ),
}


@pytest.mark.parametrize("name", quickly(NETWORKS, "bidirectional, batch first", "summary of an output"))
@pytest.mark.parametrize("asked", [{}, ALL_ASKED], ids=["plain", "all asked"])
def test_every_network_is_the_same_in_onnx(name: str, asked: dict[str, bool], tmp_path: Path) -> None:
    net, inputs = NETWORKS[name]()
    exported(net, tmp_path, example=inputs, **asked)


@pytest.mark.parametrize("seed", quickly(range(50), *range(5)))
def test_random_cells_are_the_same_in_onnx(seed: int, tmp_path: Path) -> None:
    program = program_of(Numbers(random.Random(seed).randbytes(SIZE)), draws=False, without=("solved",))
    net = lp.Recurrent(cell_of(program).float())
    leaves = [
        torch.randint(5, (4, 3)) if shape is None else torch.randn(4, 3, *shape) for shape in program.inputs.values()
    ]
    asked: dict[str, Any] = {"state": bool(program.states), "lengths": seed % 2 == 0, "resets": seed % 3 == 0}
    if not leaves:
        asked |= {"steps": 4, "state": True}
    if not program.outputs and not program.states:
        assert "no outputs" in refused(net, tmp_path, example=packed(program.form, leaves), **asked).what
    else:
        exported(net, tmp_path, example=packed(program.form, leaves), **asked)


def test_a_file_is_for_any_length_and_batch(tmp_path: Path) -> None:
    net = lp.Recurrent(lp.GRU(3, 5))
    exported(net, tmp_path, example=torch.randn(1, 1, 3))
    for length, batch in [(1, 1), (63, 1), (2, 7)]:
        inputs = torch.randn(length, batch, 3)
        torch.testing.assert_close(run(tmp_path, inputs=inputs)["outputs"], net(inputs)[0], rtol=1e-4, atol=1e-5)


def test_lengths_resets_and_states_are_inputs_where_asked(tmp_path: Path) -> None:
    net = lp.Bidirectional(lp.LSTM(3, 5), lp.LSTM(3, 2))
    report = exported(net, tmp_path, example=torch.randn(5, 2, 3), **ALL_ASKED)
    assert report.inputs == {
        "inputs": "float [length, batch, 3]",
        "state0.h": "float [batch, 5]",
        "state0.c": "float [batch, 5]",
        "state1.h": "float [batch, 2]",
        "state1.c": "float [batch, 2]",
        "lengths": "int64 [batch]",
        "resets": "bool [length, batch]",
    }
    inputs, lengths, resets = torch.randn(7, 3, 3), torch.tensor([7, 1, 4]), torch.rand(7, 3) < 0.3
    state = net(torch.randn(2, 3, 3))[1]
    wanted, final = net(inputs, state, lengths=lengths, resets=resets)
    leaves = {f"state{way}__{name}": getattr(state[way], name) for way in (0, 1) for name in "hc"}
    found = run(tmp_path, inputs=inputs, lengths=lengths, resets=resets, **leaves)
    torch.testing.assert_close(found["outputs"], wanted)
    torch.testing.assert_close(found["final_state1.c"], final[1].c)
    assert list(found) == ["outputs", *(f"final_state{way}.{name}" for way in (0, 1) for name in "hc")]


def test_trees_class_indices_step_numbers_and_learned_states_are_exported(tmp_path: Path) -> None:
    example = {"value": torch.randn(6, 2, 1), "word": torch.randint(7, (6, 2))}
    report = exported(lp.Recurrent(Reading()), tmp_path, example=example, **ALL_ASKED)
    assert list(report.inputs)[:2] == ["inputs.value", "inputs.word"]
    assert next(iter(report.outputs)) == "outputs.h"


def test_a_system_without_inputs_has_the_input_steps(tmp_path: Path) -> None:
    report = exported(lp.Recurrent(Oscillator()), tmp_path, steps=5, state=torch.randn(2, 2))
    assert report.inputs == {"state": "float [batch, 2]", "steps": "int64 []"}
    found = run(tmp_path, state=torch.eye(2)[:1], steps=torch.tensor(2))
    torch.testing.assert_close(found["outputs"].flatten(), torch.tensor([0.8, 0.28]))


def test_complex_numbers_within_a_step_are_exported_as_real_ones(tmp_path: Path) -> None:
    exported(lp.Recurrent(Spinning()), tmp_path, example=torch.randn(5, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_floats_are_exported(dtype: torch.dtype, tmp_path: Path) -> None:
    net = lp.Recurrent(lp.LayerNormLSTM(3, 5)).to(dtype)
    report = exported(net, tmp_path, example=torch.randn(5, 2, 3, dtype=dtype))
    assert report.tolerance == onnx_check.TOLERANCE[dtype]


def test_products_of_inputs_and_outputs_stand_outside_the_scan(tmp_path: Path) -> None:
    exported(lp.Recurrent(lp.Elman(3, 5, 2)), tmp_path, example=torch.randn(5, 2, 3))
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    (scan,) = [node for node in graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    products = {"MatMul", "Gemm"}
    assert [node.op_type in products for node in graph.node].count(True) == 2
    assert [node.op_type in products for node in body.node].count(True) == 1
    assert {"cell.U", "cell.W", "cell.V"} <= {constant.name for constant in graph.initializer}


def test_the_report_says_what_was_compared(tmp_path: Path) -> None:
    report = exported(lp.Recurrent(lp.GRU(3, 4)), tmp_path, example=torch.randn(5, 2, 3))
    assert len(report.trials) == 5
    assert report.trials[:2] == ("length 5, batch 2", "length 1, batch 1")
    assert 0 < report.largest_error < report.tolerance == 1e-4
    text = str(report)
    assert "opset 18" in text
    assert "float [length, batch, 3]" in text
    assert "length 8, batch 4" in text


def test_a_difference_raises_and_keeps_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("kept")
    wrong = {**onnx_loop.RULES, "tanh": OPERATORS["sigmoid"]}
    monkeypatch.setattr(onnx_loop, "RULES", wrong)
    with pytest.raises(lp.errors.ExportMismatch, match="the file's 'outputs' differs from the network's") as caught:
        lp.export(lp.Recurrent(lp.GRU(3, 4)), path, example=torch.randn(5, 2, 3))
    assert caught.value.details["call"] == "length 5, batch 2"
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


# ---- refusals


def refused(net: nn.Module, folder: Path, **arguments: Any) -> lp.errors.LeporelloError:
    arguments = {"example": torch.randn(5, 2, 4), **arguments}
    with pytest.raises(lp.errors.LeporelloError) as caught:
        lp.export(net, folder / "model.onnx", **arguments)
    assert not list(folder.iterdir())
    return caught.value


def test_an_operator_that_onnx_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    def solving(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        matrix = 3 * torch.eye(4) + h.unsqueeze(-1) * h.unsqueeze(-2)
        h = torch.linalg.solve(matrix, (h + x).unsqueeze(-1)).squeeze(-1)
        return h, h

    error = refused(lp.Recurrent(solving), tmp_path, state=torch.zeros(2, 4))
    assert "aten._linalg_solve_ex.default cannot be exported to ONNX" in error.what
    assert "torch.linalg.solve(matrix" in error.details["line"]


def test_an_operator_that_onnxruntime_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    def bent(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.erf(h + x)
        return h, h

    state = torch.zeros(2, 4, dtype=torch.float64)
    error = refused(lp.Recurrent(bent), tmp_path, example=torch.randn(5, 2, 4).double(), state=state)
    assert "torch.erf(h + x)" in error.details["line"]
    assert "Erf" in error.details["says"]
    assert error.details["tries"] == "lp.export(net.float(), ...)"


def test_random_draws_are_refused_in_train_and_vanish_in_eval(tmp_path: Path) -> None:
    net = lp.Recurrent(lp.Leaky(4, 3, 2, alpha=0.1, noise=0.1))
    error = refused(net, tmp_path)
    assert "draws random numbers" in error.what
    assert "torch.randn_like(h)" in error.details["line"]
    exported(net.eval(), tmp_path, example=torch.randn(5, 2, 4))


def test_dropout_between_layers_is_refused_in_train(tmp_path: Path) -> None:
    net = lp.Layers(lp.Recurrent(lp.GRU(4, 3)), lp.Recurrent(lp.GRU(3, 3)), dropout=0.5)
    assert "dropout between the layers" in refused(net, tmp_path).what
    exported(net.eval(), tmp_path, example=torch.randn(5, 2, 4))


class Starting(lp.Cell):
    """It begins with random numbers."""

    def __init__(self) -> None:
        super().__init__(h=4)

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.randn(batch, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + x)
        return h, h


def test_an_initial_state_that_changes_is_refused_unless_it_is_an_input(tmp_path: Path) -> None:
    assert "the initial state 'h' is not the same" in refused(lp.Recurrent(Starting()), tmp_path).what
    exported(lp.Recurrent(Starting()), tmp_path, example=torch.randn(5, 2, 4), state=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"net": lp.GRU(4, 3)}, "cannot be exported"),
        ({"net": nn.Linear(4, 3)}, "cannot be exported"),
        ({"example": torch.randn(5, 2, 3)}, "wrong number of features"),
        ({"example": torch.randn(4)}, "too few axes"),
        ({"example": None}, "no inputs that say how long"),
        ({"net": lp.Recurrent(lp.GRU(4, 3), batch_axis=0), "state": True}, "batch_axis"),
        ({"sizes": 3}, "has no option 'sizes'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    net = arguments.get("net", lp.Recurrent(lp.GRU(4, 3)))
    others = {name: value for name, value in arguments.items() if name != "net"}
    assert words in str(refused(net, tmp_path, **others))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"(?s)needs the package {package}\..*pip install 'leporello\[export\]'"):
        lp.export(lp.Recurrent(lp.GRU(3, 4)), tmp_path / "model.onnx", example=torch.randn(5, 2, 3))


# ---- every row of the tables


def test_numbers_that_are_not_finite_stay_what_they_are(tmp_path: Path) -> None:
    def limits(x: Tensor, state: tuple[()]) -> tuple[Any, tuple[()]]:
        return (x.tanh(), x.sigmoid(), torch.log1p(x.abs()), F_SOFTPLUS(x), x.clamp(-1, 1), x.isnan(), x > 0), state

    values = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-30, -1e-8, 100.0, -100.0])
    exported(lp.Recurrent(limits), tmp_path, example=values.reshape(3, 3, 1), state=())
    assert numpy.isnan(run(tmp_path, inputs=values.reshape(9, 1, 1))["outputs0"][2].numpy()).all()


F_SOFTPLUS = nn.functional.softplus
