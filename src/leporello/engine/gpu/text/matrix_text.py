"""Functions of a kernel's text: elements of vectors by their position, and of matrices as products take them."""

from __future__ import annotations

from collections.abc import Sequence

from leporello.engine.gpu.division.geometry import Geometry, padded_own, per_chunk
from leporello.engine.gpu.division.schedule import Multiplication, Places, Result, Schedule, Vector, are_regular
from leporello.engine.gpu.text.cuda_expressions import FROM_STORAGE, STORAGE
from leporello.engine.gpu.text.lines import Lines
from leporello.engine.gpu.text.memory import Memory


def vector_reader(lines: Lines, geometry: Geometry, index: int, vector: Vector) -> None:
    """A function that reads an element of a vector by its position in the buffer."""
    own, padded = geometry.own(vector.space), padded_own(vector, geometry)
    lines.emit(f"INLINE float get_{index}(const Block &b, int tile, long slot, int row, int at) {{")
    if are_regular(vector.places, vector.space):
        lines.emit(f"const int part = at / {vector.space}, unit = at % {vector.space};", 1)
    else:
        inverse = [0] * int(vector.of.count)
        for number, places in enumerate(vector.places):
            for unit, place in enumerate(places):
                inverse[place] = number * vector.space + unit
        lines.emit(f"static const int table[] = {{{', '.join(map(str, inverse))}}};", 1)
        lines.emit(f"const int part = table[at] / {vector.space}, unit = table[at] % {vector.space};", 1)
    lines.emit(f"return V{index}::at(b, tile, slot, row, unit / {own}, part * {padded} + unit % {own});", 1)
    lines.emit("}")


def matrix_elements(lines: Lines, schedule: Schedule, memory: Memory, index: int) -> None:
    """The elements of the matrices of a multiplication: for each row of its result and element of its vector.

    `element` gives one. Where the elements of every chunk are at equal distances in one matrix, `first` gives the
    address of the first one, null where all are zero, and `step` the distance.
    """
    multiplication, tiling, geometry = schedule.multiplications[index], memory.tilings[index], memory.geometry
    vector = multiplication.vector
    own, padded, in_head = geometry.own(vector.space), padded_own(vector, geometry), geometry.in_head(vector.space)
    even = _is_even(schedule, geometry, multiplication)
    matrices = {schedule.kernel.matrices[result.product.matrix] for result in multiplication.results}
    (number, *_) = {STORAGE[schedule.kernel.buffers["fixed"][matrix.fixed].dtype] for matrix in matrices}
    lines.emit(f"namespace {{ struct W{index} {{")  # unnamed, so that two libraries of the host share no table
    lines.emit(f"static const int ROWS = {tiling.rows};", 1)
    lines.emit(f"static const bool EVEN = {str(even).lower()};", 1)
    lines.emit(f"typedef {number} Number;", 1)
    arguments = "const Given &given, int head, int rank, int row, int from, int index"
    for is_first in (False, True):
        if is_first:
            lines.emit(f"METHOD static const Number *first({arguments}, long &step) {{", 1)
            lines.emit("step = 1;", 2)
        else:
            lines.emit(f"METHOD static float element({arguments}) {{", 1)
        nothing = "return nullptr;" if is_first else "return 0.0f;"
        if not (is_first and not even):
            lines.emit(f"const int part = index / {padded}, mine = index % {padded}, in_head = from * {own} + mine;", 2)
            lines.emit(f"if (mine >= {own} || in_head >= {in_head} || part >= {len(vector.places)}) {nothing}", 2)
            lines.emit(f"const int unit = head * {in_head} + in_head;", 2)
            lines.emit(f"const int at = {_position(lines, vector.places, vector.space, 'part', 'unit', 2)};", 2)
            for result in multiplication.results:
                _elements_of(lines, schedule, memory, result, nothing, is_first=is_first)
        lines.emit(nothing, 2)
        lines.emit("}", 1)
    lines.emit("METHOD static bool is_wide(const Given &given) {", 1)
    lines.emit(f"return EVEN && {' && '.join(_wide(schedule, memory, one) for one in multiplication.results)};", 2)
    lines.emit("}", 1)
    lines.emit("}; }")


