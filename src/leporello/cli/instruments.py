"""What the instruments of `lp.analysis` find in a trained language model: where its gradients go.

Knows models, parts of a text and `gradient_flow`; knows nothing of the page it is shown on.
"""

from __future__ import annotations

import io
import math
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from leporello.analysis.gradient_flow import GradientFlow, gradient_flow
from leporello.errors import LeporelloError
from leporello.language.model.language_model import LanguageModel, evaluation_mode
from leporello.language.report.markdown_report import Flow
from leporello.language.tokens.corpus import Corpus

STEPS = 100  # that are looked at
ROWS = 8  # side by side
WORK = 5e9  # multiplications that are bearable: fewer rows, then fewer steps, of a large network
GONE = 0.01  # what is left of a gradient that counts no longer
LEAST = 10  # steps below which nothing is to be seen


def flow_of(model: LanguageModel, corpus: Corpus) -> Flow:
    """How far back the loss of predicting a token reaches, over windows of the text; or why that is not known."""
    try:
        found = measured(model, corpus)
    except (LeporelloError, RuntimeError) as error:  # a report without it is better than none
        return Flow(f"not measured: {error}")
    return Flow(str(found), _meaning(found, model.config.window), _svg(found))


def measured(model: LanguageModel, corpus: Corpus) -> GradientFlow:
    """`gradient_flow` of the cross-entropy of the next token, from the state of a stretch of text on."""
    part = corpus.validation or corpus.train
    size = sum(value.numel() for value in model.net.parameters())
    inputs, targets = _windows(part.tokens, *_affordable(size, len(part.tokens)))
    device = next(model.net.parameters()).device
    inputs, targets = inputs.to(device), targets.to(device)
    forcing = 1.0 if model.scorer().forced else None
    with evaluation_mode(model.net):
        return gradient_flow(model.net, inputs, nn.functional.cross_entropy, targets=targets, forcing=forcing)


def _affordable(parameters: int, tokens: int) -> tuple[int, int]:
    """Steps and rows: every loss goes back through every earlier step, so the work grows with the square of steps."""
    steps = min(STEPS, tokens - 1)
    rows = max(1, min(ROWS, (tokens - 1) // steps, int(WORK / (parameters * steps**2))))
    return max(min(steps, LEAST), min(steps, math.isqrt(int(WORK / (parameters * rows))))), rows


def _windows(tokens: Tensor, steps: int, rows: int) -> tuple[Tensor, Tensor]:
    """Windows at equal distances and the tokens that follow: (steps, rows) each."""
    apart = (len(tokens) - 1 - steps) // max(1, rows - 1) if rows > 1 else 0
    windows = torch.stack(
        [tokens[at : at + steps + 1].long() for at in range(0, rows * apart + 1, apart or 1)][:rows], 1
    )
    return windows[:-1], windows[1:]


def _meaning(found: GradientFlow, window: int) -> str:
    """What it says about the window that was trained on."""
    told = (
        "How much of the gradient of each token's loss reaches the states before it; the rate is fitted over all steps."
    )
    gone = (found.left < GONE).nonzero()
    if not len(gone):
        return f"{told} Over {len(found.left)} steps it never falls below {GONE:.0%}."
    told += f" Less than {GONE:.0%} is left {int(gone[0])} steps back"
    if window >= len(found.left):
        return f"{told}; the window that was trained at once has {window}."
    return f"{told}; the window of {window} steps cuts it off where {float(found.left[window]):.2g} of it is left."


def _svg(found: GradientFlow) -> bytes | None:
    if find_spec("matplotlib") is None:
        return None
    written = io.BytesIO()
    found.plot().savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
