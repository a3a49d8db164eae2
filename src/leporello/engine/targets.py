"""The list of engines: every target by name, the fastest first, and `reference` last.

A new target needs one entry here; `register` adds one at run time.
"""

from __future__ import annotations

from leporello.engine.cpu.target import CPU_TARGET
from leporello.engine.exact import EXACT
from leporello.engine.gpu.graphs.captured_steps import captured
from leporello.engine.gpu.target import GPU_TARGET
from leporello.engine.target import Target, WindowSizes

# Torch's operators run the insides: any device, any operator.
STEPWISE = Target(
    name="stepwise",
    windows={"cpu": WindowSizes(max_rows=512, min_count=12, min_rows=128)},
    default_windows=WindowSizes(max_rows=1 << 16),
    recorded=captured,
)
TARGETS: dict[str, Target] = {target.name: target for target in (CPU_TARGET, GPU_TARGET, STEPWISE)}
REFERENCE = "reference"  # not a target: it interprets the Loop's graph


AUTO: tuple[str, ...] = (*TARGETS, REFERENCE)  # the engines that "auto" tries, in this order
TARGETS[EXACT.name] = EXACT  # rational numbers: by name alone


def engine_names() -> tuple[str, ...]:
    """The values of `engine=` apart from "auto"."""
    return (*TARGETS, REFERENCE)


def target_of(engine: str) -> Target | None:
    """The target of that name; None for `reference`."""
    return None if engine == REFERENCE else TARGETS[engine]


def without_kernels() -> Target:
    """The target without kernels, which runs everything with torch's operators."""
    return STEPWISE


def register(target: Target) -> None:
    """Add a target to the engines: `engine=target.name` selects it from now on. "auto" does not choose it."""
    TARGETS[target.name] = target
