"""`LevelsSteps`: launches steps in the geometry "levels": products by torch, and a kernel for each level."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leporello.engine.gpu.runner import Given
from leporello.engine.gpu.text.levels_memory import is_doubled, vector_dtype
from leporello.engine.gpu.text.levels_text import LevelKernel, LevelsText

FIRST = 2  # the word with the first step of a part


class Launcher(Protocol):
    """What launches the kernels of a text and multiplies: a GPU, or the host in tests."""

    def fill(self, table: Tensor, words: array[int]) -> None:
        """Copy words to a table on the device; they may change as soon as this returns."""

    def launch(self, kernel: LevelKernel, table: Tensor, at: int, batch: int) -> None:
        """Run a kernel for step `at` of the part that the table is about."""

    def multiply(self, left: Tensor, right: Tensor, sums: Tensor) -> None:
        """Write a product of matrices, or of heads of matrices."""


class Scratch:
    """Memory for a batch, and what of it products read and write.

    table     the words of a call and a part
    lefts     of each product: its vector, or its two slots, [row, inner] or [head, row, inner]
    sums      of each product: [row, outer] or [head, row, outer]
    doubled   the two slots of vectors that steps alternate between
    """

    def __init__(self, text: LevelsText, batch: int, device: torch.device) -> None:
        memory = text.memory
        offsets, size = memory.offsets(batch)
        self.batch = batch
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.table = torch.empty(memory.word_count, dtype=torch.int64, device=device)
        self.addresses = [self.memory.data_ptr() + offset for offset in offsets]
        at = {area.key: offset for area, offset in zip(memory.areas, offsets, strict=True)}

        def view(key: tuple[str, int], dtype: torch.dtype, *shape: int) -> Tensor:
            count = torch.Size(shape).numel()
            return self.memory[at[key] : at[key] + count * dtype.itemsize].view(dtype).view(shape)

        vectors = text.schedule.vectors
        slots = [
            view(("vector", index), vector_dtype(v), 2 if is_doubled(v) else 1, batch, int(v.of.count)).unbind()
            for index, v in enumerate(vectors)
        ]
        self.doubled = [pair for pair in slots if len(pair) == 2]
        self.lefts: list[list[Tensor]] = []
        self.sums: list[Tensor] = []
        for index, (multiplication, result) in enumerate(memory.products):
            product, heads = result.product, int(result.product.heads)
            begin, end = int(product.offset), int(product.offset) + heads * product.inner
            of_heads = [one[:, begin:end] for one in slots[vectors.index(multiplication.vector)]]
            shape: tuple[int, ...] = (batch, product.outer)
            if heads > 1:
                of_heads = [one.unflatten(1, (heads, product.inner)).transpose(0, 1) for one in of_heads]
                shape = (heads, *shape)
            self.lefts.append(of_heads)
            self.sums.append(view(("product", index), memory.sums_dtype(multiplication), *shape))


@dataclass(frozen=True, eq=False)
class LevelsSteps:
    """What a call, or a recording of it, is made of."""

    text: LevelsText
    launcher: Launcher

    def scratch(self, given: Given) -> Scratch:
        return Scratch(self.text, given.batch, given.device)

    def words(self, given: Given, scratch: Scratch, steps: int) -> array[int]:
        """The words of a call."""
        words = array("Q", [steps, given.batch, 0, 0])
        words.extend(given.addresses)
        words.extend(scratch.addresses)
        assert len(words) == self.text.memory.word_count
        return words

    def fill(self, scratch: Scratch, words: array[int], first: int) -> None:
        """Fill the table for the part that begins with step `first`."""
        words[FIRST] = first
        self.launcher.fill(scratch.table, words)

    def start(self, scratch: Scratch) -> None:
        """Set the states before the first step."""
        if self.text.first is not None:
            self.launcher.launch(self.text.first, scratch.table, 0, scratch.batch)

    def launch(self, scratch: Scratch, matrices: Sequence[Tensor], steps: int) -> None:
        """Launch the steps of a part."""
        products = self.text.memory.products
        rights = [_of_heads(matrices[one.product.matrix], int(one.product.heads)) for _, one in products]
        for at in range(steps):
            for level, kernel in enumerate(self.text.kernels):
                for index, (multiplication, _) in enumerate(products):
                    if multiplication.level == level:
                        lefts = scratch.lefts[index]
                        self.launcher.multiply(lefts[at % len(lefts)], rights[index], scratch.sums[index])
                if self.text.joint is not None and level == 0 and at > 0:
                    kernel = self.text.joint
                elif self.text.joint is not None and level == len(self.text.kernels) - 1 and at < steps - 1:
                    continue  # the joint kernel of the next step does that
                if kernel is not None:
                    self.launcher.launch(kernel, scratch.table, at, scratch.batch)

    def part(self, scratch: Scratch, matrices: Sequence[Tensor], steps: int) -> Sequence[Tensor]:
        """The steps of a part that another one follows, which looks for states in the first slots of vectors; returns
        the memory in which it leaves all values.
        """
        self.launch(scratch, matrices, steps)
        if steps % 2:
            for first, second in scratch.doubled:
                first.copy_(second)
        return [scratch.memory]


def _of_heads(matrix: Tensor, heads: int) -> Tensor:
    """A matrix, or as many matrices as a product has heads, which may share one."""
    if heads == 1:
        return matrix[0] if matrix.dim() == 3 else matrix
    return matrix if matrix.dim() == 3 else matrix.expand(heads, *matrix.shape)
