"""The C that is not generated: the texts beside this file, and what all kernels share made of them.

Knows how wide a vector is; knows nothing of any one kernel.
"""

from __future__ import annotations

from importlib import resources


def part(name: str) -> str:
    """One of the texts that lie beside this file."""
    return resources.files("leporello.engine.cpu").joinpath(name).read_text(encoding="utf-8")


def runtime_text(wide_bytes: int) -> str:
    """What all kernels share: products and sums of both types of numbers, and the threads."""
    lines = []
    for real, integer, letter, size in (("float", "int", "f", 4), ("double", "long long", "d", 8)):
        lines += [f"#define REAL {real}", f"#define WIDE {wide_bytes // size}", f"#define NAME(name) name##_{letter}"]
        lines.append(f"#define INTEGER {integer}")
        lines += [f"#define ROWS {tile_rows(wide_bytes)}", part("products.c"), part("totals.c"), part("multiply.c")]
        lines += [f"#undef {name}" for name in ("REAL", "INTEGER", "WIDE", "NAME", "ROWS")]
    return "\n".join([part("team.c"), "#include <stdint.h>", "#include <string.h>", *lines, part("threads.c")])


def tile_rows(wide_bytes: int) -> int:
    """Rows of a tile: as many as two vectors each leave room for in the registers."""
    return 12 if wide_bytes == 64 else 6
