import pytest
import torch
from torch.nn.functional import conv1d, pad

from leporello.cells import TimeDelay
from leporello.loop.state import leaves_of
from tests.cells.by_hand import product, total
from tests.cells.examples import assert_rows, lists, shaken, step_inputs

WINDOWS = [1, 2, 3, 7]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("inputs", "outputs", "batch"), [(1, 1, 1), (3, 63, 3), (63, 3, 1)])
def test_a_step_follows_the_equations(inputs: int, outputs: int, window: int, batch: int) -> None:
    cell = shaken(TimeDelay(inputs, outputs, window))
    x, state = step_inputs(cell, batch)
    p = lists(cell)
    seen = [x.tolist(), *(leaf.tolist() for leaf in leaves_of(state))]
    output = [total(p.c, *(product(p.K[k], seen[k][row]) for k in range(window))) for row in range(batch)]
    assert_rows(cell(x, state), output, *seen[:-1])


@pytest.mark.parametrize("window", WINDOWS)
def test_steps_in_a_row_are_a_causal_convolution(window: int) -> None:
    cell = shaken(TimeDelay(3, 2, window))
    x = torch.randn(9, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = cell.initial_state(5)
    outputs = []
    for row in x:
        output, state = cell(row, state)
        outputs.append(output)
    kernel = cell.K.flip(0).permute(1, 2, 0)  # [window, outputs, inputs] -> [outputs, inputs, oldest to newest]
    wanted = conv1d(pad(x.permute(1, 2, 0), (window - 1, 0)), kernel, cell.c).permute(2, 0, 1)
    torch.testing.assert_close(torch.stack(outputs), wanted, rtol=1e-12, atol=1e-12)


def test_the_state_is_the_past_inputs_newest_first() -> None:
    cell = TimeDelay(1, 1, 4)
    assert cell.state_names() == ["x1", "x2", "x3"]
    state = cell.initial_state(1)
    for value in (1.0, 2.0, 3.0, 4.0):
        _, state = cell(torch.tensor([[value]]), state)
    assert [leaf.item() for leaf in leaves_of(state)] == [4.0, 3.0, 2.0]


def test_a_window_of_one_has_no_state() -> None:
    cell = TimeDelay(3, 2, 1)
    assert cell.state_names() == []
    assert cell(torch.ones(5, 3), ())[1] == ()


def test_the_kernel_starts_uniform() -> None:
    cell = TimeDelay(5, 40, 5)
    assert 0.19 < cell.K.abs().max() <= 0.2
    assert not cell.c.any()
