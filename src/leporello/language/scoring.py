"""A network as a model that scores: the surprise of each token of a text, the state carried from first to last.

Knows networks over class indices; knows nothing of text. What is done with surprises is told by `perplexity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from leporello.nets.recurrent import Recurrent

PIECE = 4096  # tokens that are scored in one call


class Scorer:
    """-ln p of tokens under a network.

    forced   for a net with feedback: whether true tokens are fed back instead of its own scores
    """

    def __init__(self, net: Recurrent, forced: bool = False) -> None:
        self.net = net
        self.forced = forced and net.feedback_leaf() is not None
        self.device = next(net.parameters()).device

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        """In nats, of every token but the first, piece by piece."""
        state: Any = None
        for begin in range(0, len(tokens) - 1, PIECE):
            piece = tokens[begin : begin + PIECE + 1].to(self.device, torch.int64).unsqueeze(1)
            scores, state = self.read(piece[:-1], piece[1:], state)
            found = nn.functional.cross_entropy(scores.flatten(0, 1).double(), piece[1:].flatten(), reduction="none")
            yield found.cpu()

    def read(self, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Scores of a piece and the state behind it."""
        with at_rest(self.net), torch.no_grad():
            return self.net(inputs, state, **({"targets": targets} if self.forced else {}))


@contextmanager
def at_rest(net: nn.Module) -> Iterator[None]:
    """The network in eval(), and afterwards in the mode it was in."""
    training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(training)
