"""`rate`: floating-point operations per second inside the kernels, beside the machine's best matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.cases import Case
from benchmarks.cells import TORCH
from benchmarks.contestants import Engine
from benchmarks.kernels import clocked
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.tasks import Task
from benchmarks.turns import PAUSE_SECONDS, TURN_SECONDS, Settings, ratio, seconds_of

# rows, inner, columns of the products that are tried; the fastest is what kernels are measured by
PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (2048, 512, 2048), (4096, 256, 1024))
CALLS = 20  # of a training step within a turn, at most


def measure(case: Case, settings: Settings) -> Measurement:
    task = Engine("cpu").prepare(case.build(), case.what)
    pairs = {shape: _matrices(*shape) for shape in PRODUCTS}
    rates: dict[str, list[float]] = {"forward kernels": [], "backward kernels": []}
    products: dict[tuple[int, ...], list[float]] = {shape: [] for shape in PRODUCTS}
    seconds_of(task)
    done, since = 0, time.perf_counter()
    while settings.goes_on(done, since):
        for name, value in _kernels(task).items():
            rates[name].append(value)
        for shape, matrices in pairs.items():
            products[shape].append(_product(*matrices))
        done += 1
    rates["torch.mm"] = max(products.values(), key=statistics.median)
    return Measurement(
        case,
        figures={"gigaflops": {name: statistics.median(values) for name, values in rates.items()}},
        ratios={f"{name} over torch.mm": ratio(rates[name], rates["torch.mm"]) for name in rates if name != "torch.mm"},
        rounds=done,
    )


def _kernels(task: Task) -> dict[str, float]:
    """Operations per second, in 10^9, of the kernels in one turn of training steps."""
    time.sleep(PAUSE_SECONDS)
    task.clear()
    task()  # wakes the threads up
    with clocked() as clock:
        for _ in range(CALLS):
            task.clear()
            task()
            if clock.seconds > TURN_SECONDS:
                break
    return {
        "forward kernels": clock.forward.operations / clock.forward.seconds / 1e9,
        "backward kernels": clock.backward.operations / clock.backward.seconds / 1e9,
    }


def _matrices(rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    torch.mm(left, right, out=out)  # wakes the threads up
    calls: list[float] = []
    while sum(calls) < TURN_SECONDS:
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        calls.append(time.perf_counter() - start)
    return 2 * left.shape[0] * left.shape[1] * right.shape[1] / statistics.median(calls) / 1e9


def _of(*hidden: int) -> Callable[[Case], bool]:
    return lambda case: case.size.hidden in hidden


SUITE = Suite(
    name="rate",
    says="operations per second of the kernels' products, beside the best torch.mm in float32",
    cases=tuple(Case(cell, Size(128, 32, hidden, hidden)) for cell in TORCH for hidden in (64, 128, 256, 512)),
    measure=measure,
    promises=tuple(
        Promise(f"{kernels}, {name}", "ratio", f"{kernels} over torch.mm", gather, least=least, of=of)
        for name, of, least in (("hidden 256, 512", _of(256, 512), 0.6), ("hidden 64, 128", _of(64, 128), 0.4))
        for kernels in ("forward kernels", "backward kernels")
        for gather in ("geometric mean", "smallest")
    ),
)
