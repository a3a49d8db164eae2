"""Results as tables for people and as one JSON line for programs. Measures nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.record import Measurement, Promise, Summary
from benchmarks.runner import Result

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError:  # the tables are then plain
    Table = None

Rows = list[list[str]]  # the first row is the head

# how a unit is written: behind the name in the head, then the figure, with its scale
UNITS = {
    "milliseconds": ("ms", "{:.2f}", 1.0),
    "microseconds": ("µs", "{:.1f}", 1.0),
    "microseconds per step": ("µs per step", "{:.2f}", 1.0),
    "seconds": ("s", "{:.2f}", 1.0),
    "gigaflops": ("GFLOP/s", "{:.0f}", 1.0),
    "peak_bytes": ("MB", "{:.2f}", 1e-6),
    "ratio": ("", "{:.2f}x", 1.0),
}
HEAD = 12  # letters of a head in one line
WIDEST = 1000  # letters of a line


def print_result(result: Result) -> None:
    """The table of the cases, that of the summaries, and what was left out."""
    suite = result.suite
    if result.measurements:
        _print(f"{suite.name}: {suite.says}", _without_repetition(case_rows(result.measurements), "what"))
    if result.summaries:
        _print(f"{suite.name}: what is promised", summary_rows(result.summaries))
    for one in result.measurements:
        if one.failed:
            print(f"not measured: {one.case.name}\n{one.failed}\n")
    for note in suite.notes:
        print(f"{suite.name}: {note}\n")


def case_rows(measurements: Sequence[Measurement]) -> Rows:
    figures = _in_order((unit, name) for one in measurements for unit in one.figures for name in one.figures[unit])
    ratios = _in_order(name for one in measurements for name in one.ratios)
    head = ["cell", "sizes", "what", *(f"{name} {UNITS[unit][0]}" for unit, name in figures), *ratios, "rounds"]
    rows = []
    for one in measurements:
        row = [one.case.cell, str(one.case.size), one.case.doing]
        row += [_written(unit, one.value(unit, name)) for unit, name in figures]
        row += [_spread(one, name) for name in ratios]
        rows.append([*row, "failed" if one.failed else str(one.rounds)])
    return [head, *rows]


def _without_repetition(rows: Rows, name: str) -> Rows:
    """The rows without a column that says the same in every one of several."""
    index = rows[0].index(name)
    if len(rows) == 2 or len({row[index] for row in rows[1:]}) > 1:
        return rows
    return [row[:index] + row[index + 1 :] for row in rows]


def summary_rows(summaries: Sequence[Summary]) -> Rows:
    rows = [["of", "figure", "gathered", "cases", "promised", "found", "met"]]
    for one in summaries:
        promise, unit = one.promise, one.promise.unit
        rows.append(
            [
                promise.name,
                f"{promise.figure} {UNITS[unit][0]}".strip(),
                promise.gather,
                str(one.cases) if one.cases == one.whole else f"{one.cases} of {one.whole}",
                _promised(promise),
                _written(unit, one.found),
                {True: "yes", False: "no", None: ""}[one.met],
            ]
        )
    return rows


def json_line(results: Sequence[Result], *, settings: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """Everything in one line: settings, machine, and of every suite the cases and the summaries."""
    return json.dumps(
        {
            "settings": settings,
            "machine": machine,
            "suites": {
                result.suite.name: {
                    "cases": [_case_record(one) for one in result.measurements],
                    "summaries": [_summary_record(one) for one in result.summaries],
                    "notes": list(result.suite.notes),
                }
                for result in results
            },
        },
        ensure_ascii=False,
    )


def _case_record(one: Measurement) -> dict[str, Any]:
    size = one.case.size
    return {
        "cell": one.case.cell,
        "length": size.length,
        "batch": size.batch,
        "inputs": size.inputs,
        "hidden": size.hidden,
        "what": one.case.what,
        "dtype": one.case.dtype_name,
        "rounds": one.rounds,
        "figures": {unit: {name: round(value, 4) for name, value in own.items()} for unit, own in one.figures.items()},
        "ratios": {
            name: {"median": round(ratio.median, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}
            for name, ratio in one.ratios.items()
        },
        **({"failed": one.failed} if one.failed else {}),
    }


def _summary_record(one: Summary) -> dict[str, Any]:
    promise = one.promise
    return {
        "of": promise.name,
        "unit": promise.unit,
        "figure": promise.figure,
        "gathered": promise.gather,
        "cases": one.cases,
        "whole": one.whole,
        "promised": _promised_record(promise),
        "found": None if one.found is None else round(one.found, 4),
        "met": one.met,
    }


def _promised_record(promise: Promise) -> dict[str, float] | None:
    limits = {"at_least": promise.least, "at_most": promise.most}
    return {name: limit for name, limit in limits.items() if limit is not None} or None


def _promised(promise: Promise) -> str:
    limits = (("at least", promise.least), ("at most", promise.most))
    return ", ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)


def _written(unit: str, value: float | None) -> str:
    _, form, scale = UNITS[unit]
    return "" if value is None else form.format(value * scale)


def _spread(one: Measurement, name: str) -> str:
    """A ratio, with its quartiles where there are any."""
    ratio = one.ratios.get(name)
    if ratio is None:
        return ""
    quartiles = "" if ratio.low == ratio.high else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return _written("ratio", ratio.median) + quartiles


def _in_order(names: Any) -> list[Any]:
    """Each once, in the order in which they come."""
    return list(dict.fromkeys(names))


def _print(title: str, rows: Rows) -> None:
    print(title)
    if Table is None:
        _print_plain(rows)
        return
    head, *others = rows
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for index, name in enumerate(head):
        numeric = index > 0 and _is_numeric(index, others)
        drawn.add_column(textwrap.fill(name, HEAD), justify="right" if numeric else "left", no_wrap=numeric)
    for row in others:
        drawn.add_row(*row, style={"no": "red", "failed": "red", "yes": "green"}.get(row[-1]))
    whole = Console(width=WIDEST).measure(drawn).maximum  # a figure is never cut, however narrow the terminal
    Console(width=whole).print(drawn)


def _is_numeric(index: int, rows: Rows) -> bool:
    return all(row[index][:1].isdigit() or not row[index] for row in rows)


def _print_plain(rows: Rows) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print()
