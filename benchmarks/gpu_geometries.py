"""Times persistent kernels of the engine gpu in many geometries, to which `engine/gpu/division/plans.py` fits a model.

python -m benchmarks.gpu_geometries --cases LSTM:16:512,RNN:64:1024 --dtype bfloat16 --keep 12 --verify
"""

from __future__ import annotations

import argparse
import statistics
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

import leporello as lp
from leporello.engine.gpu.cuda_build import processors
from leporello.engine.gpu.division.plans import candidates, clocks
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.driver import DeviceFunction, compile_text
from leporello.engine.gpu.target import GPU_TARGET
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.plan import Plan
from leporello.kernel.description import Kernel
from leporello.loop.tracing.trace import trace
from leporello.rewrite.pipeline import Context, Pipeline

DEVICE = torch.device("cuda", 0)


def kernels_of(cell: lp.Cell, inputs: int, dtype: torch.dtype) -> list[Kernel]:
    """The kernels of the forward and of the backward sweep."""
    kernels: list[Kernel] = []

    class Collected:
        source = None

        def __init__(self, kernel: Kernel) -> None:
            kernels.append(kernel)

    target = replace(GPU_TARGET, name="collected", devices=None, build=Collected)
    pipeline = Pipeline(Context())
    x = torch.zeros(4, inputs, dtype=dtype)
    called = pipeline.call(trace(cell.to(dtype), x, cell.initial_state(4, dtype=dtype)))
    wanted = tuple(port.kind == "invariant" for port in called.inputs)
    Plan(called, wanted, target=target, before=tuple(pipeline.records)).prepare()
    return kernels


class Case:
    """A kernel with random tensors for it."""

    def __init__(self, kernel: Kernel, batch: int, steps: int) -> None:
        self.kernel, self.batch, self.steps = kernel, batch, steps
        sizes = {"state": (batch,), "row": (batch,), "next": (batch,), "fixed": ()}
        sizes |= {"read": (steps, batch), "write": (steps, batch)}
        self.tensors = {
            place: [torch.randn(*front, *b.sizes, device=DEVICE).to(b.dtype) * 0.5 for b in kernel.buffers[place]]
            for place, front in sizes.items()
        }
        for matrix in kernel.matrices:  # in memory as the kernel is passed it
            axes = dict(zip(matrix.axes, (matrix.heads, matrix.inner, matrix.outer), strict=True))
            shape = [axes[axis] for axis in sorted(axis for axis in axes if axis is not None)]
            value = torch.randn(shape, device=DEVICE) * matrix.inner**-0.5
            self.tensors["fixed"][matrix.fixed] = value.to(kernel.buffers["fixed"][matrix.fixed].dtype)

    @property
    def results(self) -> list[torch.Tensor]:
        return [*self.tensors["next"], *self.tensors["write"]]

    def run(self, text: KernelText, function: DeviceFunction, times: int = 5) -> float:
        """The median microseconds of a step."""
        geometry = text.geometry
        groups = geometry.groups(self.batch)
        words = array("Q", [self.steps, self.batch, 0, groups])
        for place in ("state", "read", "row", "fixed", "next", "write"):
            words.extend(value.data_ptr() for value in self.tensors[place])
        for matrix in self.kernel.matrices:
            value = self.tensors["fixed"][matrix.fixed]
            words.extend([value.data_ptr(), *(0 if a is None else value.stride(a) for a in matrix.axes)])
        most = max(1, processors(0) // geometry.blocks) if geometry.exchange == "grid" else groups
        sizes = text.memory.exchange_bytes(self.steps, groups, most)
        workspace = torch.empty(sum(sizes) // 4 + 1, dtype=torch.int32, device=DEVICE)
        at = workspace.data_ptr()
        for size in sizes:
            words.append(at)
            at += size
        words.append(0)
        found = []
        for _ in range(times):
            workspace.fill_(-1)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for first in range(0, groups, most):
                words[2] = first
                words[text.memory.words["sums before", 0]] = first // most * self.steps
                function.launch(words, min(most, groups - first) * geometry.blocks)
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1e3 / self.steps)
        return statistics.median(found)

    def differences(self, text: KernelText, function: DeviceFunction, expected: list[torch.Tensor]) -> str:
        """How the results differ from those of another geometry, and from run to run; "" where they do not."""
        runs = []
        for _ in range(3):
            for value in self.results:
                value.fill_(float("nan"))
            self.run(text, function, times=1)
            runs.append([value.clone() for value in self.results])
        expected = expected or runs[0]
        off = [
            ((a.double() - b.double()).norm() / b.double().norm()).item()
            for a, b in zip(runs[0], expected, strict=True)
        ]
        same = all(torch.equal(a, b) for other in runs[1:] for a, b in zip(other, runs[0], strict=True))
        return "" if same and max(off) < 2e-2 else f"WRONG: same bits {same}, off {[f'{one:.0e}' for one in off]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="LSTM:16:64,LSTM:16:512,RNN:64:512", help="cell:batch:hidden, with commas")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--keep", type=int, default=12, help="geometries: the best ones of the model")
    parser.add_argument("--verify", action="store_true", help="compare the results of the geometries")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    for case in options.cases.split(","):
        kind, batch, hidden = case.split(":")
        for kernel in kernels_of(getattr(lp, kind)(int(hidden), int(hidden)), int(hidden), dtype):
            print(case, "backward" if kernel.reverse else "forward", flush=True)
            _measure(Case(kernel, int(batch), options.steps), options.keep, options.verify)


def _measure(case: Case, keep: int, verify: bool) -> None:
    """Print the geometries of a case, the fastest first."""
    schedule = schedule_of(case.kernel)
    found = candidates(schedule, case.batch, processors(0), True, keep)
    texts = [text for text in found if isinstance(text, KernelText)]  # of levels there is nothing to fit
    defined = {"EXACT": 0, "ACCURATE": int(case.kernel.dtype == torch.float32)}
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda text: compile_text(text.text("device.cuh", defined), "sm_90"), texts))
    rows, expected = [], []
    for index, (text, code) in enumerate(zip(texts, codes, strict=True)):
        g, shared = text.geometry, text.memory.shared_bytes
        cluster = g.blocks if g.exchange == "cluster" else 1
        function = DeviceFunction(code, DEVICE, g.threads, shared, cluster, g.exchange == "grid")
        wrong = case.differences(text, function, expected) if verify else ""
        expected = expected or [value.clone() for value in case.results]
        about = f"model {index + 1:2d}. {clocks(schedule, g, case.batch, processors(0)):6.0f}"
        about += f"  registers {function.registers} local {function.local_bytes} shared {shared}"
        rows.append((case.run(text, function), f"{g.exchange}{g.blocks}x{g.tiles} {about} {wrong}"))
    for microseconds, about in sorted(rows):
        print(f"   {microseconds:6.2f} us  {about}", flush=True)


if __name__ == "__main__":
    main()
