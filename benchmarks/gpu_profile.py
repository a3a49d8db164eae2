import cProfile
import pstats
import sys
import time

import torch

from benchmarks.gpu_check import net_and_torch, train

for kind, T, B, H in (("LSTM", 4, 16, 64),):
    net, peer = net_and_torch(kind, H, torch.bfloat16)
    x = torch.randn(T, B, H, device="cuda", dtype=torch.bfloat16)
    g = torch.randn_like(x)
    for _ in range(5):
        train(net, x, g)
    torch.cuda.synchronize()
    for m in (net, peer):
        times = []
        for _ in range(200):
            torch.cuda.synchronize()
            m.zero_grad(set_to_none=True)
            a = time.perf_counter()
            out = m(x)[0]
            b = time.perf_counter()
            out.backward(g)
            c = time.perf_counter()
            times.append((b - a, c - b))
        times.sort()
        print(kind, H, "host us", [round(t * 1e6) for t in times[100]])
    import threading

    profile = cProfile.Profile()
    profile.enable()
    for _ in range(300):
        net(x)
    profile.disable()
    torch.cuda.synchronize()
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(18)
