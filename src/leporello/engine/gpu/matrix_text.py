"""Functions of a kernel's text: elements of vectors by their position, and of matrices as products take them."""

from __future__ import annotations

from leporello.engine.gpu.cuda_expressions import FROM_STORAGE, STORAGE
from leporello.engine.gpu.geometry import Geometry, padded_own
from leporello.engine.gpu.lines import Lines
from leporello.engine.gpu.memory import Memory
from leporello.engine.gpu.schedule import Schedule, Vector
from leporello.kernel.description import Product


def vector_reader(lines: Lines, geometry: Geometry, index: int, vector: Vector) -> None:
    """A function that reads an element of a vector by its position in the buffer."""
    own, padded = geometry.own(vector.space), padded_own(vector, geometry)
    lines.emit(f"INLINE float get_{index}(const Block &b, int tile, long slot, int row, int at) {{")
    if vector.regular:
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
    multiplication, tiling = schedule.multiplications[index], memory.tilings[index]
    vector = multiplication.vector
    own, padded = memory.geometry.own(vector.space), padded_own(vector, memory.geometry)
    lines.emit(f"struct W{index} {{")
    lines.emit(f"static const int ROWS = {tiling.rows};", 1)
    lines.emit("METHOD static float element(const Given &given, int rank, int row, int from, int index) {", 1)
    lines.emit(f"const int part = index / {padded}, mine = index % {padded}, unit = from * {own} + mine;", 2)
    lines.emit(f"if (mine >= {own} || unit >= {vector.space} || part >= {len(vector.places)}) return 0.0f;", 2)
    if vector.regular:
        lines.emit(f"const int at = part * {vector.space} + unit;", 2)
    else:
        table = ", ".join(str(place) for places in vector.places for place in places)
        lines.emit(f"static const int table[] = {{{table}}};", 2)
        lines.emit(f"const int at = table[part * {vector.space} + unit];", 2)
    for product in multiplication.products:
        _elements_of(lines, schedule, memory, product)
    lines.emit("return 0.0f;", 2)
    lines.emit("}", 1)
    lines.emit("};")


def _elements_of(lines: Lines, schedule: Schedule, memory: Memory, product: tuple[Product, int, int]) -> None:
    block, space, parts = product
    own, heads = memory.geometry.own(space), int(block.heads)
    matrix = schedule.kernel.matrices[block.matrix]
    buffer, word = schedule.kernel.buffers["fixed"][matrix.fixed], memory.words["matrix", block.matrix]
    lines.emit(f"if (row < {own * parts}) {{", 2)
    lines.emit(f"const int u = rank * {own} + row % {own}, n = row / {own} * {space} + u, k = at - {block.offset};", 3)
    lines.emit(f"if (u >= {space} || k < 0 || k >= {heads * block.inner}) return 0.0f;", 3)
    head = "0"
    if heads > 1:
        lines.emit(f"if (n / {block.outer} != k / {block.inner}) return 0.0f;", 3)
        head = f"{'n / ' + str(block.outer) if matrix.heads > 1 else '0'}"
    place = f"{head} * (long)given.word[{word + 1}] + k % {block.inner} * (long)given.word[{word + 2}]"
    place += f" + n % {block.outer} * (long)given.word[{word + 3}]"
    loaded = f"((const {STORAGE[buffer.dtype]} *)given.word[{word}])[{place}]"
    lines.emit(f"return {FROM_STORAGE.get(buffer.dtype, '{0}').format(loaded)};", 3)
    lines.emit("}", 2)
    lines.emit(f"row -= {own * parts};", 2)
