"""`RowSums`: several sums over rows in one launch, as a function of the tensors that they read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from leporello.engine.gpu.sums.division import HEAD_WORDS, MOST_TERMS, THREADS, WORDS, Division, Sum, divided
from leporello.engine.gpu.text.cuda_emitter import FUNCTIONS_PLACE, library_text

NUMBERS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True)
class SumsKernel:
    """The kernel for one type of numbers, and for launches of some forms and so many terms.

    wide_statistics   whether means and rates are float32 all the same, as they are of layer norms on a GPU
    """

    dtype: torch.dtype
    wide_statistics: bool
    forms: int
    terms: int

    def text(self, library: str) -> str:
        """The text of the kernel for one of the libraries, device.cuh or host.h."""
        macros = {
            "BLOCKS": 1,
            "TILES": 1,
            "HEADS": 1,
            "THREADS": THREADS,
            "WORDS": HEAD_WORDS + self.terms * len(WORDS),
            "EXCHANGE": 0,
            "EXACT": 1,
            "ACCURATE": 1,
            "SHARED": 0,
            "SUMMED": NUMBERS[self.dtype],
            "WIDE_STATISTICS": int(self.wide_statistics),
            "FORMS": self.forms,
            "TERMS": self.terms,
        }
        parts = [library, *(["sums_machine.cuh"] if library == "device.cuh" else []), "sums.cuh"]
        lines = ["/* sums over rows */", *(f"#define {name} {value}" for name, value in macros.items())]
        whole = "\n".join(library_text(part) for part in parts)
        return "\n".join([*lines, whole.replace(FUNCTIONS_PLACE, library_text("functions.cuh"))])


class SumsLauncher(Protocol):
    """What launches the kernel of sums: a GPU, or the host in tests."""

    def launch(self, division: Division, words: array[int], kernel: SumsKernel, device: torch.device) -> None:
        """Run a division of sums; `words` have the addresses of values and results."""


class RowSums:
    """Sums over rows of values; a list of tensors.

    sums       what is added
    features   numbers in a row of each value
    results    their shapes and types
    dtype      of what is summed
    statistics, rows_alone   means and rates; values with one number in a row, which must be contiguous
    divisions  of the rows, layouts and types of statistics that have been seen, with their kernels
    """

    __name__ = "sums"
    reads_sequences = True  # takes [steps, batch, columns], contiguous, as well as [rows, columns]

    def __init__(
        self,
        sums: Sequence[Sum],
        features: Sequence[int],
        results: Sequence[tuple[tuple[int, ...], torch.dtype]],
        dtype: torch.dtype,
        launcher: SumsLauncher,
    ) -> None:
        self.sums, self.features, self.results = tuple(sums), tuple(features), tuple(results)
        self.dtype, self.launcher = dtype, launcher
        self.statistics = sorted({index for one in sums for index in (one.mean, one.rate)} - {-1})
        self.rows_alone = {*self.statistics, *(one.past for one in sums)}
        self.divisions: dict[tuple[Any, ...], list[tuple[Division, SumsKernel]]] = {}

    def __call__(self, *values: Tensor) -> list[Tensor]:
        rows, strides = values[0].numel() // self.features[0], self.features
        for value in values:
            if not value.is_contiguous():
                values, strides = self._readable(values)
                break
        device = values[0].device
        results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.results]
        addresses = [value.data_ptr() for value in values]
        aligned = tuple([address % 16 == 0 for address in addresses])
        wide = all(values[index].dtype == torch.float32 for index in self.statistics)
        launches = self.divisions.get((rows, strides, aligned, wide))
        if launches is None:
            launches = self.divisions[rows, strides, aligned, wide] = self._divided(rows, strides, aligned, wide)
        addresses += [value.data_ptr() for value in results]
        for division, kernel in launches:
            words = division.words[:]
            for word, index, added in division.places:
                words[word] = addresses[index] + added
            self.launcher.launch(division, words, kernel, device)
        return results

    def _divided(
        self, rows: int, strides: tuple[int, ...], aligned: tuple[bool, ...], wide: bool
    ) -> list[tuple[Division, SumsKernel]]:
        """The launches for values of a layout."""
        found = []
        for first in range(0, len(self.sums), MOST_TERMS):
            sums = self.sums[first : first + MOST_TERMS]
            division = divided(sums, rows, strides, aligned, self.dtype.itemsize)
            found.append((division, SumsKernel(self.dtype, wide, division.forms, division.terms)))
        return found

    def _readable(self, values: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The values with contiguous rows, and the elements from row to row of each."""
        found, strides = [], []
        for index, (value, features) in enumerate(zip(values, self.features, strict=True)):
            apart = value.dim() == 2 and value.stride(1) == 1 and index not in self.rows_alone
            found.append(value if apart else value.contiguous())
            strides.append(value.stride(0) if apart else features)
        return tuple(found), tuple(strides)
