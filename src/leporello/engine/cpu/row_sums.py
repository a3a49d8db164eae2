"""Sums over all rows of a window, of which the gradients of matrices and biases consist; several of them in one call.

They read the same values, so that all but the first read them from the cache. `sums_in_turn` and `with_row_sums` take
those of an at-once stage (engine/row_sums.py finds them); `RowSums` computes them with totals.c.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.cpu import native
from leporello.engine.cpu.lagged_window import LaggedWindow
from leporello.engine.row_elements import fixed_features
from leporello.engine.row_sums import RowSum, Spread, call_together, columns_of, row_sum, sum_of_elements
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import copied, placeholders, results
from leporello.loop.stages import Stage

KERNEL_DTYPES = (torch.float32, torch.float64)
LARGE_ROW_BYTES = 1024  # the sums of a value whose rows are at least as large are a stage of their own
MIN_SUMMED = 1024  # columns of the sums without products from which on they are computed here
TOTAL_WORDS = 12  # of a `total` in totals.c
SumShapes = tuple[tuple[int, int, int, int], ...]  # see RowSums


class RowSums:
    """For each pair of values first.t() @ second, or first.sum(0, keepdim=True) without a second; a list of tensors.

    Each value is an argument of the call once, however many sums read it.

    shapes    for each sum: the index of the first value, that of the second or -1, and their numbers of columns
    columns   numbers in a row of each value, and a last 0, found at index -1, for a second value that does not exist
    past      whether the last argument of a call is the mask of rows that are skipped
    spreads   for each sum how it reads rows of several axes; None: the values are matrices. Empty if all are
    sizes     of the result of each sum; by default those of a matrix
    axes      of each value the axis of the rows; rows have no other axes in front of theirs where it is missing
    work      approximate operations for one row
    places    of each value the indices of its addresses among the words of a call
    code      by runtime library and number of threads: the address of the function, and bytes of scratch per thread
    """

    __name__ = "totals"
    reads_sequences = True  # takes [steps, batch, columns], contiguous, as well as [rows, columns]
    reads_lagged = True  # and a `LaggedWindow`

    def __init__(
        self,
        shapes: SumShapes,
        dtype: torch.dtype,
        past: bool = False,
        spreads: Sequence[Spread | None] = (),
        sizes: Sequence[tuple[int, ...]] = (),
        columns: Sequence[int] = (),
        axes: Sequence[int] = (),
    ) -> None:
        self.shapes, self.dtype, self.past = shapes, dtype, past
        self.spreads = tuple(spreads) or (None,) * len(shapes)
        self.results = list(sizes) or [(1, m) if second < 0 else (m, n) for _, second, m, n in shapes]
        found = {value: count for first, second, m, n in shapes for value, count in ((first, m), (second, n))}
        self.columns = [*(columns or [found[value] for value in range(len(found) - (-1 in found))]), 0]
        self.turned = [(value, axis) for value, axis in enumerate(axes) if axis]
        self.first_columns = self.columns[0]
        self.like = torch.empty(0, dtype=dtype, device=native.CPU)
        self.work = sum(
            2 * m * max(n, 4) * (1 if spread is None else spread.heads * spread.inner)
            for (_, _, m, n), spread in zip(shapes, self.spreads, strict=True)
        )
        self.count = sum(1 if spread is None else spread.heads for spread in self.spreads)
        self.code: dict[tuple[Any, int], tuple[int, int]] = {}
        self.places: list[list[int]] = [[] for _ in self.columns]
        begin = 0
        for (*pair, _, _), spread in zip(shapes, self.spreads, strict=True):
            for _ in range(1 if spread is None else spread.heads):
                for place, value in enumerate(pair):
                    self.places[value].append(begin + place)  # index -1, the last, for no second value
                begin += TOTAL_WORDS

    def __call__(self, *values: Any) -> list[Tensor]:
        rows = values[0].numel() // self.first_columns
        strides = self.columns
        if self.turned:
            given = list(values)
            for index, axis in self.turned:
                given[index] = given[index].movedim(axis, 0)
            values = tuple(given)
        if not all(value.is_contiguous() for value in values):
            values = tuple(
                value if value.dim() == 2 and value.stride(-1) == 1 else value.contiguous() for value in values
            )
            strides = [
                *(
                    value.stride(0) if value.dim() == 2 else columns
                    for value, columns in zip(values, self.columns[:-1], strict=False)
                ),
                0,
            ]
        addresses = [value.data_ptr() for value in values]
        skipped = addresses.pop() if self.past else 0
        sums = [self.like.new_empty(shape) for shape in self.results]
        addresses.append(0)  # of the second value, index -1, where there is none
        words: list[int] = []
        for (first, second, m, n), spread, out in zip(self.shapes, self.spreads, sums, strict=True):
            one, other, to = addresses[first], addresses[second], out.data_ptr()
            if spread is None:
                words += (one, other, to, m, n, strides[first], strides[second], 1, 0, 0, 1, 1)
            else:
                words += spread_words(
                    spread, self.dtype.itemsize, one, other, to, m, n, strides[first], strides[second]
                )
        packed = array("q", words)  # `total` in totals.c
        border, later = 0, None
        for value, places in zip(values, self.places, strict=False):
            if value.__class__ is LaggedWindow:
                border, later = value.border, packed[:] if later is None else later
                for place in places:
                    later[place] += value.later - value.address
        threads = native.thread_count(rows * self.work)
        code, scratch = self._code(native.runtime(self.dtype), threads)
        arguments = [native.begin_of(packed), self.count, scratch, skipped, border, native.begin_of(later)]
        native.run_kernel(code, arguments, rows, 1, scratch * threads, threads, phases=2, dtype=self.dtype)
        return sums

    def _code(self, code: Any, threads: int) -> tuple[int, int]:
        key = (code, threads)
        if key not in self.code:
            letter, words = native.letter_of(self.dtype), array("q")
            for (_, second, m, n), spread in zip(self.shapes, self.spreads, strict=True):
                for _ in range(1 if spread is None else spread.heads):
                    words.extend((0, int(second >= 0), 0, m, n, 0, 0, 1, 0, 0, 1, 1))
            scratch = getattr(code, f"totals_scratch_{letter}")(words.buffer_info()[0], self.count, threads)
            self.code[key] = (native.address_of(getattr(code, f"totals_{letter}")), scratch)
        return self.code[key]


def spread_words(
    spread: Spread, size: int, one: int, other: int, out: int, m: int, n: int, stride: int, other_stride: int
) -> list[int]:
    """The words of a `total` in totals.c for each head.

    size                   bytes of a number
    one, other, out        addresses of the values, 0 for a second one that does not exist, and of the result
    stride, other_stride   numbers from row to row
    """
    begin, head, inner, along = spread.first
    other_begin, other_head, other_inner, other_along = spread.second
    words: list[int] = []
    for number in range(spread.heads):
        words += (
            one + (begin + number * head) * size,
            other and other + (other_begin + number * other_head) * size,
            out + number * m * n * size,
            *(m, n, stride, other_stride, spread.inner, inner, other_inner, along, other_along),
        )
    return words


def with_row_sums(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which `RowSums` computes the results that are sums over rows.

    There is one call for each dtype and mask of skipped rows, and only where one of its sums is a product, or they are
    large.
    """
    graph, _ = copied(graph)
    groups: dict[tuple[torch.dtype, fx.Node | None], dict[fx.Node, RowSum]] = {}
    for node in dict.fromkeys(results(graph)):
        found = row_sum(node, KERNEL_DTYPES) or sum_of_elements(node, KERNEL_DTYPES)
        if found is not None:
            groups.setdefault((node.meta["val"].dtype, found.past), {})[node] = found
    for sums in groups.values():
        multiplied = any(one.second is not None for one in sums.values())
        if multiplied or sum(one.m for one in sums.values()) >= MIN_SUMMED:
            _call_together(graph, sums)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def sums_in_turn(stage: Stage) -> list[Stage]:
    """An at-once stage as several: one for the sums of each large input, so that its memory is freed early.

    All other results stay together in one stage. A stage with states, or with nothing to divide, is returned alone.
    """
    groups: dict[fx.Node | None, list[int]] = {}
    for index, node in enumerate(results(stage.graph)):
        found = row_sum(node, KERNEL_DTYPES)
        of_inputs = found is not None and all(value is None or value.op == "placeholder" for value in found[:3])
        large = found is not None and of_inputs and _row_bytes(found.first) >= LARGE_ROW_BYTES
        groups.setdefault(found.first if found is not None and large else None, []).append(index)
    if len(groups) < 2 or stage.states:
        return [stage]
    return [_with_results(stage, indices) for indices in groups.values()]


