"""From an inside of a split Loop to the description of a kernel, an ordered list of blocks, which targets emit.

decompose     composite operators as the few that kernels know; rules in decomposition_rules and scatter_and_sort
separate_batch_axis
              axes that join rows and features are split again
lower         values become memory or expressions, operators become blocks; rules in expressions, views, partial_writes
description   the result
dependencies  what blocks read and write, which loops are fused
"""
