"""`CudaLauncher`: launches kernels of levels on a GPU, and multiplies by cuBLAS."""

from __future__ import annotations

import functools
from array import array
from ctypes import addressof, byref, c_long, c_uint, c_void_p

import torch
from torch import Tensor

from leporello.engine.gpu.driver import checked, cuda_driver, make_current
from leporello.engine.gpu.text.levels_text import LevelKernel, LevelsText

FILLING_THREADS = 128


@functools.cache
def float_sums() -> bool:
    """Whether torch leaves the sums of products of 16-bit numbers in float32 on a GPU; tried once in a process."""
    if not all(hasattr(operator, "dtype_out") for operator in (torch.ops.aten.mm, torch.ops.aten.bmm)):
        return False
    with torch.no_grad():
        ones = torch.ones(2, 16, 16, dtype=torch.bfloat16, device="cuda")
        sums = torch.empty(2, 16, 16, device="cuda")
        try:
            torch.mm(ones[0], ones[1], out_dtype=torch.float32, out=sums[0])
            torch.bmm(ones, ones, out_dtype=torch.float32, out=sums)
        except (TypeError, RuntimeError):  # NotImplementedError is one too
            return False
    return True


class CudaLauncher:
    """The kernels of a text on one device."""

    def __init__(self, text: LevelsText, code: bytes, device: torch.device) -> None:
        self.text, self.device = text, device
        self._functions: dict[str, c_void_p] = {}
        self._run = cuda_driver().cuLaunchKernel
        module = c_void_p()
        with torch.cuda.device(device):
            make_current(device.index)
            checked(cuda_driver().cuModuleLoadData(byref(module), code), "load kernels")
            for name in ("fill", *(kernel.name for kernel in text.launched)):
                function = self._functions[name] = c_void_p()
                checked(cuda_driver().cuModuleGetFunction(byref(function), module, name.encode()), "find a kernel")

    def fill(self, table: Tensor, words: array[int]) -> None:
        """The words are an argument of a kernel: a CUDA graph that it is captured in keeps them."""
        to = c_void_p(table.data_ptr())
        self._launch("fill", 1, FILLING_THREADS, words.buffer_info()[0], addressof(to))

    def launch(self, kernel: LevelKernel, table: Tensor, at: int, batch: int) -> None:
        threads = self.text.row_threads if kernel.rows else self.text.geometry.threads
        address, step, rows = c_void_p(table.data_ptr()), c_long(at), c_long(batch)
        self._launch(kernel.name, kernel.blocks(batch), threads, addressof(address), addressof(step), addressof(rows))

    def _launch(self, name: str, blocks: int, threads: int, *arguments: int) -> None:
        """Launch on torch's current stream; arguments are given by their addresses."""
        stream = c_void_p(torch._C._cuda_getCurrentRawStream(self.device.index))
        grid, block = (c_uint(blocks), c_uint(1), c_uint(1)), (c_uint(threads), c_uint(1), c_uint(1))
        values = (c_void_p * len(arguments))(*arguments)
        with torch.cuda.device(self.device):
            status = self._run(self._functions[name], *grid, *block, c_uint(0), stream, values, None)
        checked(status, "launch a kernel")

    def multiply(self, left: Tensor, right: Tensor, sums: Tensor) -> None:
        product = torch.mm if left.dim() == 2 else torch.bmm
        if sums.dtype == left.dtype:
            product(left, right, out=sums)
        else:
            product(left, right, out_dtype=sums.dtype, out=sums)
