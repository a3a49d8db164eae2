"""The suite `gpu-own`: its cases and promises, and its measure where contestants run on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import turns
from benchmarks.agreement import Disagreement
from benchmarks.contestants import Eager
from benchmarks.record import summaries
from benchmarks.sizes import Size
from benchmarks.suites import gpu_own
from benchmarks.turns import Settings


class InPlaceOfGraph(Eager):
    name = "gpu in a graph"


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(gpu_own, "OTHER", Eager())
    monkeypatch.setattr(gpu_own, "OURS_IN_GRAPH", InPlaceOfGraph())
    monkeypatch.setattr(gpu_own, "ENGINE", "stepwise")
    monkeypatch.setattr(gpu_own, "device_seconds_of", turns.seconds_of)


def test_each_cell_stands_beside_the_loop_the_graph_and_itself_with_arguments() -> None:
    case = replace(gpu_own.SUITE.cases[4], size=Size(5, 2, 3, 7), dtype=torch.float32, device="cpu")
    found = gpu_own.measure(case, Settings(rounds=1))
    assert set(found.ratios) == {"eager over gpu", "graph over gpu", "graph over gpu in a graph", *gpu_own.WITH}
    timed = {"eager", "graph", "gpu", "gpu in a graph", "with lengths", "with resets"}
    assert set(found.figures["microseconds per step"]) == timed
    assert {one.promise.name for one in summaries(gpu_own.SUITE, [found])} == {
        "beside the eager loop",
        "beside the compiled step",
        "its arguments",
    }


def test_heads_are_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(gpu_own.HEADS, size=Size(3, 2, 5, 24), dtype=torch.float32, device="cpu")
    monkeypatch.setattr(gpu_own, "HEADS", case)
    found = gpu_own.measure(case, Settings(rounds=1))
    assert set(found.figures["microseconds per step"]) == {"gpu"}
    (summary,) = summaries(gpu_own.SUITE, [found])
    assert summary.promise.most == 1.55


def test_a_wrong_contestant_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Eager):
        def prepare(self, exercise, what="forward and backward"):  # type: ignore[no-untyped-def]
            task = super().prepare(exercise, what)
            return replace(task, run=lambda inputs: 1.5 * task.run(inputs))

    monkeypatch.setattr(gpu_own, "OTHER", Wrong())
    case = replace(gpu_own.SUITE.cases[4], size=Size(5, 2, 3, 7), dtype=torch.float32, device="cpu")
    with pytest.raises(Disagreement, match="graph"):
        gpu_own.measure(case, Settings(rounds=1))
