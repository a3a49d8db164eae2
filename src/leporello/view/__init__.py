"""A Loop as a Picture.

folded_loop      `FoldedLoop`, the Loop that users hold (`lp.Loop`); strip: its unfolding
drawable         what can be drawn, in which detail; diagram: boxes and lines by name
textbook_view    variables of the equations; operator_view: every operator; function_view: one box; bidirectional_view
"""
