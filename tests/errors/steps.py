"""Steps as a user may write them: `Good`, and one class for each thing a step may not do.

A line that an error must name ends in a comment `# here: Name`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp

INPUTS, HIDDEN = 3, 4


class Good(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=HIDDEN)
        self.U, self.W = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.end(x, torch.tanh(self.U(x) + self.W(h)))

    def end(self, x: Tensor, h: Tensor) -> Any:
        """What each of the others does its own way."""
        return h, h


# Control flow on data


class If(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        if h.sum() > 0:  # here: If
            h = 2 * h
        return h, h


class While(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        while h.abs().max() > 0.1:  # here: While
            h = h / 2
        return h, h


class Item(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        scale = h[0, 0].item()  # here: Item
        return scale * h, h


class Listed(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return sum(h[0].tolist()) * h, h  # here: Listed


class Floated(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return float(h.sum()) * h, h  # here: Floated


class Asserted(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        assert (h < 2).all()  # here: Asserted
        return h, h


class MaskIndex(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        positive = h[h > 0]  # here: MaskIndex
        return h + positive.sum(), h


class Nonzero(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h + h.nonzero().sum(), h  # here: Nonzero


class Numpy(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h + torch.from_numpy(h.detach().numpy()), h  # here: Numpy


class Decides(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        if h.mean() > 0:  # here: Nested
            return h
        return -h


class Nested(Good):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Tanh(), Decides())

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.inner(h), h


def halved(h: Tensor) -> Tensor:
    if h.max() > 0.5:  # here: Helped
        return h / 2
    return h


class Helped(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return halved(h), h


# Rows that meet


class Centred(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h - x.mean(0).sum(), h


class Divided(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h / x.shape[0], h


class Large(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        if x.shape[0] > 2:  # here: Large
            h = 2 * h
        return h, h


class Several(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        if x.shape[0] > 1:  # here: Several
            h = 2 * h
        return h, h


class Single(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h * 3 if x.size(0) == 1 else h, h  # here: Single


class AssertedSizes(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        assert x.shape[0] >= 1
        assert x.shape[0] == h.shape[0]
        return h, h


class Distant(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return torch.cdist(h, h).sum(1), h  # here: Distant


class Counted(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h * len(x), h  # here: Counted


class EachRow(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return torch.stack([row / (index + 1) for index, row in enumerate(h)]), h


class First(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, h + 0.1 * h[:1]


class Normed(Good):
    def __init__(self, *, track: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(HIDDEN, track_running_stats=track)

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.norm(h), h  # here: Normed


# Tensors the cell does not know


class Attribute(Good):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(HIDDEN)

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.scale * h, h


class InList(Good):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.ones(HIDDEN)]

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.scales[0] * h, h


class InDict(Good):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {"first": {"of": [torch.ones(HIDDEN)]}}

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.scales["first"]["of"][0] * h, h


class InModule(Good):
    def __init__(self) -> None:
        super().__init__()
        self.U.scale = torch.ones(HIDDEN)


class LooseParameters(Good):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [nn.Parameter(torch.ones(HIDDEN))]

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.scales[0] * h, h


class Holder:
    def __init__(self) -> None:
        self.scale = torch.ones(HIDDEN)


class InObject(Good):
    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder()

    def end(self, x: Tensor, h: Tensor) -> Any:
        return self.holder.scale * h, h  # here: InObject


SCALE = torch.ones(HIDDEN)


class Global(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return SCALE * h, h  # here: Global


# Writes


class Buffered(Good):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(HIDDEN))


class Exchanges(Buffered):
    def end(self, x: Tensor, h: Tensor) -> Any:
        self.count = self.count + 1  # here: Exchanges
        return self.count * h, h


class Detached(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        self.W.weight.data[1:] = 2  # here: Detached
        return h, h


class Shrinks(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        with torch.no_grad():
            self.W.weight.mul_(0.9)  # here: Shrinks
        return h, h


class Remembers(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        self.last = h  # here: Remembers
        return h, h


class Accumulates(Good):
    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.mem = torch.zeros(rows, HIDDEN)

    def end(self, x: Tensor, h: Tensor) -> Any:
        self.mem = 0.5 * self.mem + h  # here: Accumulates
        return self.mem, h


class Counts(Good):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def end(self, x: Tensor, h: Tensor) -> Any:
        self.calls += 1  # here: Counts
        return self.calls * h, h


class Appends(Good):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def end(self, x: Tensor, h: Tensor) -> Any:
        self.seen.append(h)  # here: Appends
        return h, h


class NoiseOnItsSide(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h + torch.randn(HIDDEN, h.shape[0]).T, h  # here: NoiseOnItsSide


class Permutes(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h[:, torch.randperm(HIDDEN)], h  # here: Permutes


# Results


class OneResult(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h


class ThreeResults(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, h, h


class NoResult(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        pass


class ListResult(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return [h, h]


class Grows(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, torch.cat([h, h], -1)


class Widens(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, h.double()


class Pairs(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, (h, h)


class Forgets(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, None


class Averages(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h, h.mean(0)


class OutputWithoutBatch(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h.sum(), h


class OutputTurned(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return {"turned": h.T}, h


class OutputFlat(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h.reshape(-1), h


class OutputNumber(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return (h, 3.0), h


class Mistaken(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return h @ self.nothing, h  # here: Mistaken


def place(step: type) -> str:
    """The class with its file and line, as errors name it."""
    path = Path(inspect.getfile(step))
    lines = path.read_text(encoding="utf-8").splitlines()
    number = next(index for index, line in enumerate(lines, 1) if line.startswith(f"class {step.__name__}("))
    return f"{step.__name__} ({path.name}, line {number})"


def line(name: str) -> str:
    """The line marked `# here: name`, as errors name it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(index for index, line in enumerate(lines, 1) if line.endswith(f"# here: {name}"))
    return f"steps.py, line {number}: {lines[number - 1].strip()}"


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return torch.from_numpy(h.detach().numpy())  # here: Fails


class FailingFunction(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return Fails.apply(h), h


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.mark_dirty(h)  # here: Writes
        return h.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class WritingFunction(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return Writes.apply(h), h


class Miscounts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, factor: float) -> Tensor:
        return h * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class MiscountingFunction(Good):
    def end(self, x: Tensor, h: Tensor) -> Any:
        return Miscounts.apply(h, 2.0), h  # here: MiscountingFunction
