"""How plots look and how they become files: one kit for `analysis` and `language`.

Ink on paper, one colour for what matters, everything legible in grey. matplotlib is an optional package: it is imported
inside functions, only when something is drawn, and pyplot never is.
"""

from leporello.plotting.charts import (
    bar_chart,
    bar_chart_height,
    heatmap,
    log_axis_plain_numbers,
    log_axis_powers_of_ten,
    positive_or_nan,
)
from leporello.plotting.figures import (
    INSTALL_HINT,
    Plottable,
    axes_side_by_side,
    axes_stacked,
    figure_bytes,
    matplotlib_missing,
    missing_matplotlib_error,
)
from leporello.plotting.theme import (
    GREY,
    INK,
    LINE_STYLES,
    PALE,
    RED,
    SERIES_COLOURS,
    SHADES,
    TEXT,
    figure_title,
    label_axes,
    legend,
    level_line,
    named_level,
    verdict_title,
    with_font_glyphs,
)

__all__ = [
    "GREY",
    "INK",
    "INSTALL_HINT",
    "LINE_STYLES",
    "PALE",
    "Plottable",
    "RED",
    "SERIES_COLOURS",
    "SHADES",
    "TEXT",
    "axes_side_by_side",
    "axes_stacked",
    "bar_chart",
    "bar_chart_height",
    "figure_bytes",
    "figure_title",
    "heatmap",
    "label_axes",
    "legend",
    "level_line",
    "log_axis_plain_numbers",
    "log_axis_powers_of_ten",
    "matplotlib_missing",
    "missing_matplotlib_error",
    "named_level",
    "positive_or_nan",
    "verdict_title",
    "with_font_glyphs",
]
