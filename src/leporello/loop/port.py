"""`Port`: one input or output of a Loop, and `Role`: what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

import torch
from torch import Tensor

from leporello.loop.sizes import Size

Kind = Literal["sequence", "invariant", "draw", "state", "total"]
PortKey = tuple[str, str]  # kind and name of a port
PortValues = Mapping[PortKey, Tensor]


class Role(Enum):
    """What a port is for. Its kind says how the value depends on time; its role says who fills or reads it."""

    # Roles that follow from the kind and the side of the Loop; a port has one of these unless another is passed.
    INPUT = "input"  # a sequence the user passes
    OUTPUT = "output"  # a sequence the step computes
    STATE = "state"  # what a delay passes on
    INVARIANT = "invariant"  # a parameter, a buffer or a constant
    DRAW = "draw"  # random numbers of one step
    TOTAL = "total"  # summed over steps

    # Roles of what a call, a rewrite or a gradient adds.
    TIME = "time"  # the number of the step
    CONTEXT = "context"  # a tensor of the call that every step reads
    ONE_DRAW = "one_draw"  # random numbers that all steps of a call share
    SHARED_DRAW = "shared_draw"  # random numbers of one step that all rows share, with a row axis for engines
    TARGET = "target"  # the true value that is fed back where a step is forced
    COIN = "coin"  # whether a step is forced
    RESET = "reset"  # whether the state is the initial one before this step
    PAST = "past"  # whether a step is past its row's end: the padding mask
    ELSEWHERE = "elsewhere"  # whether a step is not its row's last
    FIRST_INPUT = "first_input"  # what padding reads instead of an input
    INITIAL_STATE = "initial_state"
    FINAL_STATE = "final_state"
    GRADIENT = "gradient"  # the gradient of an output, which comes in
    FORWARD_INPUT = "forward_input"  # an input of the forward sweep, read again by the backward one
    FORWARD_DRAW = "forward_draw"
    STATE_BEFORE = "state_before"  # the forward sweep's state before each step
    SAVED = "saved"  # a value that the forward sweep keeps for the backward one
    FORWARD_OUTPUT = "forward_output"
    WEIGHT = "weight"  # of what the backward delay passes on: 0 cuts the gradient
    CLIP_COUNT = "clip_count"  # how often the state's gradient was clipped
    TOKEN = "token"  # the sampled token that is fed back
    NOISE = "noise"  # random numbers that sampling reads
    TEMPERATURE = "temperature"
    TOP_K = "top_k"
    TOP_P = "top_p"
    LOSS_TARGET = "loss_target"  # the true value a loss compares with


_ROLE_OF_KIND: dict[Kind, Role] = {
    "sequence": Role.INPUT,
    "invariant": Role.INVARIANT,
    "draw": Role.DRAW,
    "state": Role.STATE,
    "total": Role.TOTAL,
}
_FROM_THE_USER = {Role.LOSS_TARGET, Role.INPUT, Role.OUTPUT, Role.STATE, Role.INVARIANT, Role.DRAW, Role.TOTAL}
_DEFAULT_ROLES = {Role.OUTPUT, *_ROLE_OF_KIND.values()}


@dataclass(frozen=True)
class Port:
    """One input or output of a Loop.

    kind          sequence: one value a step; invariant: the same at every step; draw: random numbers, one set a step;
                  state: what a delay passes on; total: summed over steps
    rows          whether it has the row axis in front (a total without it is summed over rows too)
    shape         the sizes of the other axes: integers, and a `Size` for what has a free length
    distribution  of a draw: "uniform" on [0, 1) or "normal"
    of            the port that this one belongs to, of this Loop or of the one it was derived from: for an incoming
                  gradient the output, for a forward value that a backward Loop reads the forward port
    role          what it is for. By default the role that belongs to the kind; such a default follows the kind when
                  `dataclasses.replace` changes it, any other role stays. A Loop makes INPUT and OUTPUT fit its sides
    planes        whether complex numbers come as real ones: the first axis of the shape has their two parts
    """

    kind: Kind
    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    rows: bool = True
    distribution: str | None = None
    role: Role = Role.INPUT
    of: Port | None = None
    planes: bool = False

    def __post_init__(self) -> None:
        if self.has_default_role and not (self.kind == "sequence" and self.role is Role.OUTPUT):
            object.__setattr__(self, "role", _ROLE_OF_KIND[self.kind])

    @property
    def has_default_role(self) -> bool:
        """Whether the role follows from the kind, and from the side of the Loop the port is on."""
        return self.role in _DEFAULT_ROLES

    @property
    def is_added(self) -> bool:
        """Whether a call or a rewrite added it: neither the user's step nor the user's loss has it."""
        return self.role not in _FROM_THE_USER

    @property
    def is_drawn(self) -> bool:
        """Whether it holds random numbers: of each step, or of the whole call."""
        return self.kind == "draw" or self.role is Role.ONE_DRAW

    def shape_of(self, length: Any, batch: Any) -> tuple[Any, ...]:
        """The shape of its value for a call: steps in front where it has one value a step, then rows.

        batch   the number of rows; a `Counted` where it has free lengths
        """
        steps = (length,) if self.kind in ("sequence", "draw") else ()
        sizes = [size.value(batch.lengths) if isinstance(size, Size) else size for size in self.shape]
        return (*steps, *((batch,) if self.rows else ()), *sizes)

    def drawn_shape(self, length: Any, batch: Any) -> tuple[Any, ...]:
        """The shape in which its random numbers are drawn and passed; `shape_of`, but for those that all rows share."""
        return replace(self, rows=self.rows and self.role is not Role.SHARED_DRAW).shape_of(length, batch)

    @property
    def key(self) -> PortKey:
        """Kind and name: no two inputs of a Loop have the same, and no two outputs."""
        return (self.kind, self.name)

    @property
    def is_floating(self) -> bool:
        """Whether its values can have gradients."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def reads_forward(self, role: Role) -> bool:
        """Whether this is the input of a backward Loop that reads the forward Loop's sequence of that role."""
        return self.role is Role.FORWARD_INPUT and self.of is not None and self.of.role is role

    def __str__(self) -> str:
        sizes = ", ".join(["rows"] * self.rows + [str(n) for n in self.shape])
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"


def as_inputs(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """The ports with INPUT in the place of OUTPUT."""
    return tuple(replace(port, role=Role.INPUT) if port.role is Role.OUTPUT else port for port in ports)


def as_outputs(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """The ports with OUTPUT in the place of INPUT."""
    return tuple(replace(port, role=Role.OUTPUT) if port.role is Role.INPUT else port for port in ports)
