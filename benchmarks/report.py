"""Measurements as tables for people and as one JSON line for programs. Measures nothing."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence

import torch

from benchmarks.runner import Measurement

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError:  # the tables are then plain
    Table = None

Rows = list[list[str]]  # the first row is the head, the last one holds the geometric means


def print_tables(measurements: Sequence[Measurement]) -> None:
    _print("time of a training step: medians, ratios within rounds", time_rows(measurements))
    if measurements[0].peaks:
        _print("peak memory of a training step", memory_rows(measurements))


def time_rows(measurements: Sequence[Measurement]) -> Rows:
    first, *others = measurements[0].times
    means = geometric_means(measurements)
    head, last = ["case", f"{first} ms"], ["geometric mean", ""]
    for name in others:
        head += [f"{name} ms", "faster", "quartiles"]
        last += ["", f"{means[name]['speed']:.2f}x", ""]
    rows = []
    for one in measurements:
        row = [one.case.name, f"{one.times[first].median * 1e3:.2f}"]
        for name in others:
            ratio = one.ratios[name]
            row += [f"{one.times[name].median * 1e3:.2f}", f"{ratio.median:.2f}x", f"{ratio.low:.2f}-{ratio.high:.2f}"]
        rows.append(row)
    return [head, *rows, last]


def memory_rows(measurements: Sequence[Measurement]) -> Rows:
    first, *others = measurements[0].peaks
    means = geometric_means(measurements)
    head, last = ["case", f"{first} MB"], ["geometric mean", ""]
    for name in others:
        head += [f"{name} MB", "memory"]
        last += ["", f"{means[name]['memory']:.2f}x"]
    rows = []
    for one in measurements:
        row = [one.case.name, f"{one.peaks[first] / 1e6:.2f}"]
        for name in others:
            row += [f"{one.peaks[name] / 1e6:.2f}", f"{one.memory_ratio(name):.2f}x"]
        rows.append(row)
    return [head, *rows, last]


def geometric_means(measurements: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """Over all cases, per contestant but the first: `speed` (above 1 is faster) and `memory` (below 1 is less)."""
    means: dict[str, dict[str, float]] = {}
    for name in measurements[0].ratios:
        means[name] = {"speed": statistics.geometric_mean(one.ratios[name].median for one in measurements)}
        if measurements[0].peaks:
            means[name]["memory"] = statistics.geometric_mean(one.memory_ratio(name) for one in measurements)
    return means


def json_line(measurements: Sequence[Measurement], *, rounds: int) -> str:
    """Everything in one line: settings, machine, every case, geometric means."""
    return json.dumps(
        {
            "settings": {"rounds": rounds, "threads": torch.get_num_threads(), "dtype": "float32"},
            "machine": {
                "processor": platform.machine(),
                "vector": torch.backends.cpu.get_cpu_capability(),
                "cores": os.cpu_count(),
                "system": platform.system(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "cases": [_record(one) for one in measurements],
            "geometric_means": {
                name: {what: round(value, 4) for what, value in means.items()}
                for name, means in geometric_means(measurements).items()
            },
        }
    )


def _record(one: Measurement) -> dict[str, object]:
    return {
        "case": one.case.name,
        "milliseconds": {name: round(times.median * 1e3, 4) for name, times in one.times.items()},
        "ratios": {
            name: {"median": round(ratio.median, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}
            for name, ratio in one.ratios.items()
        },
        **({"peak_bytes": one.peaks} if one.peaks else {}),
    }


def _print(title: str, rows: Rows) -> None:
    if Table is None:
        _print_plain(title, rows)
        return
    head, *middle, last = rows
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, name in enumerate(head):
        drawn.add_column(name, justify="right" if index else "left")
    for row in middle:
        drawn.add_row(*row)
    drawn.add_section()
    drawn.add_row(*last, style="bold")
    Console().print(drawn)


def _print_plain(title: str, rows: Rows) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(title, end="\n\n")
    for first, *others in rows:
        aligned = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    print()
