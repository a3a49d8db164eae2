"""`Predictor`: the network of a language model as one cell: a token in, a score for each possible next token out.

Knows tokens, cells and an output layer; knows nothing of text or training. `lp.Recurrent(Predictor(...))` runs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.loop.state import Tree
from leporello.loop.step import take


class Predictor(Cell):
    """x = E[token], or the one-hot row of the token;  y, state' = inside(x, state);  scores = c + V y.

    size        the number of tokens
    inside      the cell that is run; one whose outputs are as many as the tokens gives the scores itself
    embedding   the size of E's rows; 0 for one-hot rows
    tied        V is E
    dropout     share of y's values dropped in train()

    The input is a class index per row, (batch,). The state is that of the cell inside.

    >>> from leporello.cells import GRU
    >>> scores, state = Predictor(28, GRU(28, 8))(torch.tensor([3, 4]), torch.zeros(2, 8))
    >>> scores.shape
    torch.Size([2, 28])
    """

    def __init__(
        self,
        size: int,
        inside: Cell,
        *,
        embedding: int = 0,
        tied: bool = False,
        dropout: float = 0.0,
        scores: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.embedding = nn.Embedding(size, embedding) if embedding else None
        self.inside = inside
        outputs = getattr(inside, "outputs", None)
        self.head = None if scores else nn.Linear(outputs, size)  # type: ignore[arg-type]
        if tied:
            if self.embedding is None or self.head is None or outputs != embedding:
                raise ArgumentError(
                    "the embedding cannot be the matrix of the output layer.",
                    came=f"embedding of {embedding}, outputs of {outputs}",
                    expected="the same size, and an output layer",
                    tries=f"embedding={outputs}",
                )
            nn.init.uniform_(self.embedding.weight, -(embedding**-0.5), embedding**-0.5)
            self.head.weight = self.embedding.weight

    def forward(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        x = self.read(token)
        y, state = take(self.inside, x, state)
        if self.head is None:
            return y, state
        return self.head(nn.functional.dropout(y, self.dropout, self.training)), state

    def read(self, token: Tensor) -> Tensor:
        """What the cell inside reads of a token."""
        if self.embedding is not None:
            return self.embedding(token)
        dtype = next(self.inside.parameters()).dtype
        return (token.unsqueeze(-1) == torch.arange(self.size, device=token.device)).to(dtype)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return self.inside.initial_state(batch, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return self.inside.state_names()

    def feedback_leaf(self) -> str | None:
        """What is fed back is fed back inside, and is the output where no layer follows."""
        return self.inside.feedback_leaf() if self.head is None else None
