"""`explain`: the text that says which engine runs a call, what runs at once or step by step, and what is saved."""

from __future__ import annotations

import math

from leporello.engine.choice import Choice
from leporello.engine.plan import Plan, Sweep
from leporello.gradient.method import Method
from leporello.loop.port import Role
from leporello.loop.stages import Stage
from leporello.loop.text import value_text
from leporello.rewrite.skip_padding import masked_row_sum
from leporello.text_table import html_text, plain_table


class Explanation(str):
    """The text of `explain`, which a notebook shows line by line."""

    def _repr_html_(self) -> str:
        return html_text(self)


_TITLES = {
    "once": "once a call",
    "at once": "all steps at once",
    "inside": "step by step",
    "finish": "once, at the end",
}


def explanation(
    plan: Plan,
    choice: Choice,
    gradient: Method,
    length: int,
    batch: int,
    *,
    passes: bool = False,
    timing: bool = False,
) -> Explanation:
    """The text of `net.explain(...)`.

    passes   whether to add every rewrite that led to the sweeps, with the size of the Loop behind it
    timing   whether to add how long the plan took to make, by phase
    """
    text = _explanation(plan, choice, gradient, length, batch)
    return Explanation(text + (_passes(plan) if passes else "") + (_timing(plan) if timing else ""))


def _timing(plan: Plan) -> str:
    """The phases of the plan's making, the longest first."""
    phases = sorted(plan.seconds.items(), key=lambda item: -item[1])
    rows = [(name, f"{seconds:.3f}") for name, seconds in [("the first call", sum(plan.seconds.values())), *phases]]
    table = plain_table([("phase", "seconds"), *rows], left={0})
    return "timing   of the first call of this kind; later ones need none of it\n" + "".join(
        f"  {line}\n" for line in table.splitlines()
    )


def _passes(plan: Plan) -> str:
    """One line per pass of the pipeline, in the order in which they ran."""
    records = plan.pipeline.records
    if not records:
        return "passes   none: the traced step is run as it is\n"
    heads = ("on", "pass", "operators", "inputs", "outputs", "states", "why it stands here")
    rows = [
        (one.on, one.name, str(one.operators), str(one.inputs), str(one.outputs), str(one.states), one.why)
        for one in records
    ]
    table = plain_table([heads, *rows], left={0, 1, len(heads) - 1})
    return "passes   in the order in which they ran, with the size of the loop behind each\n" + "".join(
        f"  {line}\n" for line in table.splitlines()
    )


def _explanation(plan: Plan, choice: Choice, gradient: Method, length: int, batch: int) -> str:
    loop = plan.loop
    lines = [
        f"{loop.name}: {length} steps, batch {batch}",
        f"engine   {choice.engine} ({choice.why})",
    ]
    trains = any(plan.wanted)
    if trains:
        lines.append(f"gradient {gradient}")
    if choice.engine == "reference":
        lines.append(f"         {gradient.by_reference if trains else Method.by_reference}")
        lines += gradient.kept(plan, length, batch) if trains else []
        return "\n".join(lines) + "\n"
    if plan.target is not None and plan.target.interpret is not None:
        return "\n".join([*lines, "         interprets the whole graph, one step at a time; no gradients"]) + "\n"
    language = "" if plan.target is None else plan.target.language
    for title, sweep in gradient.sweeps(plan) if trains else [("forward", plan.plain)]:
        lines += [title, *_stages(sweep, length, batch), *_sources(sweep, language)]
    if trains:
        lines += gradient.kept(plan, length, batch) or _saved(plan, length, batch)
    else:
        lines.append("saved    nothing: no gradient is needed")
    return "\n".join(lines) + "\n"


def _stages(sweep: Sweep, length: int, batch: int) -> list[str]:
    split, rows = sweep.program.split, batch if sweep.alone else length * batch
    titles = {**_TITLES, "at once": _TITLES["inside"]} if sweep.alone else _TITLES
    lines = ["  parallel: no step waits for another"] if split.parallel and not sweep.alone else []
    for stage in split.stages:
        shifts = [name for name in stage.states if stage.kind != "inside"]
        if stage.operators or shifts:
            title = "row by row" if stage.kind == "inside" and not stage.states else titles[stage.kind]
            lines.append(f"  {title:<18} {_rows(stage, rows, batch)}{_operators(stage)}")
        if stage.kind == "inside" and stage.states:
            states = ", ".join(f"{name} {value_text(split.loop.delays[name][1].meta['val'])}" for name in stage.states)
            lines.append(f"  {'':<18} states: {states}")
        if shifts:
            lines.append(f"  {'':<18} shifted by one step: {', '.join(shifts)}")
    return lines


def _sources(sweep: Sweep, language: str) -> list[str]:
    """Where the generated text of the sweep and of its kernels can be read."""
    kernels = [timed.kernel for timed in sweep.program.timed if timed.kernel is not None]
    sources = [kernel.runner.source for kernel in kernels if kernel.runner.source is not None]
    lines = [f"  {'':<18} {about}" for kernel in kernels if (about := getattr(kernel.runner, "about", ""))]
    lines += [f"  {'steps':<18} {timed.recorded.about}" for timed in sweep.program.timed if timed.recorded is not None]
    lines += [] if sweep.recorded is None else [f"  {'the whole sweep':<18} {sweep.recorded.about}"]
    lines += [f"  {f'generated {language}':<18} {path}" for path in sources]
    return [*lines, f"  {'generated Python':<18} {sweep.written_text()}"]


def _rows(stage: Stage, rows: int, batch: int) -> str:
    count = {"at once": rows, "inside": batch}.get(stage.kind)
    return f"{count} rows: " if count else ""


def _operators(stage: Stage) -> str:
    """Products with what they multiply, the rest counted."""
    products = {"mm", "addmm", "bmm", "baddbmm"}
    named = [f"product with {name}" for name in stage.products]
    sums = sum(name in products for name in stage.operators) - stage.products_with_invariants
    named += ["1 product of values"] if sums == 1 else [f"{sums} products of values"] if sums else []
    shorter = stage.operators.count(masked_row_sum.__name__)
    named += [f"{shorter} sum{'s' * (shorter > 1)} over rows that have not ended"] if shorter else []
    others = [name for name in stage.operators if name not in products | {"shift", masked_row_sum.__name__}]
    counts = {name: others.count(name) for name in dict.fromkeys(others)}
    named += [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    return ", ".join(named) or "nothing but shifts"


def _saved(plan: Plan, length: int, batch: int) -> list[str]:
    """What is kept in memory between the sweeps, apart from inputs and outputs."""
    extra = [
        (port, node)
        for port, node in zip(plan.saved.forward.outputs, plan.saved.forward.results, strict=True)
        if port.role is Role.SAVED and node.op != "placeholder"
    ]
    size = sum(port.dtype.itemsize * math.prod(port.shape_of(length, batch)) for port, _ in extra)
    names = [f"{node.meta.get('label', node.name)} {port}" for port, node in extra]
    again = "inputs, outputs and states are read in place; pointwise values are recomputed"
    return [f"saved    {', '.join(names) or 'nothing'}: {size:,} bytes", f"         {again}"]
