"""In which precision a step computes, whatever its inputs and parameters are stored in: by it errors are judged.

A net in float64 whose step says `lp.time() / 7` computes that quotient in float32, as every loop in torch does: there
integers become numbers of torch's default dtype. Two right implementations of it differ by the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.graph import operator_name
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import OwnGradient

# Relative errors that rounding alone explains over a few hundred steps.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-3,
    torch.complex64: 2e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 2e-1,
}

# Operators that round nothing, unless they convert to a narrower type: what they give are elements of what they read,
_MOVED = (
    "alias as_strided broadcast_in_dim clone contiguous copy copy_ detach diagonal expand expand_as flatten "
    "getitem lift lift_fresh lift_fresh_copy permute reshape select slice split split_with_sizes squeeze stop t "
    "transpose unbind unflatten unfold unsqueeze view _reshape_alias _to_copy _unsafe_view convert_element_type "
    "own_gradient imag real view_as_complex view_as_real cat constant_pad_nd diagonal_scatter embedding flip "
    "gather index index_select repeat roll rot90 scatter select_scatter slice_scatter stack take tril triu where "
    "masked_fill _unsafe_index"
)
# one of them, a bound, or a whole number,
_CHOSEN = (
    "abs amax amin aminmax ceil clamp clamp_max clamp_min copysign cummax cummin floor fmax fmin hardtanh "
    "heaviside max maximum max_pool2d_with_indices median min minimum nan_to_num neg relu round sgn sign sort "
    "threshold topk trunc"
)
# or numbers that every loop has alike.
_GIVEN = (
    "arange empty empty_like eye fill full full_like new_empty new_full new_ones new_zeros ones ones_like "
    "scalar_tensor zeros zeros_like"
)
EXACT = frozenset(f"{_MOVED} {_CHOSEN} {_GIVEN}".split())


def narrowest_precision(
    loop: Loop, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]
) -> tuple[torch.dtype, str | None]:
    """The narrowest real dtype that a step rounds to, or that a gradient is stored in: it says what rounding explains.

    With it, in words, where it comes from, if it is narrower than that of the outputs; else None.

    loop                as the step was traced
    values, gradients   of a call, by name
    """
    stored = next((value.dtype.to_real() for value in values.values() if value.dtype in TOLERANCE), torch.float64)
    found = {
        dtype: "the step computes in it" + (f", {line}" if line else "") for dtype, line in roundings(loop).items()
    }
    for name, gradient in gradients.items():
        if gradient is not None:
            found.setdefault(gradient.dtype.to_real(), f"the gradient of '{name}' is stored in it")
    narrowest = max((dtype for dtype in found if dtype in TOLERANCE), key=TOLERANCE.__getitem__, default=stored)
    return narrowest, found[narrowest] if TOLERANCE[narrowest] > TOLERANCE[stored] else None


def roundings(loop: Loop) -> dict[torch.dtype, str | None]:
    """The real dtypes that a step rounds to on the way to its results, each with the user's line that does it first.

    What a comparison or an index is made of is none: rounding reaches the results through numbers alone.
    """
    reaching = _reaching([*loop.results, *loop.written.values()])
    found: dict[torch.dtype, str | None] = {}
    for node in loop.nodes:
        if node in reaching:
            parts = [node, *node.target.graph.nodes] if isinstance(node.target, OwnGradient) else [node]
            for part in parts:
                for dtype in _rounded_to(part):
                    found[dtype] = found.get(dtype) or part.meta.get("line") or node.meta.get("line")
    return found


def _reaching(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The values that results are computed of, through numbers alone."""
    pending, found = list(results), set[fx.Node]()
    while pending:
        node = pending.pop()
        if node not in found and any(True for _ in _dtypes(node)):
            found.add(node)
            pending += node.all_input_nodes
    return found


def _rounded_to(node: fx.Node) -> Iterator[torch.dtype]:
    """The dtypes that an operator rounds its results to."""
    if node.op != "call_function":
        return
    exact = operator_name(node) in EXACT
    read = [torch.finfo(dtype).eps for source in node.all_input_nodes for dtype in _dtypes(source)]
    for dtype in _dtypes(node):
        if not exact or any(eps < torch.finfo(dtype).eps for eps in read):
            yield dtype


def _dtypes(node: fx.Node) -> Iterator[torch.dtype]:
    """The real dtypes of the numbers in a node's value: of none for integers and booleans."""
    value: Any = node.meta.get("val")
    for part in value if isinstance(value, (tuple, list)) else [value]:
        if isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex()):
            yield part.dtype.to_real()
