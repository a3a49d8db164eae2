"""All suites, in the order in which they run."""

from __future__ import annotations

from benchmarks.record import Suite
from benchmarks.suites import (
    arguments,
    beside_torch,
    busy,
    call,
    first,
    forced,
    generating,
    gpu,
    gpu_own,
    growth,
    memory,
    methods,
    own,
    rate,
    stepwise,
    training,
    wild,
)

SUITES: tuple[Suite, ...] = tuple(
    module.SUITE
    for module in (
        beside_torch,
        own,
        wild,
        forced,
        rate,
        arguments,
        call,
        busy,
        first,
        memory,
        growth,
        stepwise,
        methods,
        training,
        generating,
        gpu,
        gpu_own,
    )
)
