"""Engines: what runs a Loop over a sequence.

target            `Target`, all that an engine is; `Runner`, what it builds for an inside
targets           the list of them; choice: which one runs a Loop, and why
plan              a Loop made ready for a target, forward and backward; wiring: where each sweep finds its inputs
sweep/            a sweep as generated Python
autograd          a plan as one differentiable function of torch; checkpoint: the same with few states kept
row_sums          sums over rows in a stage's graph; row_elements: where they read their elements
state_gradient    what of the state's gradient passes from step to step
reference         the whole graph step by step: what every engine is compared with
exact             the same on rational numbers, without rounding; rational: its tensors and operators
compiled_sweeps   sweeps as operators of torch, for torch.compile; registered_plans: the plans they find by name
buffer_pool, cache_folder, fresh_thread   memory that is reused; generated files; a thread without torch's modes
cpu/              the target `cpu`
gpu/              the target `gpu`, and steps in CUDA graphs
"""
