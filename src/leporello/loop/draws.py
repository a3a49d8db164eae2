"""Random numbers as inputs: each random operator of a step becomes a function of a uniform or normal draw.

One table serves the trace, where draws are placeholders, and the replay of a plain Python loop, where they are passed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.errors import UntraceableStep
from leporello.loop.fake_tensors import plain_operators
from leporello.loop.layers_apart import LayersApart

aten = torch.ops.aten
Result = TypeVar("Result")


@dataclass(frozen=True)
class Draw:
    """The random numbers that one operator needs: their distribution, full shape, dtype and device.

    once   whether all steps of a call have the same numbers
    """

    distribution: str  # "uniform" on [0, 1), or "normal"
    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    once: bool = False

    def of_rows(self, rows: Any) -> Draw:
        """The same numbers with the rows in front, where they are merged with the axis behind them.

        rows   the number of rows, a symbol or not
        """
        first = self.shape[0] if self.shape else 1
        if isinstance(first, int) or isinstance(rows, int) or first.node.expr.is_symbol:
            return self
        times = first.node.expr / rows.node.expr
        return replace(self, shape=(rows, int(times), *self.shape[1:])) if times.is_Integer else self


class _Once(threading.local):
    """Whether `once` is running in this thread."""

    running = False


_once = _Once()


def once(function: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """function(*args, **options), whose random numbers are drawn once a call, and are the same at every step.

    Weights dropped for a whole sequence, and a dropout mask that a row keeps:

    >>> weight = once(nn.functional.dropout, self.W.weight, 0.5, self.training)              # doctest: +SKIP
    >>> mask = once(lambda: torch.bernoulli(torch.full_like(h, 0.9)) / 0.9)                  # doctest: +SKIP

    Each call draws anew, and `net.step` is a call: pass `draws` to keep them. A cell that is called by hand draws at
    every step.
    """
    before, _once.running = _once.running, True
    try:
        return function(*args, **options)
    finally:
        _once.running = before


class _Noise(threading.local):
    """The random operators that gave their mean in this thread; None where they draw."""

    at_mean: list[Any] | None = None


_noise = _Noise()


@contextlib.contextmanager
def noise_at_mean() -> Iterator[list[Any]]:
    """While the block runs, a step that is traced has the mean of every random operator in its place; yields those.

    Dropout lets everything through, a normal number is its mean, a coin its probability. Whole numbers and choices have
    no mean, and a comparison with a random number has none either: they are refused.
    """
    before = _noise.at_mean
    found: list[Any] = []
    _noise.at_mean = found
    try:
        yield found
    finally:
        _noise.at_mean = before


def fresh(draw: Draw) -> Tensor:
    """New random numbers from torch's generator."""
    make = torch.rand if draw.distribution == "uniform" else torch.randn
    return make(draw.shape, dtype=draw.dtype, device=draw.device)


