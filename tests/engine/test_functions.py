"""The functions of generated C: within 4 units in the last place over the whole range; infinities and NaN are kept."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from leporello.engine.cpu.build import library
from leporello.engine.cpu.c_emitter import c_file

FUNCTIONS: dict[str, Any] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))),
}
KINDS = {"f": (np.float32, np.uint32, np.float64), "d": (np.float64, np.uint64, np.longdouble)}
MOST = 4.0  # units in the last place


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEPORELLO_CFLAGS", raising=False)


def applied(name: str, letter: str, x: np.ndarray) -> np.ndarray:
    real = "float" if letter == "f" else "double"
    text = (
        f"#define REAL {real}\n{c_file('functions.c')}\n"
        f"void all(const {real} *x, {real} *y, long n) {{\n"
        f"    for (long i = 0; i < n; i++) y[i] = {name}_{letter}(x[i]);\n}}\n"
    )
    found, _ = library(text, f"{name}_{letter}")
    y = np.empty_like(x)
    pointer = ctypes.c_void_p
    found.all(x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), ctypes.c_long(len(x)))
    return y


def everywhere(letter: str) -> np.ndarray:
    """Numbers of every size and sign: bit patterns at equal distances, and what surrounds nought, one and the ends."""
    real, bits, _ = KINDS[letter]
    info = np.iinfo(bits)
    patterns = np.linspace(0, float(info.max), 1_000_003, dtype=np.longdouble).astype(bits)
    edges = np.array(
        [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, np.finfo(real).max, np.finfo(real).tiny], dtype=real
    )
    near = np.concatenate(
        [np.linspace(-30, 30, 400_001), np.linspace(-0.01, 0.01, 100_001), np.linspace(-800, 800, 100_001)]
    )
    return np.concatenate([patterns.view(real), edges, near.astype(real)])


def error(y: np.ndarray, exact: np.ndarray, real: Any) -> np.ndarray:
    """In units of the last place of the exact value, as this type has it."""
    rounded = exact.astype(real)
    unit = np.spacing(np.abs(rounded)).astype(exact.dtype)
    return np.abs(y.astype(exact.dtype) - exact) / unit


@pytest.mark.parametrize("letter", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_are_exact_to_four_units_in_the_last_place(name: str, letter: str) -> None:
    real, _, wider = KINDS[letter]
    x = everywhere(letter)
    y, exact = applied(name, letter, x), FUNCTIONS[name](x.astype(wider))
    rounded = exact.astype(real)
    special = ~np.isfinite(rounded)
    assert np.array_equal(y[special], rounded[special], equal_nan=True)
    off = error(y[~special], exact[~special], real)
    worst = int(np.argmax(off))
    assert off[worst] <= MOST, f"{name}({x[~special][worst]!r}) is {y[~special][worst]!r}: {off[worst]:.1f} units off"
