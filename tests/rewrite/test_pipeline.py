"""The pipeline: the order of the rewrites, who contributes to it, and what `explain` says of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import leporello as lp
from leporello.engine.plan import Plan
from leporello.engine.targets import TARGETS
from leporello.loop.loop import Loop
from leporello.loop.tracing.trace import trace
from leporello.rewrite.pipeline import PIPELINE, Context, Pass, Pipeline, Slot

PHASES = ("call", "plan", "forward", "backward", "second", "pair", "sweep")


def loop_of(cell: lp.Cell) -> Loop:
    return trace(cell, torch.zeros(3, 3), cell.initial_state(3))


def test_phases_come_in_the_order_in_which_they_run() -> None:
    phases = [entry.phase for entry in PIPELINE]
    assert list(dict.fromkeys(phases)) == list(PHASES)
    assert all(entry.why for entry in PIPELINE)


def test_a_call_contributes_forcing_resets_and_lengths_in_this_order() -> None:
    context = Context(forced="o", always=False, restarts=(), lengths=True)
    pipeline = Pipeline(context)
    loop = pipeline.call(loop_of(lp.Jordan(3, 4, 2)))
    assert [one.name for one in pipeline.records] == ["force", "reset", "mask"]
    assert pipeline.records[-1].operators == len(loop.nodes)
    assert Pipeline(Context()).call(loop) is loop  # nothing applies


def test_a_method_and_a_target_contribute_passes_in_their_slots() -> None:
    ran: list[str] = []

    def noted(name: str) -> Pass:
        def apply(context: Context, value: object) -> object:
            ran.append(name)
            return value

        return Pass({"method": "backward", "pair": "pair"}.get(name, "sweep"), name, "a test", apply)  # type: ignore[arg-type]

    cell = lp.RNN(3, 4)
    loop = loop_of(cell)
    wanted = tuple(port.kind == "invariant" for port in loop.inputs)
    target = replace(TARGETS["stepwise"], passes=(noted("pair"), noted("sweep")))
    plan = Plan(loop, wanted, (noted("method"),), target)
    plan.prepare()
    assert ran == ["method", "pair", "sweep", "sweep"]  # the sweeps forward and backward
    assert [one.name for one in plan.pipeline.records if one.why == "a test"] == [
        "method", "pair", "pair", "sweep", "sweep",
    ]  # fmt: skip
    slots = [(entry.phase, entry.by) for entry in PIPELINE if isinstance(entry, Slot)]
    methods = [("backward", "method"), ("second", "method")]
    assert slots == [("plan", "target"), *methods, ("pair", "target"), ("sweep", "target")]


def test_the_gradient_method_of_a_user_stands_in_the_pipeline_by_its_name() -> None:
    class Unchanged(lp.gradient.Method):
        def backward(self, loop: Loop) -> Loop:
            return loop

    text = lp.Recurrent(lp.RNN(3, 4), gradient=Unchanged(), engine="stepwise").explain(
        torch.zeros(5, 2, 3), passes=True
    )
    assert "Unchanged.backward" in text
    text = lp.Recurrent(lp.RNN(3, 4), gradient=lp.Truncated(2, clip_state=1.0)).explain(
        torch.zeros(5, 2, 3), passes=True
    )
    assert text.index(" differentiate ") < text.index(" weigh ") < text.index(" clip ") < text.index(" save ")


def test_explain_prints_the_size_of_the_loop_behind_each_pass() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4), engine="stepwise")
    x = torch.zeros(5, 2, 3)
    text = net.explain(x, lengths=torch.tensor([5, 2]), resets=torch.zeros(5, 2, dtype=torch.bool), passes=True)
    table = text[text.index("passes   ") :]
    names = [line.split()[1] for line in table.splitlines()[2:]]
    assert names[:4] == ["reset", "mask", "part", "differentiate"]
    assert set(names[4:]) == {"save", "merge_equal_values", "associate"}
    assert "passes" not in net.explain(x)


def test_explain_without_a_pass_says_so() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = h + x - x.mean(0)
            return h, h

    text = lp.Recurrent(Mixed()).explain(torch.zeros(5, 2, 3), torch.zeros(2, 3), passes=True)
    assert "passes   none: the traced step is run as it is" in text
