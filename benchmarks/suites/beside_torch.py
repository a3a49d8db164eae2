"""`torch`: the cells that torch.nn has, beside torch.nn's."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import FORWARD, TRAINING, Case
from benchmarks.cells import TORCH
from benchmarks.compare import agreed, timed
from benchmarks.contestants import Engine, TorchNN
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import SIZES
from benchmarks.turns import Settings

FASTER = ("ratio", "torch.nn over cpu")


def measure(case: Case, settings: Settings) -> Measurement:
    return timed(case, agreed(case, [TorchNN(), Engine("cpu")]), settings)


def _of(what: str, *cells: str) -> Callable[[Case], bool]:
    return lambda case: case.what == what and case.cell in (cells or TORCH)


SUITE = Suite(
    name="torch",
    says="RNN, GRU and LSTM beside torch.nn's, with the same weights",
    cases=tuple(Case(cell, size, what) for what in (TRAINING, FORWARD) for cell in TORCH for size in SIZES),
    measure=measure,
    promises=(
        Promise("RNN, forward and backward", *FASTER, "geometric mean", least=3.5, of=_of(TRAINING, "RNN")),
        Promise("GRU, forward and backward", *FASTER, "geometric mean", least=3.5, of=_of(TRAINING, "GRU")),
        Promise("LSTM, forward and backward", *FASTER, "geometric mean", least=1.6, of=_of(TRAINING, "LSTM")),
        Promise("all three, forward and backward", *FASTER, "geometric mean", least=3.0, of=_of(TRAINING)),
        Promise("all three, forward and backward", *FASTER, "smallest", least=1.05, of=_of(TRAINING)),
        Promise("RNN, forward", *FASTER, "geometric mean", least=2.5, of=_of(FORWARD, "RNN")),
        Promise("GRU, forward", *FASTER, "geometric mean", least=2.5, of=_of(FORWARD, "GRU")),
        Promise("LSTM, forward", *FASTER, "geometric mean", least=1.2, of=_of(FORWARD, "LSTM")),
        Promise("all three, forward", *FASTER, "geometric mean", of=_of(FORWARD)),
        Promise("all three, forward", *FASTER, "smallest", least=0.9, of=_of(FORWARD)),
    ),
)
