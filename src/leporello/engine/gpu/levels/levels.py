"""`Levels`: runs a kernel in the geometry "levels": at every step products by torch, and a launch for each level.

That is for matrices that do not fit on the chip, and for batches that are too large for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from leporello.engine.gpu.division.geometry import LEVELS
from leporello.engine.gpu.levels.levels_graphs import LevelsGraphs
from leporello.engine.gpu.levels.levels_steps import LevelsSteps
from leporello.engine.gpu.runner import Given
from leporello.engine.gpu.text.levels_text import LevelsText


@dataclass(eq=False)
class Levels:
    """A kernel in the geometry "levels", built for a device; one for all batches and lengths.

    steps    launches them
    source   the path of its text
    graphs   of steps
    """

    steps: LevelsSteps
    source: Path
    graphs: LevelsGraphs = field(default_factory=LevelsGraphs)

    @property
    def text(self) -> LevelsText:
        return self.steps.text

    @property
    def about(self) -> str:
        kernels = sum(kernel is not None for kernel in self.text.kernels) - (self.text.joint is not None)
        products = len(self.text.memory.products)
        rounded = "" if self.text.memory.float_sums else ", whose sums are rounded to 16 bits"
        a_step = f"{kernels} kernel{'s' * (kernels != 1)} and {products} product{'s' * (products != 1)} of torch a step"
        return f"{LEVELS}; {a_step}{rounded}; {self.graphs.about}"

    def run(self, given: Given, steps: int) -> None:
        """Run all steps; see `Built`."""
        with torch.no_grad():
            matrices = [matrix_of(value, axes) for value, axes in given.matrices]
            if not self.graphs.run(self.steps, given, matrices, steps):
                scratch = self.steps.scratch(given)
                self.steps.fill(scratch, self.steps.words(given, scratch, steps), 0)
                self.steps.start(scratch)
                self.steps.launch(scratch, matrices, steps)


def matrix_of(value: Tensor, axes: tuple[int | None, int, int]) -> Tensor:
    """A matrix [inner, outer] or matrices [head, inner, outer], as a view wherever products read it without a copy."""
    order = [axis for axis in axes if axis is not None]
    shape, strides = [value.shape[axis] for axis in order], [value.stride(axis) for axis in order]
    found = value.detach().as_strided(shape, strides, value.storage_offset())
    lines = [found.shape[-2] == 1 or found.stride(-2) == 1, found.shape[-1] == 1 or found.stride(-1) == 1]
    return found if any(lines) else found.contiguous()
