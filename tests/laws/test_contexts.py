"""Law: every engine gives what the plain loop gives, whatever a step does with the context of its call.

Two lengths of the memory in turn: the second call uses what was traced and built for the first.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import leporello as lp
from tests.laws.examples import cells

Read = Callable[["Reader", Tensor, Tensor, Tensor], Tensor]
WIDTH, FEATURES = 4, 3  # of the state, and of a row of the memory


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(1) @ values).squeeze(1)


def _scores(reader: Reader, h: Tensor, memory: Tensor) -> Tensor:
    return (reader.key(memory) @ h.unsqueeze(2)).squeeze(2)


def _heads(reader: Reader, h: Tensor, memory: Tensor, there: Tensor) -> Tensor:
    keys, values = (part.unflatten(2, (2, 2)).transpose(1, 2) for part in (reader.key(memory), reader.value(memory)))
    scores = torch.einsum("bnd,bnsd->bns", h.unflatten(1, (2, 2)), keys).masked_fill(~there.unsqueeze(1), -1e9)
    return torch.einsum("bns,bnsd->bnd", torch.softmax(scores, 2), values).flatten(1)


def _additive(reader: Reader, h: Tensor, memory: Tensor, there: Tensor) -> Tensor:
    scores = reader.score(torch.tanh(reader.query(h).unsqueeze(1) + reader.key(memory))).squeeze(2)
    return _weighted(torch.softmax(scores.masked_fill(~there, -torch.inf), 1), reader.value(memory))


READS: dict[str, Read] = {
    "scalar products": lambda r, h, m, there: _weighted(
        torch.softmax(_scores(r, h, m).masked_fill(~there, -1e9), 1), r.value(m)
    ),
    "a small network": _additive,
    "two heads": _heads,
    "a mean": lambda r, h, m, there: h * r.value(m).mean(1),
    "a sum where it is": lambda r, h, m, there: (r.value(m) * there.unsqueeze(2)).sum(1) + h,
    "the largest": lambda r, h, m, there: (r.value(m) * h.unsqueeze(1)).amax(1),
    "the closest": lambda r, h, m, there: (
        r.value(m).gather(1, _scores(r, h, m).argmax(1).view(-1, 1, 1).expand(-1, 1, WIDTH)).squeeze(1)
    ),
    "sigmoids": lambda r, h, m, there: _weighted(torch.sigmoid(_scores(r, h, m)) / m.shape[1], r.value(m)),
    "the first and the last": lambda r, h, m, there: r.value(m[:, 0] - m[:, -1]) * h,
    "neighbours": lambda r, h, m, there: r.value(m[:, 1:] * m[:, :-1]).sum(1) + h,
    "backwards": lambda r, h, m, there: _weighted(torch.softmax(_scores(r, h, m.flip(1)), 1), r.value(m)),
    "running sums": lambda r, h, m, there: _weighted(torch.softmax(_scores(r, h, m), 1).cumsum(1), r.value(m)),
}


class Reader(lp.Cell):
    """Reads its memory in several ways."""

    def __init__(self, reads: list[str], seed: int) -> None:
        super().__init__(h=WIDTH)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.x, self.query = nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.key, self.value = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)
            self.score = nn.Linear(WIDTH, 1)
        self.reads = reads
        self.double()

    def forward(self, x: Tensor, h: Tensor, context: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        read = sum((READS[name](self, h, *context) for name in self.reads), torch.zeros_like(h))
        h = torch.tanh(self.x(x) + self.query(h) + read)
        return h * 2, h


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("engine", "share"), [("stepwise", 0.02), ("cpu", 0.02), pytest.param("reference", 0.02, marks=pytest.mark.slow)]
)
def test_engines_equal_the_plain_loop(engine: str, share: float) -> None:
    @cells(share)
    @given(
        st.lists(st.sampled_from(list(READS)), min_size=1, max_size=3, unique=True),
        st.lists(st.integers(1, 9), min_size=2, max_size=2),
        st.integers(1, 4),
        st.sampled_from(["", "lengths", "resets"]),
        st.integers(0, 99),
    )
    def law(reads: list[str], sizes: list[int], batch: int, extra: str, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        net = lp.Recurrent(Reader(reads, seed), engine=engine)
        for size in sizes:
            x, memory = (
                torch.randn(shape, generator=numbers, dtype=torch.float64)
                for shape in ((5, batch, 2), (batch, size, FEATURES))
            )
            there = torch.rand(batch, size, generator=numbers) < 0.7
            there[:, 0] = True
            arguments = {}
            if extra == "lengths":
                arguments["lengths"] = torch.randint(1, 6, (batch,), generator=numbers)
            elif extra == "resets":
                arguments["resets"] = torch.rand(5, batch, generator=numbers) < 0.3
            if size == 1 and "neighbours" in reads:  # a single place has none: rows times nothing is nothing
                continue
            report = lp.check_gradients(net, x, context=(memory, there), **arguments)
            assert report.ok, f"{reads} {sizes} {report}"

    law()


def test_a_value_without_elements_is_left_to_the_reference() -> None:
    x, memory = torch.randn(5, 2, 2, dtype=torch.float64), torch.randn(2, 1, FEATURES, dtype=torch.float64)
    context = (memory, torch.ones(2, 1, dtype=torch.bool))
    net = lp.Recurrent(Reader(["neighbours"], 0))
    assert lp.check_gradients(net, x, context=context).ok
    assert "loses the rows of a value without elements" in net.explain(x, context=context)
