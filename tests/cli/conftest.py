"""A folder to work in, with a module of one's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULE = """
import torch
from torch import nn

import leporello as lp


class Leaky(lp.Cell):
    def __init__(self, inputs, hidden, outputs=2):
        super().__init__(h=hidden)
        self.U, self.W, self.V = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)

    def forward(self, x, h):
        h = 0.9 * h + 0.1 * torch.tanh(self.U(x) + self.W(h))
        return self.V(h), h


class Words(lp.Cell):
    def __init__(self):
        super().__init__(h=3)
        self.table = nn.Embedding(7, 3)

    def forward(self, x, h):
        h = torch.tanh(self.table(x) + h)
        return h, h


class Free(lp.Cell):
    feedback = "last"

    def __init__(self):
        super().__init__(last=3)

    def forward(self, x, last):
        return 0.5 * last, last


class Silent(lp.Cell):
    def __init__(self):
        super().__init__(h=3)

    def forward(self, x, h):
        return None, h + x


class Unbuildable(lp.Cell):
    def __init__(self):
        raise RuntimeError("no [red]way[/red]")


class Undecided(lp.Cell):
    inputs = 3

    def __init__(self):
        super().__init__(h=3)

    def forward(self, x, h):
        return h, h + x if x.sum() > 0 else h


class Homeless(lp.Cell):
    inputs = 3

    def __init__(self):
        super().__init__(h=3)

    def initial_state(self, batch, **options):
        raise KeyError("nowhere to begin")

    def forward(self, x, h):
        return h, h


class Plain(nn.Module):
    def forward(self, x, h):
        return h, h + x


class Outer:
    Inner = Leaky


def make(hidden=5):
    return lp.GRU(3, hidden)


ready = lp.Elman(3, 5, 1)
net = lp.Recurrent(lp.Jordan(3, 5, 2), batch_first=True)
summary = lp.Summary(lp.LSTM(3, 5), lambda state: state.h, reads="state")
both = lp.Bidirectional(lp.GRU(3, 5), lp.GRU(3, 5))
layers = lp.Layers(both, lp.Recurrent(lp.GRU(10, 3)))
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with my_model.py in it; what is imported from it is forgotten afterwards."""
    (tmp_path / "my_model.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('not today')\n")
    (tmp_path / "needy.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("my_model", "broken", "leaving", "needy"):
        sys.modules.pop(name, None)
