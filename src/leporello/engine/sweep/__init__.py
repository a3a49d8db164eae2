"""A sweep as generated Python: one pass over time, all stages of a split Loop, window by window.

program       a split made ready for a target: a function or a built kernel per stage, and who reads what
placement     which values are written straight into whole sequences, and which live in one window
source        Python text while it is written; names and memory of values
stage_writer  the text of one stage in one window
function      the text of the whole sweep, compiled
inside_loop   an inside run step by step by torch's operators
"""
