"""The style sheet of a picture as SVG: ink and paper follow the reader's light or dark mode."""

from __future__ import annotations

FONT = "'Palatino Linotype', Palatino, 'Book Antiqua', Georgia, 'Times New Roman', 'DejaVu Serif', serif"

# Light first; where the reader prefers dark, ink and paper change together, since the page around may stay light.
# `&` stands for the picture's id, so that the rules of several pictures on one page stay apart.
STYLE = """
  #& text { font-family: @FONT@; fill: #1a1a1a; text-anchor: middle; }
  #& .name { font-size: 16px; font-style: italic; }
  #& .small { font-size: 11px; font-style: normal; }
  #& .note { font-size: 12px; }
  #& .paper { fill: #ffffff; }
  #& .spot { fill: #ffffff; stroke: #1a1a1a; stroke-width: 1.3; }
  #& .dashed { stroke-dasharray: 4 3; }
  #& .parameter { fill: #cfd8e3; }
  #& .stepwise { fill: #ffe2b8; stroke-width: 2.4; }
  #& .line { fill: none; stroke: #1a1a1a; stroke-width: 1.3; }
  #& .line.inside { stroke-width: 2.4; }
  #& .head, #& .square, #& .point { fill: #1a1a1a; stroke: none; }
  #& .line.gradient { stroke: #b3202a; stroke-dasharray: 5 3; }
  #& .head.gradient { fill: #b3202a; }
  #& .line.cut { stroke: #8a8a8a; stroke-dasharray: 1.5 3; }
  #& .head.cut { fill: #8a8a8a; }
  #& .bars { fill: none; stroke: #b3202a; stroke-width: 2; }
  #& .line.border { stroke: #8a8a8a; stroke-dasharray: 2 4; }
  @media (prefers-color-scheme: dark) {
    #& text { fill: #e8e8e8; }
    #& .paper { fill: #22272e; }
    #& .spot { fill: #22272e; stroke: #e8e8e8; }
    #& .parameter { fill: #44505e; }
    #& .stepwise { fill: #5c4516; }
    #& .line { stroke: #e8e8e8; }
    #& .head, #& .square, #& .point { fill: #e8e8e8; }
    #& .line.gradient, #& .bars { stroke: #ff8a80; }
    #& .head.gradient { fill: #ff8a80; }
  }
""".replace("@FONT@", FONT)


# Colours of numbers by size: p above zero, n below; the strongest is the largest.
NUMBER_STYLE = """
  #& .number { font-size: 11px; text-anchor: end; }
  #& .cell { fill: none; }
  #& .p1 { fill: #e3eef9; } #& .p2 { fill: #bcd8f3; } #& .p3 { fill: #8fbfee; }
  #& .n1 { fill: #fdebd8; } #& .n2 { fill: #fbd2a8; } #& .n3 { fill: #f5b272; }
  @media (prefers-color-scheme: dark) {
    #& .p1 { fill: #26384a; } #& .p2 { fill: #2b4a69; } #& .p3 { fill: #315f8d; }
    #& .n1 { fill: #433627; } #& .n2 { fill: #624624; } #& .n3 { fill: #805520; }
  }
"""
