"""`python -m benchmarks`: a table for people, then one JSON line for programs."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import report, runner
from benchmarks.cases import CASES, Case, matching
from benchmarks.contestants import CONTESTANTS


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if options.list:
        print("\n".join(case.name for case in CASES))
        return 0
    cases = matching(options.cases)
    if not cases:
        print(f"no case is called {options.cases!r}; --list shows them all", file=sys.stderr)
        return 2
    if options.threads:
        torch.set_num_threads(options.threads)
    measurements = list(
        runner.run(
            cases,
            CONTESTANTS,
            rounds=options.rounds,
            memory=options.memory,
            announce=_to_stderr if sys.stderr.isatty() and not options.json_only else lambda case: None,
        )
    )
    if not options.json_only:
        report.print_tables(measurements)
    print(report.json_line(measurements, rounds=options.rounds))
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="One training step, contestant by contestant."
    )
    parser.add_argument(
        "--cases", metavar="PATTERN", default="*", help="only cases that fit this shell pattern, as 'LSTM*'"
    )
    parser.add_argument(
        "--rounds", type=_positive, default=20, help="how often each contestant takes its turn (default 20)"
    )
    parser.add_argument("--memory", action="store_true", help="also measure the peak memory, after the timing")
    parser.add_argument("--threads", type=_positive, help="threads of torch (default: torch's own choice)")
    parser.add_argument("--json-only", action="store_true", help="print the JSON line and no table")
    parser.add_argument("--list", action="store_true", help="print the names of all cases and stop")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _to_stderr(case: Case) -> None:
    print(f"measuring {case.name} ...", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
