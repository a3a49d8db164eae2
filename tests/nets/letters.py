"""A small network over letters, and the plain Python loop that writes with it: the slow twin of `lp.generate`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.loop.step import take

SIZE = 7


class Letters(lp.Cell):
    """Class indices in, logits out, some cell between.

    way      how a letter becomes a row: "embedding", "one_hot", "eye"
    headed   whether a linear map makes logits of the cell's output; a Jordan cell makes them itself
    """

    def __init__(self, inner: lp.Cell, features: int, way: str = "embedding", *, headed: bool = True) -> None:
        super().__init__()
        self.inner, self.way, self.headed = inner, way, headed
        self.E = nn.Embedding(SIZE, features) if way == "embedding" else None
        self.head = nn.Linear(inner.outputs, SIZE) if headed else None  # type: ignore[arg-type]

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        like = next(self.parameters())
        if self.E is not None:
            row = self.E(x)
        elif self.way == "eye":
            row = torch.eye(SIZE, dtype=like.dtype)[x]
        else:
            row = nn.functional.one_hot(x, SIZE).to(like.dtype)
        output, state = take(self.inner, row, state)
        return output if self.head is None else self.head(output), state

    def initial_state(self, batch: int, **home: Any) -> Any:
        return self.inner.initial_state(batch, **home)

    def state_names(self) -> list[str]:
        return self.inner.state_names()

    def feedback_leaf(self) -> str | None:
        return self.inner.feedback_leaf()


NETS = {
    "LSTM": lambda: Letters(lp.LSTM(SIZE, 9), SIZE, "one_hot"),
    "GRU": lambda: Letters(lp.GRU(3, 9), 3),
    "Stack": lambda: Letters(lp.Stack(lp.LSTM(3, 9), lp.GRU(9, 5)), 3),
    "Elman": lambda: Letters(lp.Elman(SIZE, 9, 5), SIZE, "eye"),
    "Jordan": lambda: Letters(lp.Jordan(3, 9, SIZE), 3, headed=False),
}


def lively(cell: lp.Cell) -> lp.Cell:
    """The cell in float64 with larger parameters, so that its letters are not all about as probable."""
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.mul_(3)
    return cell.double()


def left(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """Which tokens may be drawn, by sorting: ties of the last one too."""
    scores = logits / temperature
    kept = torch.ones_like(scores, dtype=torch.bool)
    if top_k is not None:
        kept = scores >= scores.sort(-1, descending=True).values[:, min(top_k, scores.shape[-1]) - 1].unsqueeze(-1)
    if top_p is not None:
        probabilities = scores.masked_fill(~kept, -torch.inf).softmax(-1)
        ordered, order = probabilities.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        last = ((before < top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
        kept &= scores >= scores.gather(-1, order).gather(-1, last)
    return kept


def plainly(
    cell: lp.Cell,
    token: Tensor,
    noise: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    leaf: str | None = None,
) -> tuple[Tensor, Any]:
    """Tokens and the state, one step after another."""
    state: Any = cell.initial_state(len(token))
    tokens = []
    with torch.no_grad():
        for own in noise:
            logits, state = cell(token, state)
            if temperature:
                scores = logits / temperature - (-own.log()).log()
                token = scores.masked_fill(~left(logits, temperature, top_k, top_p), -torch.inf).argmax(-1)
            else:
                token = logits.argmax(-1)
            if leaf is not None:
                state = nn.functional.one_hot(token, SIZE).to(logits.dtype)
            tokens.append(token)
    return torch.stack(tokens), state
