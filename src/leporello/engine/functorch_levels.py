"""The levels of torch.func's transforms: whether one is active, and what the wrappers of a tensor hold.

Each transform is a level, and wraps the tensors that it works on. torch has no public functions for this: the private
ones are used here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad


def is_transforming() -> bool:
    """Whether a transform of torch.func, or a level of `torch.autograd.forward_ad`, is active in this thread."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def tracked(values: Sequence[Tensor]) -> list[bool]:
    """For each operand of one function whether its gradient is wanted, as far as the function decides.

    That is at the levels above the last vmap which maps one of the operands, and outside of all levels where none does.
    For the levels below, the rule of that vmap asks again.
    """
    layers = [list(_layers(value)) for value in values]
    last = max((_functorch.maybe_get_level(each) for of in layers for each in of if _is_mapped(each)), default=0)
    return [any(layer.requires_grad and _level(layer) >= last for layer in of) for of in layers]


def plain_value(value: Tensor) -> Tensor:
    """The tensor without its wrappers, with the axes of all vmaps that it has."""
    *_, value = _layers(value)
    return value


def one_of_all(value: Tensor) -> Tensor:
    """A plain tensor of the shape that the value has inside of all transforms: the first along each mapped axis."""
    value = _functorch.unwrap_if_dead(value)
    while _functorch.is_functorch_wrapped_tensor(value):
        inner = _functorch.get_unwrapped(value)
        if _is_mapped(value):
            inner = inner.select(_functorch.maybe_get_bdim(value), 0)
        value = _functorch.unwrap_if_dead(inner)
    return value.detach()


def _is_mapped(layer: Tensor) -> bool:
    """Whether a layer is the wrapper of a vmap."""
    return bool(_functorch.is_batchedtensor(layer))


def _level(layer: Tensor) -> int:
    """The level of a wrapper, 0 for a plain tensor; -1 for a wrapper of vmap, which tracks nothing."""
    if _is_mapped(layer):
        return -1
    return int(_functorch.maybe_get_level(layer)) if _functorch.is_functorch_wrapped_tensor(layer) else 0


def _layers(value: Tensor) -> Iterator[Tensor]:
    """The tensor, then what each of its wrappers holds."""
    value = _functorch.unwrap_if_dead(value)
    yield value
    while _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.unwrap_if_dead(_functorch.get_unwrapped(value))
        yield value
