"""Sums over all rows of a window, of which the gradients of matrices and biases consist; several of them in one call.

They read the same values, so that all but the first read them from the cache. `sums_in_turn` and `with_row_sums` find
them in an at-once stage; `RowSums` computes them with totals.c.
"""

from __future__ import annotations

import operator
from array import array
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from leporello.engine.cpu import native
from leporello.loop.graph import arguments, copied, placeholders, results
from leporello.loop.stages import Stage
from leporello.rewrite.skip_padding import masked_row_sum, row_sum_operands

KERNEL_DTYPES = (torch.float32, torch.float64)
LARGE_ROW_BYTES = 1024  # the sums of a value whose rows are at least as large are a stage of their own
SumShapes = tuple[tuple[int, int, int, int], ...]  # see RowSums


class RowSums:
    """For each pair of values first.t() @ second, or first.sum(0, keepdim=True) without a second; a list of tensors.

    Each value is an argument of the call once, however many sums read it.

    shapes    for each sum: the index of the first value, that of the second or -1, and their numbers of columns
    columns   of each value, and a last 0, found at index -1, for a second value that does not exist
    past      whether the last argument of a call is the mask of rows that are skipped
    work      approximate operations for one row
    code      by runtime library and number of threads: the address of the function, and bytes of scratch per thread
    """

    __name__ = "totals"
    reads_sequences = True  # takes [steps, batch, columns], contiguous, as well as [rows, columns]

    def __init__(self, shapes: SumShapes, dtype: torch.dtype, past: bool = False) -> None:
        self.shapes, self.dtype, self.past = shapes, dtype, past
        self.results = [(1, m) if second < 0 else (m, n) for _, second, m, n in shapes]
        columns = {value: count for first, second, m, n in shapes for value, count in ((first, m), (second, n))}
        self.columns = [columns[value] for value in range(len(columns) - (-1 in columns))] + [0]
        self.first_columns = self.columns[0]
        self.like = torch.empty(0, dtype=dtype, device=native.CPU)
        self.work = sum(2 * m * max(n, 4) for _, _, m, n in shapes)
        self.code: dict[tuple[Any, int], tuple[int, int]] = {}

    def __call__(self, *values: Tensor) -> list[Tensor]:
        rows = values[0].numel() // self.first_columns
        strides = self.columns
        if not all(value.is_contiguous() for value in values):
            values = tuple(value if value.stride(-1) == 1 else value.contiguous() for value in values)
            strides = [*(value.stride(-2) for value in values[: len(self.columns) - 1]), 0]
        addresses = [value.data_ptr() for value in values]
        skipped = addresses.pop() if self.past else 0
        addresses.append(0)  # of the second value, index -1, where there is none
        sums = [self.like.new_empty(*shape) for shape in self.results]
        words: list[int] = []
        for (first, second, m, n), out in zip(self.shapes, sums, strict=True):
            words += (addresses[first], addresses[second], out.data_ptr(), m, n, strides[first], strides[second])
        packed = array("q", words)  # `total` in totals.c
        threads = native.thread_count(rows * self.work)
        code, scratch = self._code(native.runtime(self.dtype), threads)
        given = [packed.buffer_info()[0], len(sums), scratch, skipped]
        native.run_kernel(code, given, rows, 1, scratch * threads, threads, phases=2, dtype=self.dtype)
        return sums

    def _code(self, code: Any, threads: int) -> tuple[int, int]:
        key = (code, threads)
        if key not in self.code:
            letter, words = native.letter_of(self.dtype), array("q")
            for _, second, m, n in self.shapes:
                words.extend((0, int(second >= 0), 0, m, n, 0, 0))
            scratch = getattr(code, f"totals_scratch_{letter}")(words.buffer_info()[0], len(self.shapes), threads)
            self.code[key] = (native.address_of(getattr(code, f"totals_{letter}")), scratch)
        return self.code[key]


class _RowSum(NamedTuple):
    """first.t() @ second, or the sum of `first`, over rows; `past` is the mask of rows that are skipped."""

    first: fx.Node
    second: fx.Node | None
    past: fx.Node | None


def with_row_sums(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which `RowSums` computes the results that are sums over rows.

    There is one call for each dtype and mask of skipped rows, and only where one of its sums is a product.
    """
    graph, _ = copied(graph)
    groups: dict[tuple[torch.dtype, fx.Node | None], dict[fx.Node, _RowSum]] = {}
    for node in dict.fromkeys(results(graph)):
        row_sum = _row_sum(node)
        if row_sum is not None:
            groups.setdefault((node.meta["val"].dtype, row_sum.past), {})[node] = row_sum
    for sums in groups.values():
        if any(row_sum.second is not None for row_sum in sums.values()):
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
        row_sum = _row_sum(node)
        of_inputs = row_sum is not None and all(value is None or value.op == "placeholder" for value in row_sum)
        large = row_sum is not None and of_inputs and _row_bytes(row_sum.first) >= LARGE_ROW_BYTES
        groups.setdefault(row_sum.first if row_sum is not None and large else None, []).append(index)
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


def _call_together(graph: fx.Graph, sums: dict[fx.Node, _RowSum]) -> None:
    """Replace sums of the same dtype that skip the same rows by one call, in the graph itself."""
    values = list(dict.fromkeys(value for row_sum in sums.values() for value in row_sum[:2] if value is not None))
    shapes = tuple(
        (values.index(first), -1 if second is None else values.index(second), _columns(first), _columns(second))
        for first, second, _ in sums.values()
    )
    (past,) = {row_sum.past for row_sum in sums.values()}
    function = RowSums(shapes, values[0].meta["val"].dtype, past is not None)
    with graph.inserting_before(graph.output_node()):
        together = graph.call_function(function, (*values, *(() if past is None else (past,))))
        for index, node in enumerate(sums):
            part = graph.call_function(operator.getitem, (together, index))
            part.meta.update(node.meta)
            node.replace_all_uses_with(part)


def _row_sum(node: fx.Node) -> _RowSum | None:
    """The operands of a sum over rows, if that is what a result is; None if not, or if `RowSums` cannot compute it.

    It can if no other operator reads the sum, and all operands have columns and a dtype of `KERNEL_DTYPES`.
    """
    if any(user.op != "output" for user in node.users):
        return None
    if node.target is masked_row_sum:
        first, second, past = arguments(node)
    else:
        first, second = row_sum_operands(node) or (None, None)
        past = None
    values = [value for value in (first, second) if value is not None]
    fixed = all(isinstance(value.meta["val"].shape[1], int) for value in values)
    supported = fixed and all(value.meta["val"].dtype in KERNEL_DTYPES and _columns(value) for value in values)
    return _RowSum(first, second, past) if values and supported else None


def _row_bytes(node: fx.Node) -> int:
    columns: int = _columns(node) * node.meta["val"].dtype.itemsize
    return columns


def _columns(node: fx.Node | None) -> int:
    return 1 if node is None else int(node.meta["val"].shape[1])
