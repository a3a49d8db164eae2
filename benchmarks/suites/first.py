"""`first`: the first call of a new cell, in a new process and in a warm one, with kernels to be built or there already.

Making the first network of a process loads torch's tracer; it has a figure of its own. Every call runs in a process of
its own (`benchmarks.first_call`), with a cache folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.cases import Case
from benchmarks.compare import medians
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import FEWEST_ROUNDS, Settings
from leporello.errors import LeporelloError

ROOT = Path(__file__).parents[2]

NETWORK = "new process, network made"
# what runs in the process before the cell; the seconds that are promised with an empty cache, and with a filled one
PROCESSES = {"new process": ("", 2.5, 0.6), "warm process": ("GRU", 2.5, 0.6)}


def measure(case: Case, settings: Settings) -> Measurement:
    found: dict[str, list[float]] = {f"{name}, {kernels}": [] for name in PROCESSES for kernels in ("built", "cached")}
    found[NETWORK] = []
    done, since = 0, time.perf_counter()
    while done < FEWEST_ROUNDS and settings.goes_on(done, since):
        for name, (before, _, _) in PROCESSES.items():
            with tempfile.TemporaryDirectory() as cache:
                for kernels in ("built", "cached"):  # the second process finds what the first one built
                    made, called = _seconds(case, before, cache)
                    found[f"{name}, {kernels}"].append(called)
                    found[NETWORK] += [] if before else [made]
        done += 1
    return Measurement(case, figures={"seconds": medians(found)}, rounds=done)


def _seconds(case: Case, before: str, cache: str) -> tuple[float, float]:
    """In which a process makes the network, and of its first call."""
    size = case.size
    command = [sys.executable, "-m", "benchmarks.first_call", case.cell]
    command += [str(number) for number in (size.length, size.batch, size.inputs, size.hidden)]
    command += ["--threads", str(torch.get_num_threads())]
    command += ["--before", before] if before else []
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "LEPORELLO_CACHE": cache, "PYTHONPATH": paths}
    ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if ran.returncode:
        raise LeporelloError("a first call failed in its process.", says="\n".join(ran.stderr.splitlines()[-12:]))
    made, called = map(float, ran.stdout.split())
    return made, called


SUITE = Suite(
    name="first",
    says="the first call of a cell, forward and backward, from the call on; kernels are built, or found in the cache",
    cases=tuple(Case(cell, Size(35, 32, 28, 32)) for cell in ("LSTM", "FastSlow", "LayerNormLSTM")),
    measure=measure,
    promises=(
        *(
            Promise(f"{name}, {kernels}", "seconds", f"{name}, {kernels}", "largest", most=most)
            for name, (_, built, cached) in PROCESSES.items()
            for kernels, most in (("built", built), ("cached", cached))
        ),
        Promise(NETWORK, "seconds", NETWORK, "largest"),
    ),
)
