"""Checks and times the engine gpu beside cuDNN: python -m benchmarks.gpu_check (a machine with a GPU)."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback

import torch
from torch import nn

import leporello as lp

SIZES = [(1024, 16, 64), (1024, 16, 256), (1024, 16, 768), (1024, 16, 1024), (512, 64, 512), (256, 128, 1024)]


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def net_and_torch(kind, hidden, dtype, engine="gpu"):
    torch.manual_seed(0)
    peer = getattr(nn, kind)(hidden, hidden).cuda().to(dtype)
    peer.flatten_parameters()
    net = lp.from_torch(peer)
    net = net.cuda().to(dtype)
    set_engine(net, engine)
    return net, peer


def set_engine(net, engine):
    for module in net.modules():
        if isinstance(module, lp.Recurrent):
            module.engine = engine


def train(net, x, g):
    net.zero_grad(set_to_none=True)
    out = net(x)[0]
    out.backward(g)
    return out


def timed(functions, rounds=9):
    """Median milliseconds of each function, in turns."""
    found = [[] for _ in functions]
    for f in functions:
        for _ in range(2):
            f()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for index, f in enumerate(functions):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            f()
            end.record()
            torch.cuda.synchronize()
            found[index].append(start.elapsed_time(end))
    return [statistics.median(one) for one in found]


def check(kind, steps, batch, hidden, dtype):
    net, peer = net_and_torch(kind, hidden, dtype)
    x = torch.randn(min(steps, 64), batch, hidden, device="cuda", dtype=dtype)
    g = torch.randn_like(x)
    out = train(net, x, g)
    grads = [p.grad.clone() for p in net.parameters()]
    exact, _ = net_and_torch(kind, hidden, torch.float64, "reference")
    with torch.no_grad():
        for p, q in zip(exact.parameters(), net.parameters(), strict=True):
            p.copy_(q)
    ref = train(exact, x.double(), g.double())
    errors = [difference(out, ref)] + [difference(a, p.grad) for a, p in zip(grads, exact.parameters(), strict=True)]
    again = train(net, x, g)
    same = torch.equal(out, again) and all(torch.equal(a, p.grad) for a, p in zip(grads, net.parameters(), strict=True))
    return errors, same


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="RNN,GRU,LSTM")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--no-times", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    sizes = [tuple(map(int, s.split("x"))) for s in options.sizes.split(",") if s] or SIZES
    for name in options.dtypes.split(","):
        dtype = getattr(torch, name)
        for kind in options.kinds.split(","):
            for steps, batch, hidden in sizes:
                try:
                    begin = time.time()
                    errors, same = check(kind, steps, batch, hidden, dtype)
                    seconds = time.time() - begin
                    line = f"{kind:4s} {steps:4d} {batch:3d} {hidden:4d} {name:8s} errors {max(errors):.0e} same {same} first {seconds:.1f} s"
                    if not options.no_times:
                        net, peer = net_and_torch(kind, hidden, dtype)
                        x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype)
                        g = torch.randn_like(x)

                        def forward(m):
                            with torch.no_grad():
                                m(x)

                        t = timed(
                            [
                                lambda: forward(net),
                                lambda: train(net, x, g),
                                lambda: forward(peer),
                                lambda: train(peer, x, g),
                            ]
                        )
                        t = [value * 1e3 / steps for value in t]
                        line += f" | {t[0]:5.2f} {t[1]:5.2f} | cuDNN {t[2]:5.2f} {t[3]:5.2f} | {t[2] / t[0]:4.1f}x {t[3] / t[1]:4.1f}x"
                    print(line, geometry(net) if not options.no_times else "", flush=True)
                except Exception:
                    print(kind, steps, batch, hidden, name, "FAILED", flush=True)
                    traceback.print_exc(limit=-4)
                    if "CUDA error" in traceback.format_exc():
                        sys.exit(1)


def geometry(net):
    import gc

    from leporello.engine.gpu.runner import GpuRunner

    found = {}
    for one in gc.get_objects():
        if isinstance(one, GpuRunner) and one.built:
            found[one.kernel.reverse] = one
    texts = []
    for reverse, runner in sorted(found.items()):
        built = next(reversed(runner.built.values()))
        g, f = built.text.geometry, getattr(built, "function", None)
        texts.append(f"{g.exchange}{g.blocks}x{g.tiles} r{f.registers if f else 0} l{f.local_bytes if f else 0}")
    return "; ".join(texts)


if __name__ == "__main__":
    main()
