"""From an inside of a split Loop to the description of a kernel, an ordered list of blocks, which targets spell.

decompose     composite operators as the few that kernels know; its rules are in composites, scattering, convolutions
apart         rows and features that were joined into one axis are parted again
lower         values become memory or expressions, operators become blocks; its rules are in operators, views, pieces
description   what comes out
"""
