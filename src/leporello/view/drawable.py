"""`Drawable`: what Loops, strips and splits have in common as pictures; and the pictures themselves.

`diagram` chooses the view of a step; `loop_picture`, `strip_picture` and `animation` draw it folded, in columns and
folding open, each with a description in words. `draw/` does the layout and the file formats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from leporello.draw.animated_svg import animated
from leporello.draw.dot import dot
from leporello.draw.image_files import Png, Svg
from leporello.draw.mermaid import mermaid
from leporello.draw.picture import Picture
from leporello.draw.png import png
from leporello.draw.svg import svg
from leporello.draw.terminal import terminal
from leporello.errors import ArgumentError
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import without_own_gradients
from leporello.view.diagram import Diagram
from leporello.view.function_view import function_diagram
from leporello.view.gradient_arrows import with_gradient
from leporello.view.operator_view import operator_diagram
from leporello.view.strip import Strip, Times, folded, unfolded, with_captions
from leporello.view.textbook_view import textbook_diagram

Detail = Literal["textbook", "operators", "function"]
STAGE_LEGEND = {"stepwise": "step by step", "at once": "all steps at once"}


class Drawable:
    """Something with a `picture(detail, ...)`, as SVG, DOT, Mermaid and, printed, in the terminal."""

    def picture(self, detail: Detail = "textbook", **options: Any) -> Picture:
        raise NotImplementedError

    def svg(self, detail: Detail = "textbook", **options: Any) -> Svg:
        """The drawing as SVG: a string that notebooks show and that `.save(path)` writes to a file.

        detail    "textbook": named values, with the matrices between them; "operators": every operator;
                  "function": the whole step as one f
        options   of a strip: see `picture`
        """
        return svg(self.picture(detail, **options))

    def png(self, detail: Detail = "textbook", *, scale: float = 2, **options: Any) -> Png:
        """The drawing as PNG: bytes that notebooks show and that `.save(path)` writes; needs the package resvg_py.

        scale   pixels for each unit of the SVG
        """
        return Png(png(self.svg(detail, **options), scale))

    def dot(self, detail: Detail = "textbook", **options: Any) -> str:
        """The same graph in Graphviz's language."""
        return dot(self.picture(detail, **options))

    def mermaid(self, detail: Detail = "textbook", **options: Any) -> str:
        """The same graph in Mermaid's language, which GitHub and many wikis draw."""
        return mermaid(self.picture(detail, **options))

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return terminal(self.picture())


def diagram(loop: Loop, detail: str, *, is_unfolded: bool = False, inner: bool | Collection[str] = False) -> Diagram:
    """The diagram of one step in the view that `detail` names.

    is_unfolded   whether it will be drawn unfolded: the function view then writes f between the states
    inner         see `textbook_diagram`
    """
    views = {
        "textbook": lambda loop: textbook_diagram(loop, inner),
        "operators": operator_diagram,
        "function": lambda loop: function_diagram(loop, unfolded=is_unfolded),
    }
    if detail not in views:
        raise ArgumentError(
            "the argument 'detail' names no view.",
            came=repr(detail),
            expected=", ".join(f'"{view}"' for view in views),
        )
    return views[detail](without_own_gradients(loop))


def loop_picture(name: str, view: Diagram, *, stages: bool = False) -> Picture:
    """The circuit, with a black square on every delay.

    stages   whether to tint what must run step by step, with a legend
    """
    picture = folded(view, f"{name}, folded", f"One step of {name} as a loop: {_sentences(view)}")
    return replace(picture, legend=STAGE_LEGEND) if stages else picture


