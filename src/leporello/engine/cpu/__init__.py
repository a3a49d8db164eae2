"""The engine `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached.

insides   a program whose insides are kernels
source    the C of a kernel: rows and steps; what they run is in blocks, expressions in body, memory in layout
texts     the C that is not generated
build     from C to a library
library   a library as a function over memory
"""
