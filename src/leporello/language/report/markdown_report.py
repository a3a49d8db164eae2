"""`write_report`: the report of a run in Markdown: what was trained, how it went, baselines, samples, gradient flow."""

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
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run
from leporello.language.tokens.vocabulary import read_vocabulary
from leporello.plotting.figures import INSTALL_HINT, matplotlib_missing
from leporello.text_table import markdown_table

MAX_SAMPLES = 3  # the last ones
FLOW_FILE = "flow.svg"
# Control characters as their pictures
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


@dataclass(frozen=True)
class Flow:
    """The gradient flow of the trained network, as a section of the report.

    text      the measurements, as preformatted text
    meaning   what they say about this run, in a sentence or more
    svg       a picture; None if none could be drawn
    """

    text: str
    meaning: str = ""
    svg: bytes | None = None


def write_report(run: Run, flow: Flow | None = None) -> None:
    """Write report.md into a run folder, and curve.svg if matplotlib is installed.

    flow   the section about gradients, whose picture becomes flow.svg; None: no such section
    """
    summary = summary_of(run)
    models = summary.models
    measured = any(line["kind"] in ("train", "validation") for line in summary.metrics)
    if measured and not matplotlib_missing():
        write_atomically(run.curve_file, curve_svg(summary.metrics, models, f"{summary.source}: {summary.network}"))
    if flow is not None and flow.svg is not None:
        write_atomically(run.path / FLOW_FILE, flow.svg)
    sections = [
        f"# {spanned(summary.source)}: {spanned(summary.network)}",
        _ending(summary),
        _curve(measured),
        "## What was trained\n\n" + _trained(summary),
        "## Beside other models\n\n" + _compared(summary, models),
        _samples(summary.metrics),
        _flow(flow),
        "## How to go on\n\n" + _commands(summary),
    ]
    write_atomically(run.report_file, "\n\n".join(filter(None, sections)) + "\n")


def row_of(summary: RunSummary) -> Row | None:
    """The network of a run as a `Row` of the table of models; None before its first validation."""
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


def changed_options(config: Config) -> dict[str, Any]:
    """The keys and values of a configuration that differ from the defaults."""
    fields = dataclasses.fields(config)
    return {field.name: value for field in fields if (value := getattr(config, field.name)) != field.default}


def _ending(summary: RunSummary) -> str:
    """How the training ended, how long it took, and its best validation."""
    last, best = summary.last, summary.best
    sentences = [
        f"Ended: {summary.ended}." if summary.ended else "Stopped before its end.",
        f"{last.get('update', 0):,} updates, {_epochs(last.get('epoch', 0))}, {last.get('tokens', 0):,} tokens, "
        f"{summary.seconds:,.0f} s"
        + (f", {summary.tokens_per_second:,.0f} tokens a second." if summary.tokens_per_second else "."),
    ]
    if best is not None:
        sentences.append(
            f"The best validation perplexity is **{best['perplexity']:.3f}** after {_epochs(best['epoch'])}: "
            f"{best['bits_per_character']:.3f} bits per character."
        )
    return "\n".join(sentences)


def _epochs(count: float) -> str:
    return f"{count:.4g} epoch{'' if count == 1 else 's'}"


def _curve(measured: bool) -> str:
    """The image of the curve, or why there is none."""
    if not measured:
        return "Nothing was measured yet."
    if matplotlib_missing():
        return f"curve.svg needs `{INSTALL_HINT}`."
    return "![perplexity over the training](curve.svg)"


def _trained(summary: RunSummary) -> str:
    """A table of the text, the network and the options that are not at their defaults."""
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
    for name, value in changed_options(config).items():
        if name not in ("text", "cell", "hidden", "layers"):
            rows[spanned(name)] = spanned(json.dumps(value, ensure_ascii=False))
    return two_columns(rows) + "\n\nAll other options have their defaults; [config.toml](config.toml) has them all."


def _part(counts: Mapping[str, Any]) -> str:
    """The counts of a part of the corpus in words."""
    unknown = f", {counts['unknown'] / counts['length']:.3%} of them unknown" if counts["unknown"] else ""
    return f"{counts['length']:,} tokens, {counts['characters']:,} characters{unknown}"


def _compared(summary: RunSummary, models: Sequence[Row]) -> str:
    """A table of the network and the baseline models, and a sentence that compares them."""
    network = row_of(summary)
    rows = [*models, *([network] if network else [])]
    if not rows:
        return "There was no validation."
    return f"{as_markdown(rows)}\n\n{_rank(network, models)}".rstrip()


def _rank(network: Row | None, models: Sequence[Row]) -> str:
    """Which models the network is better and worse than, in a sentence."""
    if network is None or not models:
        return ""
    ranked = sorted(models, key=lambda row: row.perplexity)
    better = [row.name for row in ranked if row.perplexity < network.perplexity]
    worse = [row.name for row in ranked if row.perplexity >= network.perplexity]
    if not better:
        return "The network predicts better than all of them."
    if not worse:
        return "All of them predict better than the network."
    return f"The network predicts better than the {worse[0]} model, and worse than the {better[-1]} model."


def _samples(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The section of the last samples; "" if there is none."""
    samples = [line for line in metrics if line["kind"] == "sample"][-MAX_SAMPLES:]
    if not samples:
        return ""
    texts = [f"After {_epochs(line['epoch'])}:\n\n{fenced(line['text'])}" for line in samples]
    return "\n\n".join(["## What it writes", *texts])


def _flow(flow: Flow | None) -> str:
    """The section of the gradient flow; "" if it was not measured."""
    if flow is None:
        return ""
    image = f"![where gradients go]({FLOW_FILE})" if flow.svg is not None else ""
    return "\n\n".join(filter(None, ["## Where gradients go", flow.meaning, fenced(flow.text), image]))


def _commands(summary: RunSummary) -> str:
    """Commands for this run, as a code block."""
    path = shlex.quote(str(summary.run.path))
    lines = [f"leporello generate {path}"]
    if not summary.ended:
        lines.insert(0, f"leporello resume {path}")
    lines.append(f"leporello compare {path} ANOTHER_RUN")
    return fenced("\n".join(lines), "sh")


def fenced(text: str, language: str = "text") -> str:
    """A Markdown code block, whose fences are longer than any inside.

    >>> print(fenced("a\\n```b"))
    ````text
    a
    ```b
    ````
    """
    fence = "`" * max(3, 1 + _longest_backticks(text))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def spanned(text: str) -> str:
    """A Markdown code span in one line, with ␊ for line ends and blanks for tabs; "" for an empty text.

    >>> print(spanned("a_b"), spanned("`"))
    `a_b` `` ` ``
    """
    line = visible(text).replace("\n", "␊").replace("\t", " ")
    ticks = "`" * (1 + _longest_backticks(line))
    padding = " " if line[:1] in ("`", " ") or line[-1:] in ("`", " ") else ""
    return f"{ticks}{padding}{line}{padding}{ticks}" if line else ""


def two_columns(rows: Mapping[str, str]) -> str:
    """A Markdown table of names and values, with an empty head.

    >>> print(two_columns({"cell": "`a|b`"}))
    | | |
    |:---|:---|
    | cell | `a\\|b` |
    """
    return markdown_table(["", ""], list(rows.items()), left=(0, 1))


def visible(text: str) -> str:
    """The text with control characters as their pictures, lone surrogates as question marks, "\\n" for "\\r\\n"."""
    return text.replace("\r\n", "\n").translate(CONTROL_PICTURES).encode(errors="replace").decode()


def _longest_backticks(text: str) -> int:
    """The length of the longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)
