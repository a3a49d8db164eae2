"""`choose`: which engine runs a Loop, and the reasons against faster ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from leporello.engine import targets
from leporello.engine.target import Target
from leporello.engine.targets import REFERENCE, engine_names, target_of
from leporello.errors import ArgumentError, EngineRefusal, LeporelloError, RowsMeet
from leporello.loop.loop import Loop
from leporello.loop.step import place_of

_warned: set[str] = set()  # reasons that this process has given in a warning


@dataclass(frozen=True)
class Choice:
    """The name of an engine, and why it was chosen, in words.

    refused   faster engines that refused the loop
    """

    engine: str
    why: str
    refused: tuple[str, ...] = ()

    @property
    def target(self) -> Target | None:
        return target_of(self.engine)


def choose(name: str, loop: Loop, refused: Sequence[tuple[str, str]] = ()) -> Choice:
    """The engine of that name, or for "auto" the fastest that can run the Loop; a named one that cannot raises.

    refused   engines that have been tried already, with their refusals in words
    """
    refuse_unknown(name)
    if name != "auto":
        target = target_of(name)
        refusal = _refusal(target, loop) or (None if target is None else target.unavailable())
        if refusal is not None:
            raise refusal
        return Choice(name, "asked for by name")
    reasons = dict(refused)
    for engine in targets.AUTO:
        target = target_of(engine)
        if target is not None and target.is_on_device_of(loop):
            _warn_if_unavailable(target, loop, reasons)
        if engine not in reasons:
            refusal = _refusal(target, loop)
            if refusal is None:
                return Choice(engine, _why(reasons), tuple(reasons))
            if target is None or target.is_on_device_of(loop):  # what runs elsewhere is no faster choice
                reasons[engine] = loop.batch_interaction or refusal.what
    raise AssertionError(f"the engine '{REFERENCE}' runs every loop")


def build_ahead(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Begin to build what kernels of the engine will share, for "auto" those of the fastest one on the device."""
    refuse_unknown(name)
    chosen = [target_of(engine) for engine in (targets.AUTO if name == "auto" else (name,))]
    fitting = [target for target in chosen if target is not None and target.runs_on(device.type)]
    if fitting:
        fitting[0].build_ahead(dtype)


def _why(reasons: Mapping[str, str]) -> str:
    """The choice of "auto" in words, with the reasons against faster engines."""
    if not reasons:
        return "chosen by auto: the fastest engine for this loop"
    if len(set(reasons.values())) == 1:
        return f"chosen by auto; not {' or '.join(reasons)}: {next(iter(reasons.values())).removesuffix('.')}"
    each = [f"not {engine}: {reason.removesuffix('.')}" for engine, reason in reasons.items()]
    return f"chosen by auto; {'; '.join(each)}"


def _refusal(target: Target | None, loop: Loop) -> LeporelloError | None:
    """Why an engine cannot run a Loop, as far as that can be told from the Loop alone; None if it can."""
    if target is None:
        return None
    refusal = target.refusal(loop)
    if refusal is None and loop.batch_interaction is not None:
        return RowsMeet(
            "rows of the batch influence each other in this step.",
            cell=_place(loop),
            because=loop.batch_interaction,
            engine=target.name,
            tries=f'{"eval()" if loop.written else "compute over features only"}; or engine="reference", or "auto", '
            "which chooses it",
        )
    return refusal


def _place(loop: Loop) -> str:
    return place_of(loop.signature.module) if loop.signature and loop.signature.module else loop.name


def refuse_writes(loop: Loop, why: str, tries: str) -> None:
    """Refuse a step that writes to a buffer.

    why, tries   why a call cannot do that, and what to do instead
    """
    for name, write in loop.written.items():
        raise EngineRefusal(
            f"the step writes to its buffer '{name}' at every step: {why}.",
            cell=_place(loop),
            line=write.meta.get("line"),
            tries=tries,
        )


def _warn_if_unavailable(target: Target, loop: Loop, reasons: dict[str, str]) -> None:
    """Warn once if a target refused a Loop only because nothing can be built here; from then on it is not tried.

    reasons   refusals by engine; that of the target is added once the warning was given
    """
    refusal = target.unavailable()
    if refusal is None:
        return
    why = refusal.what
    if reasons.get(target.name) == why and why not in _warned:
        _warned.add(why)
        others = targets.AUTO[targets.AUTO.index(target.name) + 1 :]
        slower = next(name for name in others if name not in reasons and _may_run(name, loop))
        warnings.warn(
            f"{why} The engine '{slower}' runs what '{target.name}' would run faster. {target.remedy}; or say "
            f'engine="{slower}", and this is not said.',
            stacklevel=2,
        )
    if why in _warned:
        reasons.setdefault(target.name, why)


def _may_run(name: str, loop: Loop) -> bool:
    target = target_of(name)
    return target is None or target.is_on_device_of(loop)


def refuse_unknown(name: str) -> None:
    """Raise if no engine has that name."""
    if name not in ("auto", *engine_names()):
        raise ArgumentError(
            "the argument 'engine' names no engine.",
            came=repr(name),
            expected=", ".join(["auto", *engine_names()]),
        )
