"""From an inside of a split Loop to the description of a kernel, which targets emit and the interpreter runs.

description   what a kernel is: buffers, blocks, expressions, dependencies; begin here. Positions in memory are in index
operators     the table of operators that a kernel can hold
decompose     a stage's graph with composite operators as those that kernels cover; its rules are in decomposition_rules
              and scatter_and_sort, and separate_batch_axis splits axes that merge rows and features
lower         the graph as a kernel: values become buffers or expressions, operators become blocks; its rules, which
              take a LoweringContext, are in expressions, views and partial_writes
dependencies  what blocks read and write, which depend on each other or on the state, which loops are fused
interpreter   runs a kernel with torch; the slow twin of every target
"""
