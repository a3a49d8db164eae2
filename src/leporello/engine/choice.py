"""Which engine runs a Loop, and why not a faster one.

Knows the engines' conditions; knows nothing of how they run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leporello.engine.cpu.build import refuse_no_compiler, why_no_compiler
from leporello.errors import ArgumentError, EngineRefusal, RowsMeet
from leporello.loop.loop import Loop
from leporello.loop.step import place_of

ENGINES = ("cpu", "stepwise", "reference")  # the fastest first
AUTO = ENGINES  # those that "auto" chooses from
_said: set[str] = set()  # what has been said in this process


@dataclass(frozen=True)
class Choice:
    """An engine by name, with the reason in a sentence."""

    engine: str
    why: str


def choose(asked: str, loop: Loop, refused: Sequence[tuple[str, str]] = ()) -> Choice:
    """The engine asked for, or for "auto" the fastest that can run the loop; a named one that cannot raises.

    refused   engines that have been tried already, with their reasons
    """
    refuse_unknown(asked)
    if asked != "auto":
        _refuse(asked, loop)
        if asked == "cpu":
            refuse_no_compiler()
        return Choice(asked, "asked for by name")
    reasons = dict(refused)
    if "cpu" in AUTO:
        _without_compiler(reasons)
    for engine in AUTO:
        if engine not in reasons:
            try:
                _refuse(engine, loop)
            except (EngineRefusal, RowsMeet) as refusal:
                reasons[engine] = loop.batch_interaction or refusal.what
                continue
            return Choice(engine, _why(reasons))
    raise AssertionError("the engine 'reference' runs every loop")


def _why(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return "chosen by auto: the fastest engine for this loop"
    if len(set(reasons.values())) == 1:
        return f"chosen by auto; not {' or '.join(reasons)}: {next(iter(reasons.values())).removesuffix('.')}"
    told = [f"not {engine}: {reason.removesuffix('.')}" for engine, reason in reasons.items()]
    return f"chosen by auto; {'; '.join(told)}"


def _refuse(engine: str, loop: Loop) -> None:
    """What an engine cannot run, as far as the loop alone shows it."""
    elsewhere = next((port.device for port in loop.inputs if port.device.type != "cpu"), None)
    if engine == "cpu" and elsewhere is not None:
        raise EngineRefusal(
            "the engine 'cpu' runs on the CPU alone.", came=f"tensors on {elsewhere}", tries='engine="auto"'
        )
    if engine != "reference" and loop.batch_interaction is not None:
        raise RowsMeet(
            "rows of the batch influence each other in this step.",
            cell=place_of(loop.signature.module) if loop.signature and loop.signature.module else loop.name,
            because=loop.batch_interaction,
            engine=engine,
            tries='compute over features only; or engine="reference", or "auto", which chooses it',
        )


def _without_compiler(reasons: dict[str, str]) -> None:
    """Say once that a compiler is all that `cpu` lacked for a loop; from then on it is not tried in vain."""
    why = why_no_compiler()
    if why is None:
        return
    if reasons.get("cpu") == why and why not in _said:
        _said.add(why)
        warnings.warn(
            f"{why} The engine 'stepwise' runs what 'cpu' would run faster. Install gcc or clang; or say "
            'engine="stepwise", and this is not said.',
            stacklevel=2,
        )
    if why in _said:
        reasons.setdefault("cpu", why)


def refuse_unknown(asked: str) -> None:
    if asked not in ("auto", *ENGINES):
        raise ArgumentError(
            "the argument 'engine' names no engine.",
            came=repr(asked),
            expected=", ".join(["auto", *ENGINES]),
        )
