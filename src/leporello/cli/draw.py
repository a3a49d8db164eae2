"""`leporello draw`: a cell as a circuit with black squares, or unfolded over time; in the terminal or in a file."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from leporello.atomic_write import write_atomically
from leporello.cli.console import say, show
from leporello.cli.network_spec import BuiltNetwork, CellArgument, InputOption, build_network
from leporello.cli.output_files import writable
from leporello.draw.dot import dot
from leporello.draw.mermaid import mermaid
from leporello.draw.picture import Picture
from leporello.draw.png import png
from leporello.draw.svg import svg
from leporello.draw.terminal import terminal
from leporello.errors import ArgumentError
from leporello.nets.fold import fold
from leporello.specs.user_code import reporting_user_errors
from leporello.view.drawable import animation, diagram, strip_picture
from leporello.view.folded_loop import FoldedLoop

# Functions from a picture to the contents of a file, by the file's suffix.
FILE_WRITERS: dict[str, Callable[[Picture], bytes]] = {
    ".svg": lambda picture: svg(picture).encode(),
    ".png": lambda picture: png(svg(picture)),
    ".dot": lambda picture: dot(picture).encode(),
    ".mmd": lambda picture: mermaid(picture).encode(),
}
ANIMATED_STEPS = 3


class Detail(StrEnum):
    """How much of a step is drawn."""

    textbook = "textbook"
    operators = "operators"
    function = "function"


def draw(
    cell: CellArgument,
    unfold: Annotated[int | None, typer.Option(metavar="N", help="Unfold it over N steps.")] = None,
    detail: Annotated[
        Detail,
        typer.Option(
            metavar="VIEW",
            help="What to show. textbook: named values; operators: every one; function: the whole step as one f.",
        ),
    ] = Detail.textbook,
    loss: Annotated[bool, typer.Option("--loss", help="Add the loss L and the target y: mean squared error.")] = False,
    forced: Annotated[bool, typer.Option("--forced", help="Feed the true values back: teacher forcing.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Add the gradient's arrows; with --unfold.")] = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="Mark what runs step by step and what runs on all steps at once.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Draw every step of a long strip; with --unfold.")] = False,
    animate: Annotated[
        bool, typer.Option("--animate", help="Let the net fold open in an animated SVG file, over 3 steps or N.")
    ] = False,
    input: InputOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Write FILE.svg, .png, .dot or .mmd; else to the terminal."),
    ] = None,
) -> None:
    """Draw a cell: folded, or unfolded over N steps."""
    _check_options(unfold, detail, backward=backward, stages=stages, whole=whole, animate=animate, out=out)
    path = None if out is None else writable(out, FILE_WRITERS)
    loop = _fold_network(build_network(cell, input), loss=loss, forced=forced)
    if out is None or path is None:
        _print_picture(_make_picture(loop, unfold, detail, backward, stages, whole))
        return
    if animate:
        contents = animation(loop.name, diagram(loop, "textbook"), unfold or ANIMATED_STEPS).encode()
    else:
        contents = FILE_WRITERS[out.suffix.lower()](_make_picture(loop, unfold, detail, backward, stages, whole))
    write_atomically(path, contents)
    say(f"wrote {out}")


def _check_options(
    unfold: int | None, detail: Detail, *, backward: bool, stages: bool, whole: bool, animate: bool, out: Path | None
) -> None:
    """Raise for options that need another one, or exclude each other."""
    if unfold is not None and unfold < 1:
        raise ArgumentError("--unfold is no number of steps.", came=unfold, expected="1 or more", tries="--unfold 3")
    for option, is_set in (("--backward", backward), ("--whole", whole)):
        if is_set and unfold is None and not animate:
            raise ArgumentError(f"{option} belongs to an unfolded net.", tries=f"--unfold 3 {option}")
    if stages and unfold is not None:
        raise ArgumentError("--stages belongs to the folded net.", tries="--stages without --unfold")
    if not animate:
        return
    if out is None or out.suffix.lower() != ".svg":
        raise ArgumentError(
            "--animate writes an SVG file: nothing else moves.", came=out, tries="--animate --out picture.svg"
        )
    excluded = {"--stages": stages, "--whole": whole, f"--detail {detail.value}": detail != "textbook"}
    for option, is_set in excluded.items():
        if is_set:
            raise ArgumentError(
                f"{option} and --animate do not go together.", expected="the textbook's view of a few steps"
            )


def _fold_network(network: BuiltNetwork, *, loss: bool, forced: bool) -> FoldedLoop:
    """The loop of one step on zeros, with a mean squared error if `loss`, with teacher forcing if `forced`."""
    arguments: dict[str, Any] = {"targets": network.zero_targets(1, 1)} if forced else {}
    if network.shape is None and not forced:
        arguments["steps"] = 1
    with reporting_user_errors(network.name):
        loop = fold(network.net, network.zero_inputs(1, 1), **arguments)
        if not loss:
            return loop
        _check_loss(loop, network.name)
        return fold(network.net, network.zero_inputs(1, 1), loss=nn.functional.mse_loss, **arguments)


def _check_loss(loop: FoldedLoop, name: str) -> None:
    """Raise unless the loop has exactly one output, of floating-point numbers."""
    outputs = [port for port in loop.outputs if port.kind == "sequence"]
    if len(outputs) != 1 or not outputs[0].dtype.is_floating_point:
        raise ArgumentError(
            f"--loss compares one output of numbers, and {name} has others.",
            came=", ".join(map(str, outputs)) or "no output",
            tries="in Python: lp.fold(cell, x, loss=..., target=...)",
        )


def _make_picture(
    loop: FoldedLoop, unfold: int | None, detail: Detail, backward: bool, stages: bool, whole: bool
) -> Picture:
    if unfold is not None:
        view = diagram(loop, detail.value, is_unfolded=True)
        # The same picture as loop.unfold(n).picture(), without unfolding the loop.
        return strip_picture(loop.name, view, unfold, backward=backward, whole=whole)
    return loop.split().picture(detail.value) if stages else loop.picture(detail.value)


def _print_picture(picture: Picture) -> None:
    """Print a picture, and for each tint of its legend the values that have it: the terminal shows no tints."""
    show(terminal(picture))
    names = {tint: [str(spot.name) for spot in picture.spots if spot.tint == tint] for tint in picture.legend}
    width = max(map(len, picture.legend.values()), default=0)
    lines = [f"{words:<{width}}  {', '.join(names[tint])}" for tint, words in picture.legend.items() if names[tint]]
    if lines:
        say("\n".join(["", *lines]))
