"""What commands that measure have in common: a net on random inputs, a loss, plots in files, numbers as JSON.

Knows subjects, files and JSON; knows nothing of what is measured.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.cli.saying import say, warn
from leporello.cli.subject import Subject, subject_of
from leporello.cli.writing import writable, write
from leporello.errors import ArgumentError, LeporelloError
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.nets.recurrent import Recurrent

PLOTS = (".png", ".svg")
DOTS_PER_INCH = 144


def random_subject(
    cell: str, input: str | None, engine: str | None, *, length: int, batch: int, seed: int
) -> tuple[Subject, dict[str, Any]]:
    """A net with random parameters, and the arguments of a call: the same for the same seed.

    Inputs are random; where there are none, the state before the first step is.
    """
    for option, count in (("--length", length), ("--batch", batch)):
        if count < 1:
            raise ArgumentError(f"{option} is no count.", came=count, expected="1 or more")
    if not 0 <= seed < 2**63:
        raise ArgumentError("--seed is no seed.", came=seed, expected="0 or more")
    torch.manual_seed(seed)
    subject = subject_of(cell, input, engine)
    if not isinstance(subject.net, Recurrent):
        raise ArgumentError(
            f"{subject.name} is not one net that goes over a sequence once.",
            came=f"lp.{type(subject.net).__name__}",
            expected="a cell, or an lp.Recurrent",
            tries="its parts, one by one",
        )
    inputs = subject.random_inputs(length, batch)
    if inputs is not None:
        return subject, {"inputs": inputs}
    state = map_leaves(lambda leaf: leaf if _counts(leaf) else torch.randn_like(leaf), subject.net.initial_state(batch))
    return subject, {"inputs": None, "state": state, "steps": length}


def mean_square(output: Tree) -> Tensor:
    """Of all numbers of each row."""
    numbers = [leaf for leaf in leaves_of(output) if leaf is not None and not _counts(leaf)]
    return torch.cat([leaf.abs().square().flatten(1) for leaf in numbers], 1).mean(1)


def _counts(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() and not leaf.is_complex()


def plot_files(files: Sequence[Path] | None) -> dict[Path, Path]:
    """The files to plot into and where they lie: asked before the work is done."""
    if files and find_spec("matplotlib") is None:
        raise LeporelloError("a plot needs the package matplotlib.", tries="pip install 'leporello[plots]'")
    return {file: writable(file, PLOTS, "--plot picture.png") for file in files or ()}


def tell(text: Callable[[], str], result: Any, files: dict[Path, Path], numbers: dict[str, Any] | None) -> None:
    """Print the text, or the numbers alone as one JSON object, and write the plots of the result.

    numbers   None where the text is wanted
    """
    for file, path in files.items():
        found = io.BytesIO()
        form = file.suffix.lower()[1:]
        result.plot().savefig(found, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
        write(path, found.getvalue())
    if numbers is not None:
        print(json.dumps(_plain(numbers), allow_nan=False))
    else:
        say(text())
    for file in files:
        (say if numbers is None else warn)(f"wrote {file}")


def _plain(value: Any) -> Any:
    """What JSON has; null for what is no finite number."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
