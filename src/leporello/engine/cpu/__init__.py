"""The engine `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached.

target        what the engine is, as a record
c_emitter     the C of a kernel; its memory in c_memory, expressions in c_expressions, operators in c_operators
build         from C to a library
runner        a built kernel as a function of tensors
native        the C that all kernels share, and the threads
window_products, row_sums
              products and sums over the rows of all steps
"""
