"""`ExportReport`: what an export has written, and how far it is from the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExportReport:
    """What an export has written.

    files           that were written
    largest_error   the largest difference from the network's outputs and final state; the format's own report says
                    of what, and relative to what
    tolerance       the error from which on an export is refused
    """

    files: tuple[Path, ...]
    largest_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the file gives what the network gives."""
        return self.largest_error <= self.tolerance
