import sys, time, torch
from benchmarks.gpu_check import net_and_torch, train

torch.backends.cuda.matmul.allow_tf32 = True
for kind, T, B, H in (("LSTM", 1024, 16, 64), ("LSTM", 512, 64, 512)):
    net, peer = net_and_torch(kind, H, torch.bfloat16)
    x = torch.randn(T, B, H, device="cuda", dtype=torch.bfloat16)
    g = torch.randn_like(x)
    for _ in range(3):
        train(net, x, g)
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        a = time.perf_counter()
        out = net(x)[0]
        b = time.perf_counter()
        out.backward(g)
        c = time.perf_counter()
        times.append((b - a, c - b))
        torch.cuda.synchronize()
    times.sort()
    print(kind, H, "host us", [round(t * 1e6) for t in times[10]])
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        for _ in range(3):
            train(net, x, g)
        torch.cuda.synchronize()
    print(p.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=60)[:6500])
