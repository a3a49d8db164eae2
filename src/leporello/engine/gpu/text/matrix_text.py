"""Functions of a kernel's text: elements of vectors by their position, and of matrices as products take them."""

from __future__ import annotations

from collections.abc import Sequence

from leporello.engine.gpu.division.geometry import Geometry, padded_own
from leporello.engine.gpu.division.schedule import Places, Result, Schedule, Vector, are_regular
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
    """The elements of the matrices of a multiplication: for each row of its result and element of its vector."""
    multiplication, tiling, geometry = schedule.multiplications[index], memory.tilings[index], memory.geometry
    vector = multiplication.vector
    own, padded, in_head = geometry.own(vector.space), padded_own(vector, geometry), geometry.in_head(vector.space)
    lines.emit(f"namespace {{ struct W{index} {{")  # unnamed, so that two libraries of the host share no table
    lines.emit(f"static const int ROWS = {tiling.rows};", 1)
    arguments = "const Given &given, int head, int rank, int row, int from, int index"
    lines.emit(f"METHOD static float element({arguments}) {{", 1)
    lines.emit(f"const int part = index / {padded}, mine = index % {padded}, in_head = from * {own} + mine;", 2)
    lines.emit(f"if (mine >= {own} || in_head >= {in_head} || part >= {len(vector.places)}) return 0.0f;", 2)
    lines.emit(f"const int unit = head * {in_head} + in_head;", 2)
    lines.emit(f"const int at = {_position(lines, vector.places, vector.space, 'part', 'unit', 2)};", 2)
    for result in multiplication.results:
        _elements_of(lines, schedule, memory, result)
    lines.emit("return 0.0f;", 2)
    lines.emit("}", 1)
    lines.emit("}; }")


def _position(lines: Lines, places: Sequence[Places], space: int, part: str, unit: str, depth: int) -> str:
    """The position of a unit's element of a part; of irregular ones a table is written first."""
    if are_regular(places, space):
        return f"{part} * {space} + {unit}"
    table = ", ".join(str(place) for one in places for place in one)
    lines.emit(f"static const int table[] = {{{table}}};", depth)
    return f"table[{part} * {space} + {unit}]"


def _elements_of(lines: Lines, schedule: Schedule, memory: Memory, result: Result) -> None:
    block, space = result.product, result.space
    own, heads, in_head = memory.geometry.own(space), int(block.heads), memory.geometry.in_head(space)
    matrix = schedule.kernel.matrices[block.matrix]
    buffer, word = schedule.kernel.buffers["fixed"][matrix.fixed], memory.words["matrix", block.matrix]
    lines.emit(f"if (row < {own * result.parts}) {{", 2)
    lines.emit(f"const int u = rank * {own} + row % {own}, k = at - {block.offset};", 3)
    lines.emit(f"if (u >= {in_head} || k < 0 || k >= {heads * block.inner}) return 0.0f;", 3)
    position = _position(lines, result.places, space, f"row / {own}", f"head * {in_head} + u", 3)
    lines.emit(f"const int n = {position};", 3)
    which = "0"
    if heads > 1:
        lines.emit(f"if (n / {block.outer} != k / {block.inner}) return 0.0f;", 3)
        which = f"{'n / ' + str(block.outer) if matrix.heads > 1 else '0'}"
    place = f"{which} * (long)given.word[{word + 1}] + k % {block.inner} * (long)given.word[{word + 2}]"
    place += f" + n % {block.outer} * (long)given.word[{word + 3}]"
    loaded = f"((const {STORAGE[buffer.dtype]} *)given.word[{word}])[{place}]"
    lines.emit(f"return {FROM_STORAGE.get(buffer.dtype, '{0}').format(loaded)};", 3)
    lines.emit("}", 2)
    lines.emit(f"row -= {own * result.parts};", 2)
