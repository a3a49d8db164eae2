"""`gpu`: the engine `gpu` beside cuDNN, by the GPU's own clock: RNN, GRU and LSTM in bfloat16, float16 and float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks import agreement
from benchmarks.cases import FORWARD, TRAINING, Case
from benchmarks.cells import TORCH
from benchmarks.compare import medians
from benchmarks.contestants import Contestant, Eager, Engine, TorchNN
from benchmarks.record import Gather, Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.tasks import Task
from benchmarks.turns import Settings, device_seconds_of, host_seconds_of, ratio, times

DEVICE = "cuda"
HOST = "host time of a training step"
OURS: Contestant = Engine("gpu")
THEIRS: Contestant = TorchNN("cuDNN")

# length, batch, hidden; the inputs are as many as the hidden units
SIZES = tuple(
    Size(length, batch, hidden, hidden)
    for length, batch, hidden in (
        (1024, 16, 64),
        (1024, 16, 256),
        (1024, 16, 768),
        (1024, 16, 1024),
        (512, 64, 512),
        (256, 128, 1024),
    )
)

STEPS = 64  # that are compared with a loop in float64

# By dtype: the norm of the difference from that loop over its norm, of the outputs and of every gradient. The loop has
# the same rounded weights and inputs, so what differs is what a step rounds: its products' operands and its state.
TOLERANCES = {
    torch.bfloat16: 1e-2,  # 8 bits: 4e-3 a rounding, and roundings of different steps cancel
    torch.float16: 2e-3,  # 11 bits: 5e-4 a rounding
    torch.float32: 2e-3,  # TF32 has the 11 bits of float16, in the operands of products
}
OTHERS = 4  # times as much is allowed to what is not ours: it shall compute the same, however it rounds

# dtype: of cuDNN's time over ours, forward and backward, the geometric mean and the smallest that are promised
PROMISED = {torch.bfloat16: (12.0, 1.5), torch.float16: (2.5, 1.1), torch.float32: (4.0, 0.9)}
FASTER = ("ratio", "cuDNN over gpu")


def lacks() -> str:
    return "" if torch.cuda.is_available() else "needs a GPU that torch can use, and there is none: nothing is measured"


def measure(case: Case, settings: Settings) -> Measurement:
    """Results first; then time in turns, that of the host alone where the case says so."""
    with tf32_allowed():
        tasks = agreed(case)
        clock = host_seconds_of if case.what == HOST else device_seconds_of
        found = times(tasks, settings, clock)
    theirs, ours = found
    unit, scale = ("microseconds", 1e6) if case.what == HOST else ("microseconds per step", 1e6 / case.size.length)
    return Measurement(
        case,
        figures={unit: medians(found, scale)},
        ratios={f"{theirs} over {ours}": ratio(found[theirs], found[ours])},
        rounds=len(found[ours]),
    )


def agreed(case: Case) -> dict[str, Task]:
    """Both tasks, of which each gives what a loop in float64 gives, and ours the same bits each time."""
    exercise = case.build()
    what = TRAINING if case.what == HOST else case.what
    steps = min(STEPS, case.size.length)
    loop = Eager().prepare(exercise.begin(steps).exact(), what)
    tasks: dict[str, Task] = {one.name: one.prepare(exercise, what) for one in (THEIRS, OURS)}
    for one, times_as_much in ((THEIRS, OTHERS), (OURS, 1)):
        allowed = times_as_much * TOLERANCES[case.dtype]
        pair = {"the loop in float64": loop, one.name: tasks[one.name]}
        agreement.check(pair, allowed, steps, agreement.norm_of_difference)
    agreement.check_same_bits(OURS.name, tasks[OURS.name], steps)
    return tasks


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Products of float32 may use TF32 on a GPU, in torch, in cuDNN and in our kernels."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _of(what: str, dtype: torch.dtype) -> Callable[[Case], bool]:
    return lambda case: case.what == what and case.dtype == dtype


def _promises() -> Iterator[Promise]:
    gathers: tuple[Gather, Gather] = ("geometric mean", "smallest")
    for dtype, limits in PROMISED.items():
        name = str(dtype).removeprefix("torch.")
        for gather, least in zip(gathers, limits, strict=True):
            yield Promise(f"{name}, {TRAINING}", *FASTER, gather, least=least, of=_of(TRAINING, dtype))
        for gather in gathers:
            yield Promise(f"{name}, {FORWARD}", *FASTER, gather, of=_of(FORWARD, dtype))
    yield Promise(HOST, "microseconds", "gpu", "largest", of=_of(HOST, torch.bfloat16))


SUITE = Suite(
    name="gpu",
    says="RNN, GRU and LSTM on the engine gpu beside torch.nn's on cuDNN, with the same weights; TF32 is allowed",
    cases=(
        *(
            Case(cell, size, what, dtype, DEVICE)
            for dtype in TOLERANCES
            for what in (TRAINING, FORWARD)
            for cell in TORCH
            for size in SIZES
        ),
        *(Case(cell, Size(1, 16, 64, 64), HOST, torch.bfloat16, DEVICE) for cell in TORCH),
    ),
    measure=measure,
    promises=tuple(_promises()),
    lacks=lacks,
)
