import sys, traceback, torch, leporello as lp
from tests.cells.examples import EXAMPLES

torch.manual_seed(0)
for name, make in EXAMPLES.items():
    torch.manual_seed(1)
    cell = make()
    for p in cell.parameters():
        p.data.normal_()
    net = lp.Recurrent(cell, engine="gpu").cuda()
    x = torch.randn(6, 19, 3, device="cuda")
    try:
        for kw in ({}, dict(lengths=torch.randint(1, 7, (19,)).cuda(), resets=(torch.rand(6, 19) < 0.3).cuda())):
            r = lp.check_gradients(net, x, **kw)
            print(name, list(kw), "ok" if r.ok else r, flush=True)
    except Exception as ex:
        print(name, list(kw), type(ex).__name__, str(ex)[:600], flush=True)
        traceback.print_exc(limit=-3)
        if "CUDA" in str(ex):
            sys.exit(1)
