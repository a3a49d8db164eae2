"""Types for checkers: what a step is, and the keywords of networks and of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict

from torch import Tensor
from typing_extensions import TypeVar  # torch needs it too

from leporello.gradient.method import Method
from leporello.loop.batch_axis import Axes
from leporello.loop.state import Tree

Output = TypeVar("Output", default=Any)
State = TypeVar("State", default=Any)
Output_co = TypeVar("Output_co", covariant=True)
State_co = TypeVar("State_co", covariant=True)

EngineName = Literal["auto", "cpu", "gpu", "stepwise", "reference", "exact"]


class Step(Protocol[Output_co, State_co]):
    """A module that is one step: its `forward` returns output and next state."""

    @property
    def forward(self) -> Callable[..., tuple[Output_co, State_co]]: ...


class DirectionOptions(TypedDict, total=False):
    """Keywords of `lp.Recurrent` that hold for each direction of a network."""

    gradient: Method | None
    engine: EngineName
    batch_axis: Axes | None


class NetworkOptions(DirectionOptions, total=False):
    """Keywords of `lp.Recurrent`."""

    batch_first: bool


class CallArguments(TypedDict, total=False):
    """Keywords of a call of `lp.Recurrent`."""

    lengths: Any
    resets: Tensor | None
    targets: Tensor | None
    forcing: Any
    steps: int | None
    draws: Sequence[Tensor] | None
    time: Any
    context: Tree
    gradient: Method | None
