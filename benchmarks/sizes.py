"""The sizes on which cells are measured. Knows nothing of cells or clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Of a sequence and of the cell that reads it."""

    length: int
    batch: int
    inputs: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.length}x{self.batch}x{self.inputs}x{self.hidden}"


SIZES = (
    Size(35, 32, 28, 32),
    Size(64, 32, 64, 64),
    Size(128, 32, 128, 128),
    Size(128, 32, 256, 256),
    Size(128, 64, 512, 512),
    Size(35, 32, 28, 512),
    Size(1024, 16, 64, 64),
    Size(256, 1, 128, 128),
    Size(100, 20, 200, 200),
    Size(2048, 40, 1, 40),
)
