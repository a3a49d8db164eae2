"""`python -m benchmarks.first_call LSTM 35 32 28 32`: the seconds in which a network is made, and those of its first
training step, in this process.

Run by the suite `first`, once per figure. What is imported before is not counted.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from benchmarks.cases import Case
from benchmarks.cells import CELLS
from benchmarks.contestants import Engine
from benchmarks.sizes import Size


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_call")
    parser.add_argument("cell", choices=CELLS)
    parser.add_argument("size", type=int, nargs=4, metavar="N", help="length, batch, inputs, hidden")
    parser.add_argument("--before", choices=CELLS, help="a cell that has run before")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    size = Size(*options.size)
    if options.before:
        seconds(Case(options.before, size))
    print(*seconds(Case(options.cell, size)))
    return 0


def seconds(case: Case) -> tuple[float, float]:
    """Of making the network, and of its first training step."""
    exercise = case.build()
    start = time.perf_counter()
    task = Engine("cpu").prepare(exercise, case.what)
    made = time.perf_counter()
    task()
    return made - start, time.perf_counter() - made


if __name__ == "__main__":
    sys.exit(main())