def _dropout(draw: Tensor, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    keep = draw < 1 - p  # the same comparison as bernoulli(1 - p), of which dropout is composed elsewhere
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * keep * scale, keep


def _uniform(draw: Tensor, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return draw * (high - low) + low


def _normal(draw: Tensor, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return draw * std + mean


def _bernoulli(draw: Tensor, x: Tensor, p: Any = None, **_: Any) -> Tensor:
    return (draw < (x if p is None else p)).to(x.dtype)


def _exponential(draw: Tensor, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    return -torch.log1p(-draw) / rate


def _multinomial(draw: Tensor, weights: Tensor, count: int, replacement: bool = False, **_: Any) -> Tensor:
    if count != 1:
        raise UntraceableStep(
            "torch.multinomial inside a step can take one sample only.", came=f"{count} samples", expected="1"
        )
    return (weights / -torch.log1p(-draw)).argmax(-1, keepdim=True)  # the first of competing exponential clocks


def _integers(draw: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return (draw * (high - low)).floor().to(dtype) + low


def _mean_of_dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    return (x * 0.0 if p == 1 else x.clone()), torch.ones_like(x, dtype=torch.bool)


def _mean_of_bernoulli(x: Tensor, p: Any = None, **_: Any) -> Tensor:
    if not x.dtype.is_floating_point:
        raise _without_mean("bernoulli of whole numbers")
    return x.clone() if p is None else torch.zeros_like(x) + p


def _constant(value: Callable[..., float]) -> Callable[..., Tensor]:
    """The mean of an operator that has the form of its first argument, as a function of its parameters."""
    return lambda x, *args, **options: torch.full_like(x, value(*args, **options))


def _of_size(value: float) -> Callable[..., Tensor]:
    """The mean of an operator that is called with a size."""
    return lambda size, **options: torch.full(size, value, dtype=options.get("dtype"), device=options.get("device"))


def _without_mean(what: str) -> UntraceableStep:
    return UntraceableStep(
        f"the noise of this step has no mean: {what}.",
        tries="draws=[...], the random numbers of one step; net.eval(), if the noise is of training alone",
    )


@dataclass(frozen=True)
class Rule:
    """A random operator as a function of a draw.

    distribution   of the draw. Its shape is that of the operator's tensor arguments, broadcast; without any, the size
                   that the operator is called with
    value          value(draw, *the operator's own arguments) -> the result
    mean           mean(*the operator's own arguments) -> the mean of the result; None where it has none
    in_place       whether the operator writes the result to its first argument
    """

    distribution: str
    value: Callable[..., Any]
    mean: Callable[..., Any] | None = None
    in_place: bool = False


def _itself(draw: Tensor, x: Any, **_: Any) -> Tensor:
    return draw


_mean_of_uniform = _constant(lambda low=0.0, high=1.0, **_: (low + high) / 2)
_mean_of_normal = _constant(lambda mean=0.0, *_, **__: mean)

DRAW_RULES: dict[Any, Rule] = {
    aten.rand.default: Rule("uniform", _itself, _of_size(0.5)),
    aten.rand_like.default: Rule("uniform", _itself, _constant(lambda **_: 0.5)),
    aten.randn.default: Rule("normal", _itself, _of_size(0.0)),
    aten.randn_like.default: Rule("normal", _itself, _constant(lambda **_: 0.0)),
    aten.randint.default: Rule("uniform", lambda draw, high, size, **k: _integers(draw, 0, high, _integer_dtype(k))),
    aten.randint.low: Rule("uniform", lambda draw, low, high, size, **k: _integers(draw, low, high, _integer_dtype(k))),
    aten.randint_like.default: Rule("uniform", lambda draw, x, high, **_: _integers(draw, 0, high, x.dtype)),
    aten.randint_like.low_dtype: Rule("uniform", lambda draw, x, low, high, **_: _integers(draw, low, high, x.dtype)),
    aten.bernoulli.default: Rule("uniform", _bernoulli, _mean_of_bernoulli),
    aten.bernoulli.p: Rule("uniform", _bernoulli, _mean_of_bernoulli),
    aten.bernoulli_.float: Rule(
        "uniform",
        lambda draw, x, p=0.5, **_: _bernoulli(draw, x, p),
        lambda x, p=0.5, **_: _mean_of_bernoulli(x, p),
        in_place=True,
    ),
    aten.bernoulli_.Tensor: Rule("uniform", _bernoulli, _mean_of_bernoulli, in_place=True),
    aten.native_dropout.default: Rule("uniform", _dropout, _mean_of_dropout),
    aten.uniform.default: Rule("uniform", _uniform, _mean_of_uniform),
    aten.uniform_.default: Rule("uniform", _uniform, _mean_of_uniform, in_place=True),
    aten.normal_.default: Rule("normal", _normal, _mean_of_normal, in_place=True),
    aten.normal.Tensor_float: Rule(
        "normal", lambda draw, mean, std=1.0, **_: draw * std + mean, lambda mean, *_, **__: mean.clone()
    ),
    aten.normal.float_Tensor: Rule(
        "normal", lambda draw, mean, std, **_: draw * std + mean, lambda mean, std, **_: torch.full_like(std, mean)
    ),
    aten.normal.Tensor_Tensor: Rule(
        "normal", lambda draw, mean, std, **_: draw * std + mean, lambda mean, std, **_: mean + torch.zeros_like(std)
    ),
    aten.exponential_.default: Rule("uniform", _exponential, _constant(lambda rate=1.0, **_: 1 / rate), in_place=True),
    aten.multinomial.default: Rule("uniform", _multinomial),
}

_COMPARISONS = {aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne}  # of a random number: a coin in disguise


def _integer_dtype(options: dict[str, Any]) -> torch.dtype:
    return options.get("dtype") or torch.int64


class Drawing(TorchDispatchMode):
    """While active, random operators take their numbers from `source(draw)` instead of a generator.

    A random operator without a rule in `DRAW_RULES` is refused. Results of operators under `torch.no_grad()` are
    detached, so that a graph traced meanwhile shows that no gradient passes. Under `noise_at_mean` they give means.
    """

    def __init__(self, source: Callable[[Draw], Tensor]) -> None:
        super().__init__()
        self.source = source
        self.means: list[Tensor] = []  # noise at its mean, kept while the mode is active
        self.plain = contextlib.ExitStack()

    def __enter__(self) -> Drawing:
        self.plain.enter_context(plain_operators())  # fused attention says that it draws, even where it does not
        self.plain.enter_context(LayersApart())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.plain.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = DRAW_RULES.get(func)
        if rule is None and torch.Tag.nondeterministic_seeded in func.tags:
            raise UntraceableStep(
                f"the step draws random numbers in a way that is not known: {func}.",
                tries="draw with torch.rand_like, randn_like, bernoulli, normal or dropout and compute from that",
            )
        if _noise.at_mean is not None:
            value = self._at_mean(_noise.at_mean, rule, func, args, kwargs)
        elif rule is None:
            value = func(*args, **kwargs)
        else:
            value = _value_of_draw(rule, self.source, func, args, kwargs)
        if not torch.is_grad_enabled() and func is not aten.detach.default:
            return pytree.tree_map_only(Tensor, torch.Tensor.detach, value)
        return value

    def _at_mean(self, found: list[Any], rule: Rule | None, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's value, its mean if it is random; what is computed from means alone is remembered as such."""
        if rule is not None:
            if rule.mean is None:
                raise _without_mean(f"{func}")
            with torch._C.DisableTorchFunction():
                value = rule.mean(*args, **kwargs)
            value = args[0].copy_(value) if rule.in_place else value
            found.append(func)
            is_noise = func is not aten.native_dropout.default
        else:
            tensors = [arg for arg in pytree.tree_leaves((args, kwargs)) if isinstance(arg, Tensor)]
            noise = [any(tensor is mean for mean in self.means) for tensor in tensors]
            if func.overloadpacket in _COMPARISONS and any(noise):
                raise _without_mean(f"a random number is compared ({func}); torch.bernoulli(p) has the mean p")
            value, is_noise = func(*args, **kwargs), bool(noise) and all(noise)
        if is_noise:
            self.means += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
        return value


def _value_of_draw(rule: Rule, source: Callable[[Draw], Tensor], func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        shape_dtype_device = _draw_shape(func, args, kwargs)
        value = rule.value(source(Draw(rule.distribution, *shape_dtype_device, _once.running)), *args, **kwargs)
        return args[0].copy_(value) if rule.in_place else value


def _draw_shape(func: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], torch.dtype, torch.device]:
    """Shape, dtype and device of the random numbers an operator needs; float32 for an operator on integers."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if tensors:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors)) if len(tensors) > 1 else tensors[0].shape
        dtype = kwargs.get("dtype") or tensors[0].dtype
        device = tensors[0].device
    else:
        shape = next(arg for arg in args if isinstance(arg, (list, tuple)))
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        device = torch.device(kwargs.get("device") or "cpu")
    return tuple(shape), dtype if dtype.is_floating_point else torch.float32, device


def replay(draws: Sequence[Tensor], time: int | None = None, copies: int = 1) -> Drawing:
    """A mode in which random operators take these numbers, in the order in which the operators run.

    time     the step, where the numbers are those of all steps
    copies   how often each row is there, one whole batch after another
    """
    remaining: Iterator[Tensor] = iter(draws)

    def numbers(draw: Draw) -> Tensor:
        value = next(remaining)
        value = value if time is None or draw.once else value[time]
        if copies > 1 and value.shape != draw.shape:
            value = torch.cat([value] * copies)
        return value if value.dim() == len(draw.shape) else value.reshape(draw.shape)  # with rows merged: `of_rows`

    return Drawing(numbers)
