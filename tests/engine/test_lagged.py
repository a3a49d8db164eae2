"""Sequences one step later: views of windows, and forced nets whose sequences are so long that they have several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu import native, runner
from leporello.engine.cpu.lagged_window import LaggedWindow
from leporello.engine.cpu.row_sums import RowSums, Spread
from leporello.engine.lagged import Lagged, put_shifted
from leporello.engine.targets import TARGETS
from tests.close import assert_close
from tests.engine.results import found
from tests.nets.twins import crossed


class Echo(lp.Cell):
    """A Jordan net that also says what it was fed."""

    feedback = "o"

    def __init__(self) -> None:
        super().__init__(o=3)
        self.U, self.W = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, o: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        new = torch.tanh(self.U(x) + self.W(o))
        return (new, o), new


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_windows_are_those_of_the_shifted_sequence(reverse: bool, begins: bool) -> None:
    sequence, initial = torch.randn(7, 3, 2), torch.randn(3, 2) if begins else None
    first = torch.zeros(1, 3, 2) if initial is None else initial.unsqueeze(0)
    whole = torch.cat([sequence[1:], first]) if reverse else torch.cat([first, sequence[:-1]])
    lagged = Lagged(sequence, initial, reverse)
    for start, end in ((0, 7), (0, 1), (1, 7), (0, 6), (6, 7), (2, 5)):
        assert torch.equal(lagged[start:end], whole[start:end])
        assert lagged[start:end].is_contiguous()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 1 << 18])
def test_the_target_cpu_shifts_as_torch_does(reverse: bool, size: int) -> None:
    sequence = torch.randn(5, 1, size)
    put = TARGETS["cpu"].put_shifted
    for initial in (None, torch.randn(1, size)):
        expected = put_shifted(torch.empty_like(sequence), sequence, initial, reverse)
        assert torch.equal(put(torch.empty_like(sequence), sequence, initial, reverse), expected)


def test_a_window_that_begins_later_is_no_copy() -> None:
    sequence = torch.randn(7, 3, 2)
    assert Lagged(sequence, None, False)[1:].data_ptr() == sequence.data_ptr()
    assert Lagged(sequence, None, True)[:6].data_ptr() == sequence[1:].data_ptr()


MAKERS = {"Jordan": lambda: lp.Jordan(2, 4, 3), "Echo": Echo}


@pytest.mark.parametrize(("name", "engine"), crossed(MAKERS, cpu=["Jordan"], stepwise=["Echo"]))
def test_long_forced_sequences_equal_the_plain_loop(name: str, engine: str) -> None:
    net = lp.Recurrent(MAKERS[name](), engine=engine).double()
    inputs, targets = torch.randn(300, 17, 2).double(), torch.randn(300, 17, 3).double()
    state = torch.randn(17, 3).double()
    for before in (None, state):
        report = lp.check_gradients(net, inputs, before, targets=targets)
        assert report.ok, report
    _outputs, after = net(inputs, targets=targets)
    assert torch.equal(after, targets[-1])
    if engine != "reference":  # which gives what the step gives
        assert after.data_ptr() != targets[-1].data_ptr()


@pytest.mark.kernels
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("steps", "batch", "threads"), [(1, 3, 1), (2, 1, 2), (7, 5, 1), (50, 7, 2), (3, 150, 3)])
def test_sums_read_the_shifted_sequence_in_place(
    steps: int, batch: int, threads: int, reverse: bool, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "thread_count", lambda _: threads)
    if pooled:
        monkeypatch.setattr(native, "_torch_threads", lambda: native.NO_OPENMP)
    sums = RowSums(((0, 1, 37, 20), (1, 0, 20, 37), (1, -1, 20, 1), (0, 0, 37, 37)), torch.float64)
    skipping = RowSums(((0, 1, 37, 20), (1, -1, 20, 1)), torch.float64, past=True)
    heads = RowSums(
        ((0, 1, 5, 4), (1, -1, 4, 1)),
        torch.float64,
        spreads=[Spread(2, 1, (0, 5, 0, 1), (3, 4, 0, 1)), Spread(1, 5, (0, 0, 4, 1), (0, 0, 0, 1))],
        sizes=[(2, 5, 4), (1, 4)],
        columns=[37, 20],
    )
    other, sequence = torch.randn(steps, batch, 37).double(), torch.randn(steps, batch, 20).double()
    past = torch.rand(steps * batch) < 0.4
    for initial in (None, torch.randn(batch, 20).double()):
        copied = put_shifted(torch.empty_like(sequence), sequence, initial, reverse)
        window = LaggedWindow(sequence, initial, reverse)
        for function, more in ((sums, ()), (skipping, (past,)), (heads, ())):
            pairs = zip(function(other, window, *more), function(other, copied, *more), strict=True)
            assert all(torch.allclose(one, two, rtol=1e-12, atol=1e-12) for one, two in pairs)


@pytest.mark.kernels
@pytest.mark.parametrize(("hidden", "batch", "threads"), [(5, 3, 1), (24, 9, 2), (400, 2, 2), (400, 40, 3)])
def test_kernels_read_the_shifted_targets_in_place(
    hidden: int, batch: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "thread_count", lambda _: threads)
    borders = []
    later = runner._later
    monkeypatch.setattr(runner, "_later", lambda *given: borders.append(later(*given)) or borders[-1])
    cell = lp.Jordan(6, hidden, 3).double()
    x, targets, state = (torch.randn(*sizes).double() for sizes in ((11, batch, 6), (batch, 11, 3), (batch, 3)))
    nets = [lp.Recurrent(cell, engine=engine) for engine in ("cpu", "reference")]
    for before in (None, state):
        one, other = (found(net, x, before, targets=targets.transpose(0, 1)) for net in nets)
        assert_close(one, other, "forced")
    assert borders
    assert all(border == batch and pointers is not None for border, pointers in borders)
