"""The list of engines: every target by name, the fastest first, and `reference` behind them.

A new target is one entry here; `register` adds one at run time.
"""

from __future__ import annotations

from leporello.engine.cpu.target import CPU_TARGET
from leporello.engine.target import Target, WindowSizes

# Torch's operators run the insides: any device, any operator.
STEPWISE = Target(
    name="stepwise",
    windows={"cpu": WindowSizes(most_rows=512, least_count=12, least_rows=128)},
    default_windows=WindowSizes(most_rows=1 << 16),
)
TARGETS: dict[str, Target] = {target.name: target for target in (CPU_TARGET, STEPWISE)}
REFERENCE = "reference"  # no target: it interprets the Loop's graph and is what the others are compared with


AUTO: tuple[str, ...] = (*TARGETS, REFERENCE)  # what auto chooses from, in this order


def engine_names() -> tuple[str, ...]:
    """What `engine=` may name beside "auto"."""
    return (*TARGETS, REFERENCE)


def target_of(engine: str) -> Target | None:
    """The target of that name; None for `reference`."""
    return None if engine == REFERENCE else TARGETS[engine]


def without_kernels() -> Target:
    """The target that runs everything with torch's operators."""
    return STEPWISE


def register(target: Target) -> None:
    """Make a target an engine: `engine=target.name` names it from now on. Auto does not choose it."""
    TARGETS[target.name] = target
