"""`CudaGraphs`: operators captured in CUDA graphs and replayed: the recorder of a GPU (`recorder.py`).

Captured by the driver's own calls and not by torch.cuda.CUDAGraph, of which a capture that fails leaves torch's
random generator and its allocator in the middle of it.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import byref, c_int, c_ulonglong, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leporello.engine.gpu.driver import checked, cuda_driver, make_current
from leporello.engine.gpu.graphs.copies import Copies
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recording
from leporello.errors import EngineRefusal
from leporello.loop.phases import no_garbage_collection

THREAD_LOCAL, RELAXED = 1, 2  # modes of a capture, as the driver numbers them


@dataclass(eq=False)
class Shared:
    """What the graphs of a device share for the life of the process, so also with those made after all were dropped.

    stream        on which they are captured. It has no work of others, so that the workspaces that cuBLAS keeps for a
                  stream and a thread are in the graphs' memory too. cuBLAS never frees them: a stream for each
                  `CudaGraphs` would leave its workspaces behind. They keep the first one's segments that hold them
    done          the end of the last turn: graphs use those workspaces one after the other
    last_stream   of that turn
    """

    stream: torch.cuda.Stream
    done: torch.cuda.Event | None = None
    last_stream: int = 0


@functools.cache
def shared_of(index: int) -> Shared:
    """What the graphs of a device share; with the lock `_making`."""
    return Shared(torch.cuda.Stream(torch.device("cuda", index)))


_of_devices: weakref.WeakValueDictionary[int, CudaGraphs] = weakref.WeakValueDictionary()
_making = threading.Lock()


class CudaGraphs:
    """The graphs of one device, which share memory: they run one after the other, whatever their streams.

    It lives as long as one of its graphs, or somebody who captures with it, and its memory with it.

    recording   whether a thread records now
    """

    def __init__(self, index: int) -> None:
        self.index, self.device = index, torch.device("cuda", index)
        self.lock = threading.RLock()
        with torch.cuda.device(self.device):
            self.pool = torch.cuda.MemPool()
            self.shared = shared_of(index)
        self.recording = False

    @staticmethod
    def of(device: torch.device) -> CudaGraphs:
        index = torch.cuda.current_device() if device.index is None else device.index
        with _making:
            found = _of_devices.get(index)
            if found is None:
                found = _of_devices[index] = CudaGraphs(index)
            return found

    def is_busy(self) -> bool:
        """Whether the current stream is captured already, or a mode of torch looks at every operator."""
        if self.recording or torch._C._len_torch_dispatch_stack() > 0:
            return True
        with self._on_device():
            return torch.cuda.is_current_stream_capturing()

    def _on_device(self) -> AbstractContextManager[Any]:
        """A context in which the device is torch's current one."""
        return nullcontext() if torch.cuda.current_device() == self.index else torch.cuda.device(self.device)

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock, self._on_device():
            make_current(self.index)
            shared, stream = self.shared, torch._C._cuda_getCurrentRawStream(self.index)
            if shared.done is None:
                shared.done = torch.cuda.Event()
                shared.done.record()  # which makes it
            elif stream != shared.last_stream:
                shared.done.wait()
            event = c_void_p(shared.done.cuda_event)
            try:
                yield
            finally:
                checked(cuda_driver().cuEventRecord(event, c_void_p(stream)), "note the end of a CUDA graph")
                shared.last_stream = stream

    @contextmanager
    def memory(self) -> Iterator[None]:
        """A context in which torch's allocator takes new tensors from the graphs' memory; not within itself."""
        with torch.cuda.use_mem_pool(self.pool, self.device):
            yield

    def record(
        self, first: Callable[..., Any], run: Callable[..., Sequence[Tensor]], reads: Sequence[Any] = ()
    ) -> tuple[Recording, Sequence[Tensor]]:
        """A graph of what `run` does on the current stream.

        `first` loads kernels, and makes what libraries keep for a thread and a stream: a capture can do neither.
        """
        current, stream = torch.cuda.current_stream(), self.shared.stream
        stream.wait_stream(current)
        self.recording = True
        try:
            with torch.cuda.stream(stream):
                first(*reads)
                return self._captured(run, reads)
        finally:
            self.recording = False
            current.wait_stream(stream)

    def _captured(self, run: Callable[..., Sequence[Tensor]], reads: Sequence[Any]) -> tuple[Graph, Sequence[Tensor]]:
        stream, graph, failure = c_void_p(self.shared.stream.cuda_stream), c_void_p(), None
        results: Sequence[Tensor] = ()
        try:
            checked(cuda_driver().cuStreamBeginCapture_v2(stream, c_int(THREAD_LOCAL)), "begin a CUDA graph")
            try:
                with no_garbage_collection():  # what it frees may call what a capture does not allow
                    results = run(*reads)
            except Exception as error:  # of what CUDA refuses while it captures; the caller runs the same without
                failure = error
            finally:
                status = cuda_driver().cuStreamEndCapture(stream, byref(graph))
            if failure is not None:
                raise NotRecorded(str(failure)) from failure
            checked(status, "capture the steps in a CUDA graph")
            return Graph(graph, self), results
        except EngineRefusal as error:
            raise NotRecorded(" ".join(str(error).split())) from error
        finally:
            if graph:
                cuda_driver().cuGraphDestroy(graph)

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self.device)

    def copy(self, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]) -> None:
        self._copies(to, source, sizes)

    def seconds(self, run: Callable[[], Any]) -> tuple[float, float]:
        """The host waits for the stream before: launches do not wait then for a place in a full queue."""
        with self._on_device():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.current_stream().synchronize()
            start.record()
            begin = time.perf_counter()
            run()
            host = time.perf_counter() - begin
            end.record()
            end.synchronize()
            return host, start.elapsed_time(end) / 1e3


class Graph:
    """A captured graph, ready to run on the current stream; inside of `CudaGraphs.turn`."""

    def __init__(self, graph: c_void_p, owner: CudaGraphs) -> None:
        self.owner, self._ready, self._launch = owner, c_void_p(), cuda_driver().cuGraphLaunch
        checked(
            cuda_driver().cuGraphInstantiateWithFlags(byref(self._ready), graph, c_ulonglong(0)),
            "make a CUDA graph ready",
        )
        # not at the end of the process, when the driver may be gone
        weakref.finalize(self, _destroy, self._ready).atexit = False

    def __call__(self) -> None:
        stream = c_void_p(torch._C._cuda_getCurrentRawStream(self.owner.index))
        checked(self._launch(self._ready, stream), "run a CUDA graph")


def _destroy(ready: c_void_p) -> None:
    """Free a graph, also while this thread captures another one."""
    mode = c_int(RELAXED)
    cuda_driver().cuThreadExchangeStreamCaptureMode(byref(mode))
    cuda_driver().cuGraphExecDestroy(ready)
    cuda_driver().cuThreadExchangeStreamCaptureMode(byref(mode))
