"""`Writer`: a sampled loop, made ready once for each structure, and run with noise of its own.

Knows plans and the order of a call's tensors; knows nothing of arguments' forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.engine import bridge
from leporello.engine.plan import Plan
from leporello.errors import ArgumentError
from leporello.gradient.full import Full
from leporello.loop.cell_tensors import alone
from leporello.loop.loop import Loop
from leporello.modules.arguments import Call
from leporello.modules.choosing import Choosing
from leporello.modules.gather import Gathering, gathering
from leporello.modules.planning import keep, prepared
from leporello.modules.recurrent import Recurrent
from leporello.rewrite.sample import NOISE, TOKEN, sample
from leporello.rewrite.tabulate import LARGEST, tabulate

MOST_NOISE = 1 << 22  # numbers that are drawn at a time


@dataclass(frozen=True, eq=False)
class Writer:
    """A sampled loop, ready to run.

    size     of the logits
    gather   the values of the loop's inputs
    """

    plan: Plan
    size: int
    gather: Gathering

    def write(
        self, token: Tensor, call: Call, steps: int, choosing: Choosing, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Tokens, surprises where the loop has them, and the leaves of the state, in pieces of a bounded noise."""
        loop, batch = self.plan.loop, call.batch
        leaves = [leaf.detach() for _, leaf in call.states]
        noise = next((port for port in loop.inputs if port.name == NOISE), None)
        dtype = torch.float32 if noise is None else noise.dtype
        beside = choosing.values(dtype, call.device)
        most = steps if noise is None else max(1, MOST_NOISE // (batch * self.size))
        columns: dict[str, list[Tensor]] = {"token": [], "surprise": []}
        for begin in range(0, steps, most):
            length = min(most, steps - begin)
            beside["state", TOKEN] = token
            if noise is not None:
                beside["sequence", NOISE] = drawn(length, batch, self.size, dtype, call.device, generator)
            values = self.gather(token, leaves, length, batch, beside)
            made = zip(loop.outputs, bridge.call(self.plan, values, length, batch), strict=True)
            named = {(port.kind, port.name): value for port, value in made}
            _refuse_not_finite(named["sequence", "token"], begin, loop)
            for name, column in columns.items():
                if ("sequence", name) in named:
                    column.append(named["sequence", name])
            token = named["state", TOKEN]
            leaves = [named["state", name] for name, _ in call.states]
        surprise = torch.cat(columns["surprise"]) if columns["surprise"] else None
        return torch.cat(columns["token"]), surprise, leaves


def drawn(
    length: int, batch: int, size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Noise of so many steps, uniform on (0, 1), one step after another: in pieces it is the same."""
    home = device if generator is None else generator.device
    found = torch.rand(length, batch, size, dtype=dtype, device=home, generator=generator)
    return found.clamp_(min=torch.finfo(dtype).tiny).to(device)


@alone
def writer_of(net: Recurrent, call: Call, rows: int, choosing: Choosing, *, surprises: bool, forced: bool) -> Writer:
    """The writer of a structure, made once; tables of products only where about all of their rows will be read.

    rows   that the call looks up: steps times batch
    """
    loop, written_by = net._planner.loop(net.cell, call), net._planner.writers
    logits = [port for port in loop.outputs if port.kind == "sequence"]
    size = logits[0].shape[-1] if logits and logits[0].shape else 1
    structure, often = choosing.structure(size), rows >= size
    key = (loop, tuple(structure.values()), surprises, forced, often, net.engine)
    if key not in written_by:
        leaf = _leaf(net, loop, size) if forced else None
        sampled = sample(loop, **structure, surprises=surprises, leaf=leaf)
        sampled = tabulate(sampled, numbers=size, rows=LARGEST if often else 0)
        plan, _ = prepared(sampled, (False,) * len(sampled.inputs), Full(), net.engine, net.cell)
        keep(written_by, key, Writer(plan, size, gathering(sampled, net.cell, [name for name, _ in call.states])))
    found: Writer = written_by[key]
    return found


def _leaf(net: Recurrent, loop: Loop, size: int) -> str | None:
    """The leaf that is fed back, where it can hold a token's row."""
    leaf = net.feedback_leaf()
    fits = any((port.kind, port.name, port.shape) == ("state", leaf, (size,)) for port in loop.inputs)
    return leaf if fits else None


def _refuse_not_finite(tokens: Tensor, begin: int, loop: Loop) -> None:
    """Nothing can be drawn from a NaN: the loop says -1."""
    if bool((tokens < 0).any()):
        time, row = (tokens < 0).nonzero()[0].tolist()
        raise ArgumentError(
            "the network's logits are not finite: there is nothing to draw from.",
            loop=loop.name,
            came=f"NaN or infinity in row {row}, first at step {begin + time}",
            tries="look for NaN among the parameters, and in the state that was handed in",
        )
