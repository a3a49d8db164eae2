"""How many random cells a law is tried on: LEPORELLO_CELLS over all laws together, 100 unless told."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

CELLS = int(os.environ.get("LEPORELLO_CELLS", "100"))


def cells(share: float, least: int = 4) -> settings:
    """The settings of a law that gets this share of all cells. The same cells each time, unless told how many."""
    return settings(
        max_examples=max(least, round(CELLS * share)),
        deadline=None,
        derandomize="LEPORELLO_CELLS" not in os.environ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
