"""The suite `gpu`: its cases and promises, and what it does on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import agreement, machine, turns
from benchmarks.cases import FORWARD, TRAINING, Case
from benchmarks.contestants import Eager, Engine
from benchmarks.sizes import Size
from benchmarks.suites import gpu
from benchmarks.tasks import Sweep
from benchmarks.turns import Settings

ONCE = Settings(rounds=1)
SIZE = Size(5, 2, 3, 7)


@pytest.fixture
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both contestants and their clocks as they are without a GPU."""
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(gpu, "OURS", Engine("stepwise", "gpu"))
    monkeypatch.setattr(gpu, "device_seconds_of", turns.seconds_of)
    monkeypatch.setattr(gpu, "host_seconds_of", turns.seconds_of)


def made(what: str = TRAINING, dtype: torch.dtype = torch.float32, cell: str = "GRU") -> Case:
    return Case(cell, SIZE, what, dtype)


def test_three_cells_stand_on_six_sizes_in_three_dtypes_both_ways() -> None:
    cases = [case for case in gpu.SUITE.cases if case.what != gpu.HOST]
    assert len(cases) == 3 * 6 * 3 * 2
    assert {str(case.size) for case in cases} == {
        "1024x16x64x64",
        "1024x16x256x256",
        "1024x16x768x768",
        "1024x16x1024x1024",
        "512x64x512x512",
        "256x128x1024x1024",
    }
    assert {case.device for case in gpu.SUITE.cases} == {"cuda"}
    assert {case.dtype for case in cases} == set(gpu.TOLERANCES)


@pytest.mark.parametrize(
    ("dtype", "mean", "smallest"), [("bfloat16", 12.0, 1.5), ("float16", 2.5, 1.1), ("float32", 4.0, 0.9)]
)
def test_each_dtype_has_two_promises_of_eighteen_cases(dtype: str, mean: float, smallest: float) -> None:
    own = [p for p in gpu.SUITE.promises if p.name.startswith(dtype) and p.least is not None]
    assert [(p.gather, p.least) for p in own] == [("geometric mean", mean), ("smallest", smallest)]
    for promise in own:
        cases = [case for case in gpu.SUITE.cases if promise.of(case)]
        assert len(cases) == 18
        assert {(case.dtype_name, case.what) for case in cases} == {(dtype, TRAINING)}


def test_without_a_gpu_a_line_says_so_and_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--suite", "gpu"]) == 0
    line, _, last = capsys.readouterr().out.splitlines()
    assert line == "gpu: needs a GPU that torch can use, and there is none: nothing is measured"
    told = json.loads(last)["suites"]["gpu"]
    assert told == {"cases": [], "summaries": [], "notes": [gpu.lacks()]}


def test_dtypes_are_chosen_by_patterns_and_named_in_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--dtypes", "bfloat16", "--cells", "LSTM", "--sizes", "512x*"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu: LSTM 512x64x512x512 forward and backward, bfloat16",
        "gpu: LSTM 512x64x512x512 forward, bfloat16",
    ]


def test_the_machine_names_its_gpu_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "gpu" not in machine.machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91500)
    here = machine.machine()
    assert {name: here[name] for name in ("gpu", "cuda", "cudnn")} == {"gpu": "a GPU", "cuda": "13.0", "cudnn": 91500}
    assert here["torch"] == torch.__version__


@pytest.mark.usefixtures("_on_the_cpu")
@pytest.mark.parametrize("dtype", gpu.TOLERANCES, ids=str)
@pytest.mark.parametrize("what", [TRAINING, FORWARD])
def test_a_case_is_measured_in_microseconds_per_step(what: str, dtype: torch.dtype) -> None:
    found = gpu.measure(made(what, dtype), ONCE)
    assert set(found.figures["microseconds per step"]) == {"cuDNN", "gpu"}
    assert found.value("ratio", "cuDNN over gpu") > 0


@pytest.mark.usefixtures("_on_the_cpu")
def test_the_time_of_the_host_is_that_of_a_whole_call() -> None:
    found = gpu.measure(made(gpu.HOST, torch.bfloat16), ONCE)
    assert set(found.figures) == {"microseconds"}
    assert found.value("microseconds", "gpu") > 0


@pytest.fixture
def _flags() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_flags")
def test_tf32_is_allowed_while_it_measures_and_not_afterwards() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    with gpu.tf32_allowed():
        assert matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    assert not matmul.allow_tf32


class Changed(Eager):
    """Results of the plain loop, times a number that may differ from call to call."""

    name = "gpu"

    def __init__(self, *factors: float) -> None:
        self.factors = list(factors)

    def prepare(self, exercise, what=TRAINING):  # type: ignore[no-untyped-def]
        task: Sweep = super().prepare(exercise, what)

        def run(inputs: torch.Tensor) -> torch.Tensor:
            factor = self.factors.pop(0) if len(self.factors) > 1 else self.factors[0]
            return factor * task.run(inputs)

        return replace(task, run=run)


@pytest.mark.usefixtures("_on_the_cpu")
@pytest.mark.parametrize("dtype", gpu.TOLERANCES, ids=str)
def test_results_further_from_float64_than_the_dtype_allows_are_not_timed(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "OURS", Changed(1 + 4 * gpu.TOLERANCES[dtype]))
    with pytest.raises(agreement.Disagreement, match="outputs: gpu differs from the loop in float64"):
        gpu.measure(made(dtype=dtype), ONCE)


@pytest.mark.usefixtures("_on_the_cpu")
def test_other_bits_on_a_rerun_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "OURS", Changed(1.0, 1.0, 1.0001, 1.0))
    with pytest.raises(agreement.Disagreement, match="outputs: gpu gives other bits when it is run again"):
        gpu.measure(made(), ONCE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of")  # torch does not join those of bfloat16
@pytest.mark.parametrize("dtype", gpu.TOLERANCES, ids=str)
@pytest.mark.parametrize("what", [TRAINING, FORWARD, gpu.HOST])
def test_a_small_case_is_measured_on_a_gpu(what: str, dtype: torch.dtype) -> None:
    found = gpu.measure(Case("LSTM", Size(7, 3, 64, 64), what, dtype, "cuda"), ONCE)
    assert found.value("ratio", "cuDNN over gpu") > 0
