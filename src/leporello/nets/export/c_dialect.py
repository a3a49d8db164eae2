"""How portable C99 spells the operators of kernels: libm's functions, and helpers for what libm lacks."""

from __future__ import annotations

import re

import torch

from leporello.engine.cpu.c_emitter import c_file
from leporello.engine.cpu.c_operators import INTEGER_SPELLING, SPELLING, Dialect

_LIBM = ("exp", "log", "log1p", "tanh", "sqrt", "floor", "ceil", "trunc")
C99 = Dialect(
    spelling={
        **SPELLING,
        **{name: name + "{m}({0})" for name in _LIBM},
        "abs": "fabs{m}({0})",
        "round": "rint{m}({0})",
        "rsqrt": "1 / sqrt{m}({0})",
        "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
        "sgn": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
        "relu": "{0} <= 0 ? 0 : {0}",
        "signbit": "signbit({0}) != 0",
        "copysign": "copysign{m}({0}, {1})",
        "isinf": "isinf({0}) != 0",
        "isnan": "isnan({0}) != 0",
        "where": "{0} ? {1} : {2}",
    },
    integers=INTEGER_SPELLING,
    nan="NAN",
    infinity="INFINITY",
)

# Functions that a step may call, by name. In those of floating-point numbers REAL is the type and {m} the ending of
# libm's functions; {s} is f or d.
_OF_REALS = {
    "sigmoid": """
        static REAL sigmoid_{s}(REAL x) {{
            const REAL z = exp{m}(-fabs{m}(x));
            return x >= 0 ? 1 / (1 + z) : z / (1 + z);
        }}""",
    "remainder": """
        static REAL remainder_{s}(REAL a, REAL b) {{ /* as in Python: it has the sign of the divisor */
            const REAL r = fmod{m}(a, b);
            return r != 0 && (r < 0) != (b < 0) ? r + b : r;
        }}""",
    "floor_divide": """
        static REAL floor_divide_{s}(REAL a, REAL b) {{
            REAL r, q, whole;
            if (b == 0) return a / b;
            r = fmod{m}(a, b), q = (a - r) / b;
            if (r != 0 && (r < 0) != (b < 0)) q -= 1;
            if (q == 0) return copysign{m}(0, a / b);
            whole = floor{m}(q);
            return q - whole > (REAL)0.5 ? whole + 1 : whole;
        }}""",
    "product": """
        /* out[n] = sum of left[k] w[k, n]: the matrix is in tiles of eight columns, the last one narrower */
        static void product_{s}(const REAL *restrict w, const REAL *restrict left, REAL *restrict out, long inner,
                               long outer) {{
            for (long n = 0; n < outer; n += 8) {{
                REAL sum[8] = {{0}};
                if (outer - n >= 8) {{
                    for (long k = 0; k < inner; k++, w += 8)
                        for (int j = 0; j < 8; j++) sum[j] += left[k] * w[j];
                    for (int j = 0; j < 8; j++) out[n + j] = sum[j];
                }} else {{
                    const int rest = (int)(outer - n);
                    for (long k = 0; k < inner; k++, w += rest)
                        for (int j = 0; j < rest; j++) sum[j] += left[k] * w[j];
                    for (int j = 0; j < rest; j++) out[n + j] = sum[j];
                }}
            }}
        }}""",
}
_OF_INTEGERS = {
    "quotient_i": """
        static int64_t quotient_i(int64_t a, int64_t b) { /* 0 for a divisor of zero, as all divisions here */
            return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
        }""",
    "fmod_i": """
        static int64_t fmod_i(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }""",
    "remainder_i": """
        static int64_t remainder_i(int64_t a, int64_t b) {
            const int64_t r = fmod_i(a, b);
            return r != 0 && (r < 0) != (b < 0) ? r + b : r;
        }""",
    "floor_divide_i": """
        static int64_t floor_divide_i(int64_t a, int64_t b) {
            return quotient_i(a, b) - (fmod_i(a, b) != 0 && (a < 0) != (b < 0));
        }""",
    "power_i": """
        static int64_t power_i(int64_t base, int64_t exponent) {
            uint64_t found = 1, square = (uint64_t)base;
            if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
            for (; exponent; exponent /= 2, square *= square)
                if (exponent % 2) found *= square;
            return (int64_t)found;
        }""",
}
_NEEDED_BY = {"remainder_i": ("fmod_i",), "floor_divide_i": ("quotient_i", "fmod_i")}
_MACROS = {
    "minimum_": "#define minimum_(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))",
    "maximum_": "#define maximum_(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))",
}
STORED_NARROWER = {torch.int8: ("int8", "int8_t")}  # types of matrices whose numbers become REAL as they are read


def helpers_for(text: str) -> str:
    """The definitions of the functions that a C text calls, in an order in which they can stand."""
    used = set(re.findall(r"[a-z_0-9]+(?=\()", text))
    parts = [macro for name, macro in _MACROS.items() if name in used]
    for name in [name for name in _NEEDED_BY if name in used]:
        used.update(_NEEDED_BY[name])
    parts += [_dedented(body) for name, body in _OF_INTEGERS.items() if name in used]
    for name, body in _OF_REALS.items():
        for letter, ending, real in (("f", "f", "float"), ("d", "", "double")):
            if f"{name}_{letter}" in used:
                parts.append(_dedented(body.format(s=letter, m=ending)).replace("REAL", real))
            for stored, of in STORED_NARROWER.values():
                if f"{name}_{stored}_{letter}" in used:
                    one = _dedented(body.format(s=f"{stored}_{letter}", m=ending))
                    parts.append(one.replace("const REAL *restrict w", f"const {of} *restrict w").replace("REAL", real))
    if used & {"sort_all", "select_first"}:
        parts.append("#define INLINE static inline\n" + c_file("selection.c").rstrip())
    return "\n\n".join(parts)


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix(" " * 8) for line in text.strip("\n").split("\n"))
