"""`write_report`: a run as a page to read: what was trained, how it went, what it stands beside, what it writes.

Knows summaries, rows and Markdown. What instruments found out about the network comes from outside.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leporello.atomic_write import write_atomically
from leporello.language.config import Config
from leporello.language.ngrams.baseline import Row, as_markdown
from leporello.language.report.curves import curve_svg
from leporello.language.report.plot_style import NEEDED, plots_missing
from leporello.language.report.summary import Summary, summary_of
from leporello.language.run.folder import Run
from leporello.language.tokens.vocabulary import read_vocabulary

SAMPLES = 3  # the last ones
FLOW = "flow.svg"


@dataclass(frozen=True)
class Flow:
    """Where the gradients of the trained network go.

    text      what was found, for a fence
    meaning   what that says about this run, a sentence or more
    svg       a picture; None where none could be drawn
    """

    text: str
    meaning: str = ""
    svg: bytes | None = None


def write_report(run: Run, flow: Flow | None = None) -> None:
    """Write curve.svg, where matplotlib is there, and report.md into a run folder."""
    summary = summary_of(run)
    models = summary.models
    measured = any(line["kind"] in ("train", "validation") for line in summary.metrics)
    if measured and not plots_missing():
        write_atomically(run.curve_file, curve_svg(summary.metrics, models, f"{summary.source}: {summary.network}"))
    if flow is not None and flow.svg is not None:
        write_atomically(run.path / FLOW, flow.svg)
    sections = [
        f"# {spanned(summary.source)}: {spanned(summary.network)}",
        _ending(summary),
        _curve(measured),
        "## What was trained\n\n" + _trained(summary),
        "## Beside other models\n\n" + _beside(summary, models),
        _samples(summary.metrics),
        _flow(flow),
        "## How to go on\n\n" + _further(summary),
    ]
    write_atomically(run.report_file, ("\n\n".join(filter(None, sections)) + "\n").encode())


def row_of(summary: Summary) -> Row | None:
    """The network of a run beside other models; None before its first validation."""
    best = summary.best
    if best is None:
        return None
    return Row(
        summary.network,
        best["perplexity"],
        best["bits_per_character"],
        parameters=summary.parameters,
        seconds=summary.seconds,
    )


def different(config: Config) -> dict[str, Any]:
    """Keys of a configuration that are not at their defaults."""
    found = {field.name: (getattr(config, field.name), field.default) for field in dataclasses.fields(config)}
    return {name: value for name, (value, default) in found.items() if value != default}


def _ending(summary: Summary) -> str:
    last, best = summary.last, summary.best
    told = [
        f"Ended: {summary.ended}." if summary.ended else "Stopped before its end.",
        f"{last.get('update', 0):,} updates, {last.get('epoch', 0):g} epochs, {last.get('tokens', 0):,} tokens, "
        f"{summary.seconds:,.0f} s"
        + (f", {summary.tokens_per_second:,.0f} tokens a second." if summary.tokens_per_second else "."),
    ]
    if best is not None:
        told.append(
            f"The best validation perplexity is **{best['perplexity']:.3f}** after {best['epoch']:g} epochs: "
            f"{best['bits_per_character']:.3f} bits per character."
        )
    return "\n".join(told)


def _curve(measured: bool) -> str:
    if not measured:
        return "Nothing was measured yet."
    return f"curve.svg needs `{NEEDED}`." if plots_missing() else "![perplexity over the training](curve.svg)"


def _trained(summary: Summary) -> str:
    config, corpus = summary.config, summary.corpus
    rows = {"text": spanned(summary.source)}
    if corpus:
        rows["tokens"] = f"{spanned(config.tokens)}, {read_vocabulary(summary.run.vocabulary_file).size:,} different"
        rows["to train on"] = _part(corpus["train"])
        rows["to validate with"] = _part(corpus["validation"]) if corpus["validation"] else "none"
        rows["digest"] = spanned(corpus["digest"])
    rows["network"] = spanned(summary.network)
    if summary.parameters is not None:
        rows["parameters"] = f"{summary.parameters:,}"
    own = {name: value for name, value in different(config).items() if name not in ("text", "cell", "hidden", "layers")}
    for name, value in own.items():
        rows[spanned(name)] = spanned(json.dumps(value, ensure_ascii=False))
    return table(rows) + "\n\nAll other options have their defaults; [config.toml](config.toml) has them all."


def _part(counts: Mapping[str, Any]) -> str:
    unknown = f", {counts['unknown'] / counts['length']:.3%} of them unknown" if counts["unknown"] else ""
    return f"{counts['length']:,} tokens, {counts['characters']:,} characters{unknown}"


def _beside(summary: Summary, models: Sequence[Row]) -> str:
    own = row_of(summary)
    rows = [*models, *([own] if own else [])]
    if not rows:
        return "There was no validation."
    return f"{as_markdown(rows)}\n\n{_standing(own, models)}".rstrip()


def _standing(own: Row | None, models: Sequence[Row]) -> str:
    """Where the network stands among them, in a sentence."""
    if own is None or not models:
        return ""
    ranked = sorted(models, key=lambda row: row.perplexity)
    better = [row.name for row in ranked if row.perplexity < own.perplexity]
    worse = [row.name for row in ranked if row.perplexity >= own.perplexity]
    if not better:
        return "The network predicts better than all of them."
    if not worse:
        return "All of them predict better than the network."
    return f"The network predicts better than the {worse[0]} model, and worse than the {better[-1]} model."


def _samples(metrics: Sequence[Mapping[str, Any]]) -> str:
    samples = [line for line in metrics if line["kind"] == "sample"][-SAMPLES:]
    if not samples:
        return ""
    shown = [f"After {line['epoch']:g} epochs:\n\n{fenced(line['text'])}" for line in samples]
    return "\n\n".join(["## What it writes", *shown])


def _flow(flow: Flow | None) -> str:
    if flow is None:
        return ""
    image = f"![where gradients go]({FLOW})" if flow.svg is not None else ""
    return "\n\n".join(filter(None, ["## Where gradients go", flow.meaning, fenced(flow.text), image]))


def _further(summary: Summary) -> str:
    path = shlex.quote(str(summary.run.path))
    lines = [f"leporello generate {path}"]
    if not summary.ended:
        lines.insert(0, f"leporello resume {path}")
    lines.append(f"leporello compare {path} ANOTHER_RUN")
    return fenced("\n".join(lines), "sh")


# ---- (language.markdown) Foreign text inside Markdown, so that it stays what it is: in a fence, in a span, in a cell of a table.
#
# Knows Markdown; knows nothing of what is said.

CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def fenced(text: str, language: str = "text") -> str:
    """A block of text between fences longer than any inside.

    >>> print(fenced("a\\n```b"))
    ````text
    a
    ```b
    ````
    """
    fence = "`" * max(3, 1 + _longest(text))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def spanned(text: str) -> str:
    """Text within a line, letter by letter.

    >>> print(spanned("a_b"), spanned("`"))
    `a_b` `` ` ``
    """
    line = visible(text).replace("\n", "␊").replace("\t", " ")
    ticks = "`" * (1 + _longest(line))
    room = " " if line[:1] in ("`", " ") or line[-1:] in ("`", " ") else ""
    return f"{ticks}{room}{line}{room}{ticks}" if line else ""


def table(rows: Mapping[str, str]) -> str:
    """Two columns without a head that says anything.

    >>> print(table({"cell": "`a|b`"}))
    | | |
    |:---|:---|
    | cell | `a\\|b` |
    """
    return "\n".join(["| | |", "|:---|:---|", *(f"| {name} | {_celled(value)} |" for name, value in rows.items())])


def visible(text: str) -> str:
    """Control characters as their pictures; what no UTF-8 can hold as a question mark."""
    return text.replace("\r\n", "\n").translate(CONTROLS).encode(errors="replace").decode()


def _celled(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _longest(text: str) -> int:
    """The longest row of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)
