"""What holds for every built-in cell."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from leporello import cells
from leporello.errors import NotOneStep
from leporello.loop.state import leaves_of, rows, same_structure
from tests.cells.examples import EXAMPLES, TOLERANCE, shaken, step_inputs

every_cell = pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES.keys())


def close(got: object, wanted: object) -> None:
    got, wanted = leaves_of(got), leaves_of(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_exported_cell_has_an_example() -> None:
    assert {type(make()).__name__ for make in EXAMPLES.values()} == set(cells.__all__)


@every_cell
def test_a_step_hands_on_a_state_of_the_structure_it_came_in_with(make) -> None:
    cell = shaken(make())
    x, state = step_inputs(cell, 3)
    output, after = cell(x, state)
    after = same_structure(after, state)
    assert after is not None
    assert output.shape == (3, cell.outputs)
    assert [leaf.shape for leaf in leaves_of(after)] == [leaf.shape for leaf in leaves_of(state)]
    assert all(leaf.dtype == torch.float64 for leaf in leaves_of((output, after)))


@every_cell
def test_a_first_step_needs_no_state(make) -> None:
    cell = shaken(make())
    x, _ = step_inputs(cell, 3)
    close(cell(x), cell(x, cell.initial_state(3)))


@every_cell
def test_plain_tuples_pass_for_states(make) -> None:
    cell = shaken(make())
    x, state = step_inputs(cell, 3)
    plain = tuple(state) if isinstance(state, tuple) else state
    close(cell(x, plain), cell(x, state))


@every_cell
def test_rows_never_meet(make) -> None:
    cell = shaken(make())
    x, state = step_inputs(cell, 3)
    together = cell(x, state)
    for row in range(3):
        close(cell(x[[row]], rows(state, row)), rows(together, row))


@every_cell
def test_gradients_reach_every_parameter_and_the_state(make) -> None:
    cell = shaken(make())
    x, state = step_inputs(cell, 3)
    for leaf in leaves_of(state):
        leaf.requires_grad_()
    x.requires_grad_()
    first, middle = cell(x, state)
    second, last = cell(x, same_structure(middle, state))
    loss = sum((leaf * torch.linspace(1, 2, leaf.numel()).view_as(leaf)).sum() for leaf in leaves_of((first, second)))
    loss = loss + sum((leaf**2).sum() for leaf in leaves_of(last))
    loss.backward()
    for name, parameter in cell.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name
    for value in [x, *leaves_of(state)]:
        assert value.grad is not None
        assert value.grad.abs().max() > 1e-6


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"Perceptron"}))
def test_a_learned_initial_state_is_a_parameter_per_leaf(name: str) -> None:
    assert not EXAMPLES[name]().initial
    cell = EXAMPLES[name](learned=True)
    assert list(cell.initial) == cell.state_names()
    for leaf in cell.initial.values():
        leaf.data.fill_(0.25)
    assert all((leaf == 0.25).all() and leaf.requires_grad for leaf in leaves_of(cell.initial_state(3)))


@every_cell
def test_a_cell_survives_copying_pickling_and_its_state_dict(make) -> None:
    cell = shaken(make())
    x, state = step_inputs(cell, 3)
    file = io.BytesIO()
    torch.save(cell.state_dict(), file)
    file.seek(0)
    loaded = make().double().eval()
    loaded.load_state_dict(torch.load(file))
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), loaded):
        close(other(x, state), cell(x, state))


@every_cell
def test_a_cell_moves_to_another_dtype_whole(make) -> None:
    cell = make().to(torch.bfloat16)
    output, state = cell(torch.ones(3, cell.inputs, dtype=torch.bfloat16))
    assert {leaf.dtype for leaf in leaves_of((output, state))} == {torch.bfloat16}


@every_cell
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_cell_is_made_in_the_default_dtype(make, dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        cell = make()
    finally:
        torch.set_default_dtype(before)
    assert {value.dtype for value in cell.state_dict().values()} == {dtype}


@every_cell
def test_a_cell_is_made_on_the_device_around_it(make) -> None:
    with torch.device("meta"):
        cell = make()
    assert {value.device.type for value in cell.state_dict().values()} == {"meta"}


@every_cell
def test_a_whole_sequence_is_refused(make) -> None:
    with pytest.raises(NotOneStep, match="whole sequence"):
        make()(torch.ones(7, 3, 3))


@every_cell
def test_a_cell_holds_no_plain_tensors(make) -> None:
    cell = make()
    assert not [name for name, value in vars(cell).items() if isinstance(value, torch.Tensor)]
    assert all(type(getattr(cell, name)) is int for name in ("inputs", "outputs"))
