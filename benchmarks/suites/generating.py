"""`generating`: characters written one after another, beside a Python loop over torch.nn's network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from benchmarks.cases import FORWARD, Case
from benchmarks.cells import CELLS
from benchmarks.compare import timed
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings
from leporello.language.model.network import Predictor


class Ours:
    """`lp.generate`: all of it inside one compiled loop."""

    def __init__(self, net: lp.Recurrent, case: Case) -> None:
        self.net, self.case = net, case
        self.token = torch.zeros(case.size.batch, dtype=torch.int64)

    def __call__(self) -> Tensor:
        return lp.generate(self.net, self.token, steps=self.case.size.length)[0]

    def clear(self) -> None: ...

    def results(self, steps: int) -> dict[str, Tensor | None]:
        return {}


class TorchNN:
    """A call of the network, a softmax and a draw for each character."""

    def __init__(self, net: Any, head: nn.Linear, case: Case) -> None:
        self.net, self.head, self.case = net, head, case

    def __call__(self) -> Tensor:
        token = torch.zeros(self.case.size.batch, dtype=torch.int64)
        state, tokens = None, []
        with torch.inference_mode():
            for _ in range(self.case.size.length):
                row = nn.functional.one_hot(token, self.case.size.inputs).float()
                outputs, state = self.net(row.unsqueeze(0), state)
                token = torch.multinomial(torch.softmax(self.head(outputs[0]), -1), 1).squeeze(1)
                tokens.append(token)
        return torch.stack(tokens)

    def clear(self) -> None: ...

    def results(self, steps: int) -> dict[str, Tensor | None]:
        return {}


def measure(case: Case, settings: Settings) -> Measurement:
    torch.manual_seed(0)
    size = case.size
    cell = CELLS[case.cell](size.inputs, size.hidden)
    net = lp.Recurrent(Predictor(size.inputs, cell), engine="cpu").eval()
    theirs = TorchNN(lp.to_torch(lp.Recurrent(cell)).eval(), net.cell.head, case)
    ours = Ours(net, case)
    for task in (theirs, ours):
        task()  # what is built once is built now
    return timed(case, {"torch.nn": theirs, "generate": ours}, settings)


SUITE = Suite(
    name="generating",
    says="characters written inside one compiled loop beside a Python loop over torch.nn",
    cases=(
        Case("LSTM", Size(256, 1, 65, 512), FORWARD),
        Case("GRU", Size(256, 1, 65, 256), FORWARD),
        Case("LSTM", Size(256, 16, 65, 256), FORWARD),
    ),
    measure=measure,
    promises=(
        Promise(
            "LSTM, 512 units, batch 1",
            "ratio",
            "torch.nn over generate",
            "smallest",
            least=6.0,
            of=lambda case: case.cell == "LSTM" and case.size.batch == 1,
        ),
        Promise("all", "ratio", "torch.nn over generate", "smallest"),
    ),
)
