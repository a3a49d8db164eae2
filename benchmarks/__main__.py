"""`python -m benchmarks`: tables for people, then one JSON line for programs."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import report
from benchmarks.cases import Case, Choice
from benchmarks.machine import machine
from benchmarks.progress import bar
from benchmarks.record import Suite
from benchmarks.runner import Result, run
from benchmarks.suites import SUITES
from benchmarks.turns import Settings

MOST_LOAD = 0.5  # of other programs: above it threads wait for cores, and those that wait for each other most of all
Chosen = list[tuple[Suite, list[Case]]]


def main(arguments: list[str] | None = None) -> int:
    """0 whether or not promises are kept; 1 where a case could not be measured; 2 where nothing was chosen."""
    options = _options(arguments)
    cases = _chosen(options)
    if not cases:
        print("no case is chosen by these options; --list shows them all", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{suite.name}: {case.name}" for suite, own in cases for case in own))
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    here = machine()  # before anything runs: its load is that of others
    if (here["load"] or 0) > MOST_LOAD:
        print(f"others compute on this machine (load {here['load']}): these figures mean little", file=sys.stderr)
    results = _run(cases, options)
    print(report.json_line(results, settings=_settings(options), machine=here))
    return int(any(one.failed for result in results for one in result.measurements))


def _chosen(options: argparse.Namespace) -> Chosen:
    """The suites that were asked for, with those of their cases that fit; none without a case."""
    names = {name.strip() for name in options.suite.split(",")}
    choice = Choice(options.cells, options.sizes, options.dtypes)
    found = [(suite, [case for case in suite.cases if choice.takes(case)]) for suite in SUITES if suite.name in names]
    return [(suite, cases) for suite, cases in found if cases]


def _run(chosen: Chosen, options: argparse.Namespace) -> list[Result]:
    """Suite after suite; the tables of each as soon as it is done."""
    settings = Settings(options.rounds, options.seconds)
    whole = sum(len(cases) for _, cases in chosen)
    begun, results = 0, []
    for suite, cases in chosen:
        with bar(suite.name, begun, whole) as announce:
            results.append(run(suite, cases, settings, announce))
        begun += len(cases)
        if not options.json_only:
            report.print_result(results[-1])
    return results


def _settings(options: argparse.Namespace) -> dict[str, object]:
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "threads": torch.get_num_threads(),
        "cells": options.cells,
        "sizes": options.sizes,
        "dtypes": options.dtypes,
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    names = ",".join(suite.name for suite in SUITES)
    usual = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="The engines beside what else there is: time, memory, cost of a call."
    )
    add = parser.add_argument
    add("--suite", metavar="NAMES", default=names, type=_known, help=f"with commas between (default: all, {names})")
    add("--cells", metavar="PATTERNS", default="*", help="only these cells: 'LSTM,*Rate'")
    add("--sizes", metavar="PATTERNS", default="*", help="only these lengths x batch x inputs x hidden: '35x*,*x512'")
    add("--dtypes", metavar="PATTERNS", default="*", help="only these dtypes: 'bfloat16,float16'")
    add(
        "--rounds", type=_positive, default=usual.rounds, help="turns of each contestant, at most (default %(default)s)"
    )
    add(
        "--seconds",
        type=float,
        default=usual.seconds,
        help="after so many no further round of a case begins, but there are 3 at least (default %(default)s)",
    )
    add("--threads", type=_positive, help="threads of torch, and of jax (default: torch's own choice)")
    add("--json-only", action="store_true", help="print the JSON line and no table")
    add("--list", action="store_true", help="print the names of the chosen cases and stop")
    return parser.parse_args(arguments)


def _known(text: str) -> str:
    unknown = {name.strip() for name in text.split(",")} - {suite.name for suite in SUITES}
    if unknown:
        known = ", ".join(suite.name for suite in SUITES)
        raise argparse.ArgumentTypeError(f"no suite is called {', '.join(sorted(unknown))}; there are {known}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
