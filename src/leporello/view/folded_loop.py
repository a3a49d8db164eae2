"""`FoldedLoop`, `UnfoldedLoop`, `SplitLoop`: the records of `loop/` as users get them, with their pictures as methods.

Inside the library everything works on the plain records. `FoldedLoop.of` makes what a user gets; rewrites keep
that class, because they copy the record with `replace`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import fx

from leporello.draw.image_files import Svg
from leporello.draw.picture import Picture
from leporello.draw.terminal import terminal
from leporello.loop.loop import Loop
from leporello.loop.split import split
from leporello.loop.stages import Split
from leporello.loop.text import loop_of_text, text_of
from leporello.loop.unfold import Unfolding, unfold
from leporello.view.drawable import (
    Detail,
    Drawable,
    animation,
    crossing_of,
    diagram,
    loop_picture,
    strip_picture,
)
from leporello.view.numbers import values_of_run, with_numbers
from leporello.view.strip import Strip, Times


@dataclass(frozen=True, eq=False, repr=False)
class FoldedLoop(Loop, Drawable):
    """The graph of one step with its delays, as `lp.fold` returns it: it draws, prints, splits and unfolds itself.

    Its fields are those of `leporello.loop.loop.Loop`.
    """

    @classmethod
    def of(cls, loop: Loop) -> Self:
        """The same loop for a user."""
        return cls(**_fields(loop))

    def split(self, drawn_in: Callable[[fx.Node], bool] | None = None) -> SplitLoop:
        """Part it into stages: what must run step by step, and what can run on all steps at once.

        drawn_in   says of an operator whether it may run step by step though it need not, where nothing else reads it
        """
        return SplitLoop(**_fields(split(self, drawn_in)))

    def unfold(self, steps: int) -> UnfoldedLoop:
        """The acyclic graph of a number of steps: a copy of each operator per step, every parameter once."""
        return UnfoldedLoop(**_fields(unfold(self, steps)))

    def text(self) -> str:
        """The loop as text, one line a value; `leporello.view.folded_loop.loop_from` reads it back."""
        return text_of(self)

    def picture(self, detail: Detail = "textbook") -> Picture:  # type: ignore[override]
        """The circuit, with a black square on every delay: spots and lines, before they are laid out."""
        return loop_picture(self.name, diagram(self, detail))


@dataclass(frozen=True, eq=False, repr=False)
class SplitLoop(Split, Drawable):
    """A Split that draws itself; printed, it lists its stages."""

    def __str__(self) -> str:
        return repr(self)

    def picture(self, detail: Detail = "textbook") -> Picture:  # type: ignore[override]
        """The loop's own picture, tinted by what runs step by step and what runs on all steps at once."""
        return loop_picture(self.loop.name, diagram(self.loop, detail), stages=True)


@dataclass(frozen=True, eq=False, repr=False)
class UnfoldedLoop(Unfolding, Drawable):
    """An Unfolding that draws itself, a column per step."""

    def picture(
        self,
        detail: Detail = "textbook",
        *,
        values: bool | Collection[str] = False,
        gradients: bool | Collection[str] = False,
        digits: int = 3,
        **options: Any,
    ) -> Picture:
        """The strip as spots and lines, before they are laid out.

        times      "around" writes t-1, t, t+1; "end" calls the last step t; "numbers" counts from 1
        ends       whether dashed spots hint at what comes before and after
        shown      how many first and last steps are drawn, by default (3, 3) of more than seven; whole=True draws all
        shared     draw each parameter once, with arrows to every step that reads it, and the sum ΣL of the losses
        backward   add the gradient's arrows, from right to left
        gradient   a gradient method: mark the arrows that it cuts
        captions   words beside the spots of some values, one for each step, below inputs and above the rest:
                   {"x": "machin", "o": "achine"}
        values     write the values of the last `strip.run(...)` on the spots, of named values inside the step too; or
                   the names of those to write. One row of a batch is a column, several are rows of a matrix; of what
                   is too large the shape is written
        gradients  the same of ∂L/∂h and the like, L being the sum of all steps' losses and rows; with `gradient` that
                   method's
        digits     significant digits of the largest number of a spot
        """
        if values is False and gradients is False:
            return strip_picture(self.loop.name, diagram(self.loop, detail, is_unfolded=True), self.steps, **options)
        return self._with_numbers(detail, values, gradients, digits, **options)

    def _with_numbers(
        self,
        detail: Detail,
        values: bool | Collection[str],
        gradients: bool | Collection[str],
        digits: int,
        *,
        times: Times | None = "numbers",
        **options: Any,
    ) -> Picture:
        """The picture with the numbers of the last run; its steps are numbered by default."""
        crossing = crossing_of(options.get("gradient"), self.steps)
        run = values_of_run(self, gradients=gradients is not False, crossing=crossing)
        names = [values, gradients]
        inner = True in names or [name for chosen in names if not isinstance(chosen, bool) for name in chosen]
        view = diagram(self.loop, detail, is_unfolded=True, inner=inner)
        picture = strip_picture(self.loop.name, view, self.steps, times=times, crossing=crossing, **options)
        layout = ("ends", "shown", "whole", "shared")
        chosen = {name: option for name, option in options.items() if name in layout}
        strip = Strip.of(self.steps, bool(view.last_step_only), times, **chosen)
        return with_numbers(picture, view, strip, run, values=values, gradients=gradients, digits=digits)

    def text(self, detail: Detail = "textbook", **options: Any) -> str:
        """The drawing in box characters, as `print(strip)` shows it, with the options of `picture`."""
        return terminal(self.picture(detail, **options))

    def animate(self) -> Svg:
        """One animated SVG: the loop folds open, values run from left to right, gradients from right to left."""
        return animation(self.loop.name, diagram(self.loop, "textbook"), self.steps)


def _fields(record: Loop | Split | Unfolding) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def loop_from(text: str) -> FoldedLoop:
    """The Loop that `loop.text()` wrote. It has no module: pass the values of its invariants when it runs."""
    return FoldedLoop.of(loop_of_text(text))
