"""The engine `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached.

insides       a program whose insides are kernels
c_emitter     the C of a kernel; its memory in c_memory, expressions in c_expressions, operators in c_operators
build         from C to a library
library       a library as a function over memory
"""
