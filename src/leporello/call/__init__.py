"""From the arguments of a call to the plan that runs it.

arguments        `checked_call`: arguments checked and in one form, a `Call`; its parts in inputs, initial_state, checks
signature        cache keys of a call; cell_key: what a cell is compared by
plan_cache       trace, rewrites and plan of a call, made once
values           values of the Loop's inputs, and outputs in the user's trees
cached_call      a call that is ready to run
compiled         calls in graphs of torch.compile; graph_arguments: what such a graph can hold
explain          the text of `net.explain`
"""
