"""Run a training to its end: show it, stop it on a signal, write the report with the flow of its gradients.

Ctrl-C stops the training after the present update, with a checkpoint. The exit code is then the one that shells use for
a signal: 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import io
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import typer
from torch import Tensor, nn

from leporello.analysis.gradient_flow import GradientFlow, gradient_flow
from leporello.cli.console import progress_bar, say, warn
from leporello.errors import LeporelloError
from leporello.language.model.language_model import LanguageModel, evaluation_mode
from leporello.language.model.perplexity import perplexity_of_loss
from leporello.language.ngrams.baseline import Row, as_text, corpus_baseline
from leporello.language.report.markdown_report import Flow, write_report
from leporello.language.tokens.corpus import Corpus
from leporello.language.training.display import Display, JsonLines, NoDisplay, ProgressBar
from leporello.language.training.training_loop import Training
from leporello.plotting import INSTALL_HINT, matplotlib_missing
from leporello.text_table import format_long_time

FLOW_STEPS = 100  # length of the windows over which gradients are measured
FLOW_ROWS = 8  # number of windows
FLOW_MULTIPLICATIONS = 5e9  # a larger network gets fewer rows, then fewer steps
MIN_FLOW_STEPS = 10  # over fewer steps a measurement says nothing
VANISHED = 0.01  # share of a gradient that no longer counts


def run_training(training: Training, *, as_json: bool = False, quiet: bool = False) -> None:
    """Train until the end or a signal; show progress, and write the report.

    If a signal stopped it, it raises typer.Exit with the exit code of that signal.
    """
    leads, is_over = training.ranks.is_main, training.progress.ended is not None
    verbose = leads and not quiet and not as_json
    try:
        if verbose:
            say(f"the run is over: {training.progress.ended}." if is_over else introduction(training))
        rows = _other_models(training, verbose and not is_over) if leads else []
        with stop_on_signal(training) as stopped, _view(training, rows, as_json=as_json, quiet=quiet) as view:
            for event in training.events():
                view.show(event)
        if leads and training.run is not None:
            write_report(training.run, None if training.interrupted else _gradient_flow(training))
    except KeyboardInterrupt:
        if leads and training.run is not None:
            warn(f"broken off: leporello resume {training.run.path} goes on from the last checkpoint")
        raise typer.Exit(128 + signal.SIGINT) from None
    if verbose:
        say(conclusion(training, rows))
        if training.run is not None and matplotlib_missing():
            warn(f"curve.svg needs matplotlib: {INSTALL_HINT}")
    training.leave()
    if training.interrupted and training.progress.ended is None:
        raise typer.Exit(128 + (stopped.by or signal.SIGINT))


def introduction(training: Training) -> str:
    """The text, the network and the folder of the run, printed before the training."""
    corpus, config = training.corpus, training.config
    count = sum(value.numel() for value in training.net.parameters())
    validation = 0 if corpus.validation is None else len(corpus.validation.tokens)
    layers = f"{config.layers} layers of " if config.layers > 1 else ""
    parts = f"{len(corpus.train.tokens):,} to train on, {validation:,} to validate with"
    lines = [
        f"text     {corpus.source}",
        f"tokens   {parts}, {corpus.tokenizer.size:,} different",
        f"network  {layers}{config.cell}, {config.hidden} units, {count:,} parameters",
    ]
    if corpus.validation is not None and corpus.validation.unknown:
        share = corpus.validation.unknown / len(corpus.validation.tokens)
        lines.append(f"unknown  {share:.3%} of the validation part is outside the vocabulary")
    if training.run is not None:
        lines.append(f"run      {training.run.path}")
    return "\n".join(lines)


def conclusion(training: Training, rows: list[Row]) -> str:
    """Why the training ended, its perplexity in a table with other models, `rows`, and the commands to go on with."""
    progress, run = training.progress, training.run
    why = progress.ended or "interrupted, and saved"
    lines = [f"stopped: {why}, {progress.update:,} updates, {format_long_time(progress.seconds)}"]
    if progress.best is not None:
        lines += ["", as_text([*rows, _network_row(training, progress.best)]), ""]
    if run is not None and progress.ended is None:
        lines.append(f"go on with     leporello resume {run.path}")
    if run is not None:
        lines.append(f"write text     leporello generate {run.path}")
        lines.append(f"read about it  {run.report_file}")
    return "\n".join(lines)


def _network_row(training: Training, loss: float) -> Row:
    """The network as a `Row` of the table of models.

    loss   on the validation part, in nats a token
    """
    config, part = training.config, training.corpus.validation
    assert part is not None
    return Row(
        f"{config.cell} {config.hidden}",
        perplexity_of_loss(loss),
        loss / math.log(2) * (len(part.tokens) - 1) / (part.characters - part.first_characters),
        parameters=sum(value.numel() for value in training.net.parameters()),
        seconds=training.progress.seconds,
    )


def _other_models(training: Training, verbose: bool) -> list[Row]:
    """The uniform model and n-grams to compare with, counted or from the run folder; verbose: print their table."""
    file = None if training.run is None else training.run.ngrams_file
    with progress_bar("n-grams", verbose) as progress:
        rows = corpus_baseline(training.corpus, training.config.ngrams, file, progress)
    if verbose and rows:
        say(f"\n{as_text(rows)}\n")
    return rows


def _view(training: Training, rows: list[Row], *, as_json: bool, quiet: bool) -> Display:
    """What shows the events of the training: nothing, lines of JSON, or a progress bar."""
    if quiet or not training.ranks.is_main:
        return NoDisplay()
    if as_json:
        return JsonLines()
    share = training.progress.share(training.config, training.batches.updates)
    return ProgressBar(training.config, [(row.name, row.perplexity) for row in rows], share)


@dataclass
class StopSignal:
    """The signal that stopped a training.

    by   the number of the first signal; None before one arrives
    """

    by: int | None = None


@contextmanager
def stop_on_signal(training: Training) -> Iterator[StopSignal]:
    """Handle SIGINT and SIGTERM: the first stops the training after its update, a second raises KeyboardInterrupt.

    Previous handlers come back after the block.
    """
    stopped = StopSignal()

    def handle(number: int, frame: Any) -> None:
        if stopped.by is not None:
            raise KeyboardInterrupt
        stopped.by = number
        training.stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _gradient_flow(training: Training) -> Flow:
    """The gradient flow of the best checkpoint, for the report."""
    assert training.run is not None
    return flow_of(LanguageModel.load(training.run.path), training.corpus)


def flow_of(model: LanguageModel, corpus: Corpus) -> Flow:
    """How far back the loss of predicting a token reaches, in words and as SVG; or why it cannot be measured."""
    try:
        flow = measure_flow(model, corpus)
    except (LeporelloError, RuntimeError) as error:  # a report without it is better than none
        return Flow(f"not measured: {error}")
    return Flow(str(flow), _meaning(flow, model.config.window), _flow_svg(flow))


def measure_flow(model: LanguageModel, corpus: Corpus) -> GradientFlow:
    """`gradient_flow` of the cross-entropy of the next token, over windows of the validation part.

    Without such a part, over windows of the training part.
    """
    part = corpus.validation or corpus.train
    count = sum(value.numel() for value in model.net.parameters())
    inputs, targets = _windows(part.tokens, *_affordable_size(count, len(part.tokens)))
    device = next(model.net.parameters()).device
    inputs, targets = inputs.to(device), targets.to(device)
    forcing = 1.0 if model.scorer().forced else None
    with evaluation_mode(model.net):
        return gradient_flow(model.net, inputs, nn.functional.cross_entropy, targets=targets, forcing=forcing)


def _affordable_size(parameters: int, tokens: int) -> tuple[int, int]:
    """Steps and rows to measure: each loss goes back through every earlier step, so the work is quadratic in steps."""
    steps = min(FLOW_STEPS, tokens - 1)
    rows = max(1, min(FLOW_ROWS, (tokens - 1) // steps, int(FLOW_MULTIPLICATIONS / (parameters * steps**2))))
    affordable_steps = math.isqrt(int(FLOW_MULTIPLICATIONS / (parameters * rows)))
    return max(min(steps, MIN_FLOW_STEPS), min(steps, affordable_steps)), rows


def _windows(tokens: Tensor, steps: int, rows: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (steps, rows) each: windows at equal distances, and the same shifted by one token."""
    stride = (len(tokens) - 1 - steps) // max(1, rows - 1) if rows > 1 else 0
    windows = torch.stack(
        [tokens[at : at + steps + 1].long() for at in range(0, rows * stride + 1, stride or 1)][:rows], 1
    )
    return windows[:-1], windows[1:]


def _meaning(flow: GradientFlow, window: int) -> str:
    """The flow in words, compared with the window of the training."""
    text = (
        "How much of the gradient of each token's loss reaches the states before it; the rate is fitted over all steps."
    )
    vanished = (flow.left < VANISHED).nonzero()
    if not len(vanished):
        return f"{text} Over {len(flow.left)} steps it never falls below {VANISHED:.0%}."
    text += f" Less than {VANISHED:.0%} is left {int(vanished[0])} steps back"
    if window >= len(flow.left):
        return f"{text}; the window that was trained at once has {window}."
    return f"{text}; the window of {window} steps cuts it off where {float(flow.left[window]):.2g} of it is left."


def _flow_svg(flow: GradientFlow) -> bytes | None:
    if find_spec("matplotlib") is None:
        return None
    image = io.BytesIO()
    flow.plot().savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()