def _with_results(stage: Stage, indices: list[int]) -> Stage:
    """A copy of the stage with only the results at these indices, and without inputs that they do not need."""
    graph, copies = copied(stage.graph)
    nodes = [copies[node] for node in results(stage.graph)]
    graph.output_node().args = (tuple(nodes[index] for index in indices),)
    graph.eliminate_dead_code()
    places = placeholders(graph)[1:]
    kept = [index for index, place in enumerate(places) if place.users]
    for place in places:
        if not place.users:
            graph.erase_node(place)
    reads = tuple(stage.reads[index] for index in kept)
    return replace(stage, graph=graph, reads=reads, writes=tuple(stage.writes[index] for index in indices))


def _call_together(graph: fx.Graph, sums: dict[fx.Node, RowSum]) -> None:
    """Replace sums of the same dtype that skip the same rows by one call, in the graph itself."""
    values = list(dict.fromkeys(value for one in sums.values() for value in one[:2] if value is not None))
    shapes = tuple(
        (values.index(one.first), -1 if one.second is None else values.index(one.second), one.m, one.n)
        for one in sums.values()
    )
    (past,) = {one.past for one in sums.values()}
    function = RowSums(
        shapes,
        values[0].meta["val"].dtype,
        past is not None,
        [one.spread for one in sums.values()],
        [tuple(node.meta["val"].shape) for node in sums],
        [fixed_features(value) for value in values],
        [clean_row_axis(value.meta["val"]) or 0 for value in values],
    )
    call_together(graph, sums, function, [*values, *(() if past is None else (past,))])


def _row_bytes(node: fx.Node) -> int:
    columns: int = columns_of(node) * node.meta["val"].dtype.itemsize
    return columns
