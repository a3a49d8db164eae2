"""`training`: a character model trained by the whole loop of `lp.language`, beside torch.nn in a loop written by hand.

One call is one time through 10,000 letters: windows, one-hot rows, network, cross-entropy, gradient, its norm clipped,
SGD. Both loops read the same windows; they begin from the same numbers, and their losses are compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import Case
from benchmarks.compare import timed
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings
from leporello.language.config import Config
from leporello.language.text.sources import source_of
from leporello.language.tokens.corpus import Corpus, corpus_of
from leporello.language.training.training_loop import Training

LETTERS = 10_000
SIZE = Size(35, 32, 28, 256)
CLIP = 1.0
AGREE = 1e-3  # relative difference of the losses of the first epoch: rounding grows from update to update


class Ours:
    """The training loop of the library."""

    def __init__(self, case: Case, corpus: Corpus) -> None:
        config = Config(
            cell=case.cell.lower(),
            hidden=case.size.hidden,
            batch=case.size.batch,
            window=case.size.length,
            embedding=0,
            dropout=0.0,
            validation=0.0,
            optimiser="sgd",
            rate=1.0,
            schedule="constant",
            clip_norm=CLIP,
            epochs=1_000_000,
            device="cpu",
        )
        self.training = Training(config, corpus)
        self.training.net.train()

    def __call__(self) -> float:
        training = self.training
        before = training.tally.nats
        training.state = None
        for window in training.batches.epoch(0):
            training._update(window)
        return training.tally.nats - before

    def clear(self) -> None: ...

    def results(self, steps: int) -> dict[str, Tensor | None]:
        return {}


class TorchNN:
    """The same with torch.nn, as one writes it."""

    def __init__(self, case: Case, ours: Ours) -> None:
        cell, head = ours.training.net.cell.inside, ours.training.net.cell.head
        self.net = getattr(nn, case.cell)(cell.inputs, cell.hidden)
        self.head = nn.Linear(cell.hidden, head.out_features)
        with torch.no_grad():
            for theirs, own in (("weight_ih_l0", "U"), ("weight_hh_l0", "W"), ("bias_ih_l0", "b"), ("bias_hh_l0", "c")):
                getattr(self.net, theirs).copy_(getattr(cell, own))
            self.head.load_state_dict(head.state_dict())
        self.parameters = [*self.net.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.SGD(self.parameters, lr=1.0, fused=True)
        self.batches = ours.training.batches

    def __call__(self) -> float:
        state: Any = None
        nats = 0.0
        for window in self.batches.epoch(0):
            rows = nn.functional.one_hot(window[:-1], self.net.input_size).float()
            outputs, state = self.net(rows, state)
            loss = nn.functional.cross_entropy(self.head(outputs).flatten(0, 1), window[1:].flatten())
            self.optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, CLIP)
            self.optimiser.step()
            state = tuple(leaf.detach() for leaf in state) if isinstance(state, tuple) else state.detach()
            nats += loss.item() * window[1:].numel()
        return nats

    def clear(self) -> None: ...

    def results(self, steps: int) -> dict[str, Tensor | None]:
        return {}


def measure(case: Case, settings: Settings) -> Measurement:
    corpus = corpus_of(source_of(()), validation=0.0, first=LETTERS, normalise="letters")
    ours = Ours(case, corpus)
    theirs = TorchNN(case, ours)
    first = (theirs(), ours())
    if abs(first[0] - first[1]) > AGREE * abs(first[0]):
        raise AssertionError(f"the loss of the first epoch is {first[1]:.4f} nats, that of torch.nn {first[0]:.4f}")
    return timed(case, {"torch.nn": theirs, "training": ours}, settings)


SUITE = Suite(
    name="training",
    says="a character model trained by lp.language beside one written with torch.nn, the whole loop of each",
    cases=tuple(Case(cell, SIZE) for cell in ("RNN", "GRU", "LSTM")),
    measure=measure,
    promises=(
        Promise("RNN and GRU", "ratio", "torch.nn over training", "smallest", least=1.7, of=lambda c: c.cell != "LSTM"),
        Promise("LSTM", "ratio", "torch.nn over training", "smallest", least=1.1, of=lambda c: c.cell == "LSTM"),
    ),
)
