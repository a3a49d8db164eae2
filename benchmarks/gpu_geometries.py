"""Times kernels in all geometries, and with pieces left out: what the model of plans.py is fitted to."""

from __future__ import annotations

import argparse
import re
import statistics
import time
from array import array
from concurrent.futures import ThreadPoolExecutor

import torch

import leporello as lp
from leporello.engine.gpu.cuda_build import processors
from leporello.engine.gpu.cuda_emitter import KernelText
from leporello.engine.gpu.driver import DeviceFunction, compile_text
from leporello.engine.gpu.geometry import ROWS
from leporello.engine.gpu.plans import candidates, clocks, geometries
from leporello.engine.gpu.schedule import schedule_of
from leporello.engine.gpu.target import GPU_FLOATS, is_drawn_in
from leporello.engine.plan import Plan
from leporello.engine.target import Costs, Target
from leporello.loop.tracing.trace import trace
from leporello.rewrite.join_saved import join_saved
from leporello.kernel.expressions import is_pointwise
from leporello.rewrite.pipeline import Context, Pass, Pipeline


def kernels_of(cell, inputs, dtype):
    kernels = []

    class Collect:
        source = None

        def __init__(self, kernel):
            kernels.append(kernel)

    target = Target(
        name="collect",
        build=Collect,
        floats=GPU_FLOATS,
        costs=Costs(drawn_in=is_drawn_in),
        passes=(Pass("pair", "join_saved", "", lambda c, saved: join_saved(saved, is_pointwise)),),
    )
    cell = cell.to(dtype)
    x = torch.zeros(4, inputs, dtype=dtype)
    pipeline = Pipeline(Context())
    pipeline.context = Context(target=target) if hasattr(Context, "target") else pipeline.context
    called = pipeline.call(trace(cell, x, cell.initial_state(4, dtype=dtype)))
    wanted = tuple(port.kind == "invariant" for port in called.inputs)
    Plan(called, wanted, target=target, before=tuple(pipeline.records)).prepare()
    return kernels


def variants(text, names):
    """The text with pieces left out, by name."""
    found = {"all": text}
    found["no mma"] = re.sub(r"(?m)^ *(Multiply<[^>]*>::)?piece\(d\[i\].*$", ";", text)
    found["no wait"] = re.sub(
        r"(V\d+::wait\(m, tile, step\);|poll\(global\(m, m.block.rank.*;|barrier_wait\(bar.*)", ";", text
    ).replace("::send(m, tile, step", "::SKIP(m, tile, step")
    found["no wait"] = re.sub(r"V\d+::SKIP\(m, tile, step[ +1]*\);", ";", found["no wait"])
    found["no loads"] = re.sub(r"m.copy\(b, .*;", ";", text)
    found["no stores"] = re.sub(r"if \(live\) \(\(", "if (live && steps < 0) ((", text)
    return {name: found[name] for name in names}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--cases",
        default="LSTM:16:64,LSTM:16:256,LSTM:16:768,LSTM:64:512,LSTM:128:1024,RNN:16:64,RNN:16:256,GRU:16:1024",
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--keep", type=int, default=14)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    dtype, device = getattr(torch, options.dtype), torch.device("cuda", 0)
    pool = ThreadPoolExecutor(16)
    for case in options.cases.split(","):
        kind, batch, hidden = case.split(":")
        batch, hidden, steps = int(batch), int(hidden), options.steps
        for kernel in kernels_of(getattr(lp, kind)(hidden, hidden), hidden, dtype):
            schedule = schedule_of(kernel)
            chosen = candidates(schedule, batch, processors(0), True)[0].geometry
            costs = {
                g: clocks(schedule, g, batch, processors(0)) for g in geometries(schedule, batch, processors(0), True)
            }
            order = sorted((g for g in costs if costs[g] is not None), key=costs.get)[: options.keep]
            names = ["all", "no mma", "no loads", "no stores"] if options.parts else ["all"]
            if options.parts:
                order = order[:2]

            def build(g):
                try:
                    text = KernelText(schedule, g)
                    texts = variants(
                        text.text("device.cuh", {"EXACT": 0, "ACCURATE": int(dtype == torch.float32)}), names
                    )
                    return text, {name: compile_text(one, "sm_90") for name, one in texts.items()}
                except Exception as error:
                    return None, error

            begin = time.time()
            built = list(pool.map(build, order))
            seconds = time.time() - begin
            tensors = {}
            for place in ("state", "row", "next"):
                tensors[place] = [
                    torch.randn(batch, *b.sizes, device=device).to(b.dtype) for b in kernel.buffers[place]
                ]
            for place in ("read", "write"):
                tensors[place] = [
                    torch.randn(steps, batch, *b.sizes, device=device).to(b.dtype) for b in kernel.buffers[place]
                ]
            tensors["fixed"] = [torch.randn(*b.sizes, device=device).to(b.dtype) for b in kernel.buffers["fixed"]]
            for matrix in kernel.matrices:
                sizes = [0] * sum(axis is not None for axis in matrix.axes)
                for axis, size in zip(matrix.axes, (matrix.heads, matrix.inner, matrix.outer), strict=True):
                    if axis is not None:
                        sizes[axis] = size
                tensors["fixed"][matrix.fixed] = (torch.randn(sizes, device=device) * matrix.inner**-0.5).to(dtype)
            for value in tensors["read"]:
                value.mul_(0.5)
            rows, first_outputs = [], []
            for g, (text, codes) in zip(order, built, strict=True):
                if text is None:
                    rows.append((1e9, g, str(codes)[:100]))
                    continue
                cells = []
                for name, code in codes.items():
                    if options.verify and name == "all":
                        verify(kernel, text, code, tensors, steps, batch, device, first_outputs, g)
                    try:
                        us, function = run(kernel, text, code, tensors, steps, batch, device)
                    except Exception as error:
                        us, function = float("nan"), None
                        print(g, name, str(error)[:200])
                    cells.append((name, us))
                about = f"r{function.registers} l{function.local_bytes}" if function else ""
                rows.append((cells[0][1], g, about + " " + " ".join(f"{n} {u:.2f}" for n, u in cells[1:])))
            direction = "backward" if kernel.reverse else "forward"
            print(f"{case} {direction} (compiled {len(order)} in {seconds:.1f} s)")
            for us, g, about in sorted(rows, key=lambda row: row[0])[: 6 if not options.parts else 4]:
                mark = "<- chosen" if g == chosen else ""
                print(
                    f"   {us:6.2f} us  model {costs[g]:6.0f}  {g.exchange}{g.blocks}x{g.tiles} {about} {mark}",
                    flush=True,
                )
            if not options.parts:
                us = next((u for u, g, _ in rows if g == chosen), float("nan"))
                print(f"   chosen {us:6.2f} {chosen.exchange}{chosen.blocks}x{chosen.tiles}", flush=True)


