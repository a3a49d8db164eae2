"""Where the time of a first call goes, by phase."""

import gc
import re
import threading
import time

import torch

import leporello as lp
from leporello.loop.phases import recorded_phases, timed_phase

X = torch.randn(4, 2, 3)


def test_a_phase_does_not_count_those_inside_of_it():
    with recorded_phases("rest") as seconds:
        with timed_phase("outer"):
            time.sleep(0.02)
            with timed_phase("inner"):
                time.sleep(0.05)
        with timed_phase("inner"):
            time.sleep(0.02)
    assert list(seconds) == ["rest", "outer", "inner"]
    assert 0.02 <= seconds["outer"] < 0.05
    assert seconds["inner"] >= 0.07
    assert seconds["rest"] < 0.02


def test_nothing_is_recorded_elsewhere():
    with recorded_phases("rest") as seconds:
        other = threading.Thread(target=lambda: timed_phase("other").__enter__())
        other.start()
        other.join()
    with timed_phase("later"):
        pass
    assert list(seconds) == ["rest"]


def test_explain_shows_the_phases_of_the_first_call():
    net = lp.Recurrent(lp.GRU(3, 4), engine="cpu")
    begin = time.perf_counter()
    net(X)
    took = time.perf_counter() - begin
    text = net.explain(X, timing=True)
    assert "gradients" in text
    assert "lowering to kernels" in text
    seconds = float(re.findall(r"the first call +([\d.]+)", text)[0])
    assert 0 < seconds <= took
    assert net.explain(X, timing=True) == text  # kept with the plan
    assert "timing" not in net.explain(X)


def test_no_garbage_is_collected_while_a_call_is_planned() -> None:
    collected = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(info["generation"])

    net = lp.Recurrent(lp.LayerNormLSTM(3, 4), engine="stepwise")
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)  # tracing would begin hundreds
    gc.callbacks.append(note)
    try:
        net.explain(torch.randn(5, 2, 3))
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
    assert len(collected) < 100
    assert gc.isenabled()
