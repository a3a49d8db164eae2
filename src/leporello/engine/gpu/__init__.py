"""The engine gpu, in the order in which a kernel goes through it.

target     what the engine is; `build` makes a runner of a kernel's description
division   a step's work divided into levels, units and vectors; the geometries, and a model of what they cost
text       the CUDA of a division in a geometry, and the library it is written for: device.cuh, or host.h without a GPU
driver     NVRTC and the driver's interface; `cuda_build` compiles, measures and keeps the fastest
runner     takes tensors and launches one kernel for all steps
sums       sums over the rows of all steps: found in a stage, divided among blocks, launched
levels     for matrices too large for the chip: a launch for each level, and torch's products
graphs     steps captured in CUDA graphs, also those that torch's operators run (`stepwise`)
"""
