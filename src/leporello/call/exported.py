"""A Loop as an operator that carries all it needs: what torch.export writes into a file.

`leporello::loop` gets the text of a Loop. The process that loads the file imports leporello, and plans the Loop from
its text at the first call. So a file depends on no network, and runs where the cell's class cannot be imported.

Known shortcoming: the operator has no gradient.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from leporello.call.plan_cache import prepared
from leporello.engine import reference
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.operator_plan import OperatorPlan, own_memory
from leporello.engine.plan import Plan
from leporello.errors import EngineRefusal
from leporello.gradient.through_time import Full
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.text import loop_of_text, text_of

library = torch.library.Library("leporello", "FRAGMENT")
library.define("loop(str text, str engine, SymInt length, SymInt batch, Tensor[] values) -> Tensor[]")


def run_as_operator(plan: Plan, engine: str, length: Any, batch: Any, values: list[Tensor]) -> list[Tensor]:
    """The outputs of a plan's Loop, by the operator that carries it.

    engine   as the network has it: "auto" chooses again where the file is loaded
    values   of the inputs that are no constants of the Loop
    """
    engine = engine if plan.loop.batch_interaction is None else "reference"
    text = in_fresh_thread(lambda: text_of(without_own_gradients(plan.loop)))
    results: list[Tensor] = torch.ops.leporello.loop(text, engine, length, batch, values)
    return results


@cache
def _plan_of(text: str, engine: str) -> OperatorPlan:
    """The plan of a Loop in its text form, made once in a process."""

    def planned() -> Plan:
        loop = loop_of_text(text)
        with torch.no_grad():
            return prepared(loop, (False,) * len(loop.inputs), Full(), engine, None)[0]

    return OperatorPlan(in_fresh_thread(planned))


def _run(text: str, engine: str, length: int, batch: int, values: list[Tensor]) -> list[Tensor]:
    entry = _plan_of(text, engine)
    with torch.no_grad():
        inputs = entry.with_constants(entry.handed, [value.contiguous() for value in values])
        if entry.by_reference:
            return own_memory(reference.run(entry.plan.loop, entry.plan.step, inputs, length, batch), inputs)
        return entry.run_plain(length, batch, inputs)


def _fake(text: str, engine: str, length: Any, batch: Any, values: list[Tensor]) -> list[Tensor]:
    ports = _plan_of(text, engine).results
    return [torch.empty(port.shape_of(length, batch), dtype=port.dtype, device=port.device) for port in ports]


def _refuse_gradient(ctx: Any, *gradients: Any) -> None:
    raise EngineRefusal(
        "an exported network has no gradients.",
        tries="train the network itself, and export it then; torch.no_grad() where none is wanted",
    )


library.impl("loop", _run, "CompositeExplicitAutograd")
torch.library.register_fake("leporello::loop", _fake, lib=library)
torch.library.register_autograd("leporello::loop", _refuse_gradient, lib=library)