def verify(kernel, text, code, tensors, steps, batch, device, first, g):
    """Prints where a geometry gives other numbers than the first one, or others the second time."""
    outputs = []
    for _ in range(4):
        for value in (*tensors["next"], *tensors["write"]):
            value.fill_(float("nan"))
        run(kernel, text, code, tensors, steps, batch, device, 1)
        outputs.append([value.clone() for value in (*tensors["next"], *tensors["write"])])
    first = first if first else first.extend(outputs[0]) or first
    off = [
        ((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in zip(outputs[0], first, strict=True)
    ]
    same = all(torch.equal(a, b) for other in outputs[1:] for a, b in zip(other, outputs[0], strict=True))
    if not same or not max(off) < 2e-2:
        print("   WRONG", g, "same bits", same, "off", [f"{one:.0e}" for one in off], flush=True)


def run(kernel, text, code, tensors, steps, batch, device, times=5):
    g = text.geometry
    cluster = g.blocks if g.exchange == "cluster" else 1
    function = DeviceFunction(code, device, g.threads, text.memory.shared_bytes, cluster, g.exchange == "grid")
    groups = -(-batch // (ROWS * g.tiles))
    words = array("Q", [steps, batch, 0, groups])
    for place in ("state", "read", "row", "fixed", "next", "write"):
        words.extend(t.data_ptr() for t in tensors[place])
    for matrix in kernel.matrices:
        value = tensors["fixed"][matrix.fixed]
        words.extend([value.data_ptr(), *(0 if a is None else value.stride(a) for a in matrix.axes)])
    sizes = [steps * groups * g.tiles * size if g.exchange == "grid" else 0 for size in text.memory.slice_bytes]
    workspace = torch.empty(sum(sizes) // 4 + 4, dtype=torch.int32, device=device)
    at = workspace.data_ptr()
    for size in sizes:
        words.append(at)
        at += size
    most = max(1, processors(0) // g.blocks) if g.exchange == "grid" else 1 << 20
    found = []
    for _ in range(times):
        workspace.fill_(-1)
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for first in range(0, groups, most):
            words[2] = first
            function.launch(words, min(most, groups - first) * g.blocks)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / steps)
    return statistics.median(found), function


if __name__ == "__main__":
    main()
