"""Every built-in step is one graph in which the batch is a symbol that nothing depends on."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from leporello.loop.cell import Cell
from leporello.loop.state import leaves_of, state_of
from tests.cells.examples import EXAMPLES, KINDS, TOLERANCE, shaken, step_inputs

every_cell = pytest.mark.parametrize("name", KINDS)
every_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def invariants(cell: Cell) -> dict[str, torch.Tensor]:
    return {**dict(cell.named_parameters()), **dict(cell.named_buffers())}


def traced(cell: Cell) -> tuple[GraphModule, ShapeEnv]:
    """The graph of a step at batch 3: features static, the batch a symbol."""
    environment = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment)

    def fake(value: torch.Tensor, first: DimDynamic) -> torch.Tensor:
        sizes = [first, *[DimDynamic.STATIC] * (value.dim() - 1)][: value.dim()]
        return mode.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    def step(values, x, *leaves):
        call = (x, state_of(cell.state_names(), leaves))
        return tuple(leaves_of(torch.func.functional_call(cell, values, call)))

    x, state = step_inputs(cell, 3)
    values = {name: fake(value, DimDynamic.STATIC) for name, value in invariants(cell).items()}
    x = fake(x, DimDynamic.DYNAMIC)
    with mode:
        leaves = [x.new_empty(x.shape[0], *leaf.shape[1:]) for leaf in leaves_of(state)]  # one symbol for all
        return make_fx(step)(values, x, *leaves), environment


@every_cell
@every_mode
def test_a_graph_traced_at_one_batch_runs_at_another(name: str, training: bool) -> None:
    cell = shaken(EXAMPLES[name]()).train(training)
    graph, environment = traced(cell)
    assert not environment.guards
    for batch in (1, 5):
        x, state = step_inputs(cell, batch, seed=2)
        torch.manual_seed(3)
        wanted = leaves_of(cell(x, state))
        torch.manual_seed(3)
        got = graph(invariants(cell), x, *leaves_of(state))
        torch.testing.assert_close(list(got), wanted, rtol=TOLERANCE, atol=TOLERANCE)


@every_cell
@every_mode
def test_a_step_writes_in_place_nowhere(name: str, training: bool) -> None:
    graph, _ = traced(shaken(EXAMPLES[name]()).train(training))
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert not [target for target in called if getattr(target, "_schema", None) and target._schema.is_mutable]