def _is_even(schedule: Schedule, geometry: Geometry, multiplication: Multiplication) -> bool:
    """Whether each chunk of the vector meets elements at equal distances of one matrix, or zeros alone."""
    vector, per = multiplication.vector, per_chunk(multiplication.vector)
    sizes = [geometry.own(vector.space), geometry.in_head(vector.space), vector.space]
    for result in multiplication.results:
        sizes += [result.product.offset, result.product.inner]
    fixed = schedule.kernel.buffers["fixed"]
    kinds = {fixed[schedule.kernel.matrices[result.product.matrix].fixed].dtype for result in multiplication.results}
    alike = kinds == {vector.of.dtype}
    return alike and are_regular(vector.places, vector.space) and not any(size % per for size in sizes)


def _wide(schedule: Schedule, memory: Memory, result: Result) -> str:
    """Whether the rows of a matrix are contiguous along the vector, and aligned to 16 bytes."""
    matrix = schedule.kernel.matrices[result.product.matrix]
    word = memory.words["matrix", result.product.matrix]
    bytes_of = schedule.kernel.buffers["fixed"][matrix.fixed].dtype.itemsize
    aligned = (
        f"(given.word[{word}] | given.word[{word + 3}] * {bytes_of} | given.word[{word + 1}] * {bytes_of}) % 16 == 0"
    )
    return f"given.word[{word + 2}] == 1 && {aligned}"


def _position(lines: Lines, places: Sequence[Places], space: int, part: str, unit: str, depth: int) -> str:
    """The position of a unit's element of a part; of irregular ones a table is written first."""
    if are_regular(places, space):
        return f"{part} * {space} + {unit}"
    table = ", ".join(str(place) for one in places for place in one)
    lines.emit(f"static const int table[] = {{{table}}};", depth)
    return f"table[{part} * {space} + {unit}]"


def _elements_of(
    lines: Lines, schedule: Schedule, memory: Memory, result: Result, nothing: str, *, is_first: bool
) -> None:
    block, space = result.product, result.space
    own, heads, in_head = memory.geometry.own(space), int(block.heads), memory.geometry.in_head(space)
    matrix = schedule.kernel.matrices[block.matrix]
    buffer, word = schedule.kernel.buffers["fixed"][matrix.fixed], memory.words["matrix", block.matrix]
    lines.emit(f"if (row < {own * result.parts}) {{", 2)
    lines.emit(f"const int u = rank * {own} + row % {own}, k = at - {block.offset};", 3)
    lines.emit(f"if (u >= {in_head} || k < 0 || k >= {heads * block.inner}) {nothing}", 3)
    position = _position(lines, result.places, space, f"row / {own}", f"head * {in_head} + u", 3)
    lines.emit(f"const int n = {position};", 3)
    which = "0"
    if heads > 1:
        lines.emit(f"if (n / {block.outer} != k / {block.inner}) {nothing}", 3)
        which = f"{'n / ' + str(block.outer) if matrix.heads > 1 else '0'}"
    place = f"{which} * (long)given.word[{word + 1}] + k % {block.inner} * (long)given.word[{word + 2}]"
    place += f" + n % {block.outer} * (long)given.word[{word + 3}]"
    if is_first:
        lines.emit(f"step = (long)given.word[{word + 2}];", 3)
        lines.emit(f"return (const Number *)given.word[{word}] + {place};", 3)
    else:
        loaded = f"((const {STORAGE[buffer.dtype]} *)given.word[{word}])[{place}]"
        lines.emit(f"return {FROM_STORAGE.get(buffer.dtype, '{0}').format(loaded)};", 3)
    lines.emit("}", 2)
    lines.emit(f"row -= {own * result.parts};", 2)