def strip_picture(
    name: str,
    view: Diagram,
    steps: int,
    *,
    times: Times | None = None,
    ends: bool | None = None,
    shown: tuple[int, int] | None = None,
    whole: bool = False,
    shared: bool = False,
    backward: bool = False,
    gradient: Any = None,
    crossing: Sequence[float] | None = None,
    captions: Mapping[str, Sequence[object]] | None = None,
) -> Picture:
    """The strip: a column per step.

    times      "around" writes t-1, t, t+1; "end" calls the last step t; "numbers" counts from 1. By default more than
               three steps are numbered; fewer are "end" where some values exist at the last step only, else "around"
    ends       whether dashed spots hint at what comes before and after; by default unless steps are numbered
    shown      how many first and last steps are drawn; by default (3, 3) of a strip of more than seven, else all
    whole      draw every step, however many
    shared     draw each parameter once, with arrows to every step that reads it, and the sum ΣL of the losses
    backward   add the gradient's arrows
    gradient   a gradient method: add the arrows it follows, and mark those it cuts
    crossing   what the method passes from step to step, where that is known already
    captions   words beside the spots of some values, one for each step: {"x": "machin", "o": "achine"}
    """
    _check_options(times, shown)
    strip = Strip.of(steps, bool(view.last_step_only), times, ends, shown, whole=whole, shared=shared)
    picture = unfolded(view, strip, f"{name}, {_count(steps)}", _strip_description(name, view, steps))
    picture = with_captions(picture, view, strip, captions or {})
    if not backward and gradient is None:
        return picture
    return with_gradient(picture, view, strip, crossing or crossing_of(gradient, steps))


def crossing_of(gradient: Any, steps: int) -> list[float]:
    """For each step the weight of what it passes back to the step before, with a gradient method; 1 without one."""
    if gradient is None:
        return [1.0] * steps
    if not (hasattr(gradient, "crossing") and getattr(gradient, "backwards", True)):
        raise ArgumentError(
            "the argument 'gradient' carries nothing back along the strip.",
            came=repr(gradient),
            expected="a method that runs backwards, such as lp.Full() or lp.Truncated(3)",
        )
    crossing = list(gradient.crossing(steps))
    if getattr(gradient, "weights_stay", True):
        return crossing
    drawn = gradient.weights(steps, 1, torch.device("cpu"), torch.float64)  # random: one draw is shown
    return crossing if drawn is None or drawn.dim() != 2 else [float(weight) for weight in drawn[:, 0]]


def animation(name: str, view: Diagram, steps: int) -> Svg:
    """The loop folding open, values from left to right, gradients from right to left."""
    strip = Strip.of(steps, bool(view.last_step_only))
    closed = folded(view, f"{name}, folding open", _strip_description(name, view, steps))
    open_ = unfolded(view, strip, closed.title, closed.description)
    return animated(closed, with_gradient(open_, view, strip, [1.0] * steps))


def _check_options(times: object, shown: object) -> None:
    if times not in (None, "around", "end", "numbers"):
        raise ArgumentError(
            "the argument 'times' names no way to write them.",
            came=repr(times),
            expected='"around", "end" or "numbers"',
        )
    fits = shown is None or (
        isinstance(shown, tuple) and len(shown) == 2 and all(isinstance(n, int) and n >= 1 for n in shown)
    )
    if not fits:
        raise ArgumentError(
            "the argument 'shown' is no pair of counts.",
            came=repr(shown),
            expected="how many first and last steps to draw, such as (3, 3)",
        )


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _strip_description(name: str, view: Diagram, steps: int) -> str:
    return f"{name} unfolded over {_count(steps)}, time from left to right. In each step: {_sentences(view)}"


def _sentences(view: Diagram) -> str:
    """The edges in words, for readers who cannot see the picture."""
    names = {vertex.key: vertex.name for vertex in view.vertices}
    parts = []
    for edge in view.edges:
        through = f" through {', '.join(map(str, edge.names))}" if edge.names else ""
        when = "earlier" if view.is_reverse(edge) else "later"
        later = {0: "", 1: f", one step {when}"}.get(edge.delay, f", {edge.delay} steps {when}")
        parts.append(f"{names[edge.source]} goes to {names[edge.target]}{through}{later}")
    return ("; ".join(parts) or "no value leads to another") + "."
