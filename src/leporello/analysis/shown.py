"""`Shown`: a result that shows itself: as text when printed, as a picture in a notebook.

Knows figures; knows nothing of what is on them.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 144


class Shown:
    """A result with a `plot`."""

    def plot(self, ax: Any = None) -> Figure:
        raise NotImplementedError(f"{type(self).__name__} needs plot(ax=None) -> Figure")

    def _repr_png_(self) -> bytes | None:
        """The picture, None where matplotlib is missing: a notebook then shows the text."""
        if find_spec("matplotlib") is None:
            return None
        found = io.BytesIO()
        self.plot().savefig(found, format="png", dpi=DOTS_PER_INCH)
        return found.getvalue()
