"""How an SVG looks: ink and paper, thick and thin, in light and in dark. Nothing is told by colour alone."""

from __future__ import annotations

FONT = "'Palatino Linotype', Palatino, 'Book Antiqua', Georgia, 'Times New Roman', 'DejaVu Serif', serif"

# Light first; where dark is preferred ink and paper turn round, together: a page may think otherwise than its reader.
# `&` stands for the picture's own name, so that pictures on one page keep their rules to themselves.
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
