"""CUDA without headers or a toolkit: NVRTC, which comes with torch, and the driver's interface, both by ctypes."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from array import array
from ctypes import POINTER, Structure, Union, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from leporello.engine.cache_folder import kept_path, write_kept
from leporello.errors import EngineRefusal

FLAGS = ("-std=c++17", "-w", "--fmad=true")
LOCAL_BYTES, REGISTERS, SHARED_LIMIT, LARGE_CLUSTERS = (
    3,
    4,
    8,
    14,
)  # attributes of functions, as the driver numbers them
COOPERATIVE, CLUSTER = 2, 4  # attributes of launches


# ---- NVRTC


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """The library, from where torch's wheels put it or from the system."""
    root = os.path.dirname(os.path.dirname(torch.__file__))
    paths = [os.environ.get("LEPORELLO_NVRTC", "")]
    paths += sorted(glob.glob(f"{root}/nvidia/*/lib/libnvrtc.so*")) + sorted(
        glob.glob(f"{root}/torch/lib/libnvrtc*.so*")
    )
    paths = [path for path in paths if path and "builtins" not in path and ".alt." not in path]
    for path in [*paths, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise EngineRefusal(
        "NVRTC, the compiler that comes with torch for CUDA, is not found.",
        expected="libnvrtc.so in torch's nvidia packages or on the system's path",
        tries="pip install nvidia-cuda-nvrtc; or set LEPORELLO_NVRTC to the library's path",
    )


def nvrtc_refusal() -> EngineRefusal | None:
    """Why nothing can be compiled; None if it can."""
    try:
        _nvrtc()
    except EngineRefusal as refusal:
        return refusal
    return None


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    major, minor = c_int(), c_int()
    _nvrtc().nvrtcVersion(byref(major), byref(minor))
    return major.value, minor.value


def compiled(text: str, name: str, architecture: str) -> tuple[Path, bytes]:
    """The path of a CUDA source in the cache folder, and its machine code, compiled unless it is there already.

    architecture   such as "sm_90"
    """
    key = "\n".join([text, architecture, *FLAGS, str(nvrtc_version())])
    source = kept_path(name, key, ".cu")
    built = source.with_suffix(".cubin")
    try:
        return source, built.read_bytes()
    except OSError:
        pass
    write_kept(source, text.encode())
    code = compile_text(text, architecture, str(source))
    write_kept(built, code)
    return source, code


def compile_text(text: str, architecture: str, name: str = "kernel.cu") -> bytes:
    """The machine code of a CUDA text; raises EngineRefusal with what the compiler says."""
    library, program, size = _nvrtc(), c_void_p(), c_size_t()
    _compiled(library.nvrtcCreateProgram(byref(program), text.encode(), name.encode(), 0, None, None), "")
    try:
        options = [f"--gpu-architecture={architecture}".encode(), *(flag.encode() for flag in FLAGS)]
        status = library.nvrtcCompileProgram(program, len(options), (c_char_p * len(options))(*options))
        if status:
            library.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            _compiled(status, "\n".join(log.value.decode(errors="replace").splitlines()[:12]), name)
        _compiled(library.nvrtcGetCUBINSize(program, byref(size)), "")
        code = ctypes.create_string_buffer(size.value)
        _compiled(library.nvrtcGetCUBIN(program, code), "")
        return code.raw
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _compiled(status: int, says: str, source: str = "") -> None:
    if status:
        raise EngineRefusal("the CUDA compiler (NVRTC) failed.", source=source, says=says or f"error {status}")


# ---- the driver


class _Value(Union):
    _fields_ = [("pad", c_char * 64), ("sizes", c_uint * 3), ("number", c_int)]


class _Attribute(Structure):
    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", _Value)]


class _Launch(Structure):
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    ]


@functools.cache
def cuda_driver() -> ctypes.CDLL:
    """The driver's library."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EngineRefusal("the CUDA driver is not found.", says=str(error)) from error


def checked(status: int, doing: str) -> None:
    """Raise an EngineRefusal where a call of the driver has failed."""
    if status:
        text = c_char_p()
        cuda_driver().cuGetErrorString(status, byref(text))
        says = (text.value or b"").decode()
        raise EngineRefusal(f"the CUDA driver failed to {doing}.", says=f"{says} (error {status})")


@functools.cache
def _context(index: int) -> c_void_p:
    """The context of a device that torch uses too."""
    device, context = c_int(), c_void_p()
    checked(cuda_driver().cuInit(0), "start")
    checked(cuda_driver().cuDeviceGet(byref(device), index), "find a device")
    checked(cuda_driver().cuDevicePrimaryCtxRetain(byref(context), device), "open a device")
    return context


def make_current(index: int) -> None:
    """Make a device's context that of this thread: those of autograd begin without one."""
    checked(cuda_driver().cuCtxSetCurrent(_context(index)), "choose a device")


class DeviceFunction:
    """A compiled kernel on one device.

    registers, local_bytes   of a thread; local memory that is not 0 means that registers did not suffice
    """

    def __init__(
        self, code: bytes, device: torch.device, threads: int, shared: int, cluster: int, cooperative: bool
    ) -> None:
        self.device, self.threads, self.shared, self.cluster = device, threads, shared, cluster
        module, self._function = c_void_p(), c_void_p()
        with torch.cuda.device(device):
            make_current(device.index)
            checked(cuda_driver().cuModuleLoadData(byref(module), code), "load a kernel")
            checked(cuda_driver().cuModuleGetFunction(byref(self._function), module, b"run"), "find a kernel")
            self.registers, self.local_bytes = self._attribute(REGISTERS), self._attribute(LOCAL_BYTES)
            doing = f"give a kernel {shared} bytes of shared memory"
            checked(cuda_driver().cuFuncSetAttribute(self._function, SHARED_LIMIT, shared), doing)
            if cluster > 8:
                checked(
                    cuda_driver().cuFuncSetAttribute(self._function, LARGE_CLUSTERS, 1), "allow a cluster of 16 blocks"
                )
        self._attributes = (_Attribute * 2)()
        count = 0
        if cluster > 1:
            self._attributes[count].id = CLUSTER
            self._attributes[count].value.sizes[:] = [cluster, 1, 1]
            count += 1
        if cooperative:  # the driver refuses a launch whose blocks cannot all run at once
            self._attributes[count].id = COOPERATIVE
            self._attributes[count].value.number = 1
            count += 1
        self._launch = _Launch((1, 1, 1), (threads, 1, 1), shared, None, self._attributes, count)
        self._run = cuda_driver().cuLaunchKernelEx

    def _attribute(self, number: int) -> int:
        value = c_int()
        checked(cuda_driver().cuFuncGetAttribute(byref(value), number, self._function), "describe a kernel")
        return value.value

    @functools.cached_property
    def blocks_per_processor(self) -> int:
        """How many blocks one multiprocessor runs at once."""
        count = c_int()
        with torch.cuda.device(self.device):
            make_current(self.device.index)
            status = cuda_driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                byref(count), self._function, c_int(self.threads), c_size_t(self.shared)
            )
        checked(status, "count the blocks that run at once")
        return count.value

    def launch(self, words: array[int], blocks: int) -> None:
        """Launch so many blocks on torch's current stream of the device; `words` are the only argument, by value."""
        launch = _Launch.from_buffer_copy(self._launch)
        launch.grid[0] = blocks
        launch.stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        arguments = (c_void_p * 1)(words.buffer_info()[0])
        if torch.cuda.current_device() == self.device.index:
            status = self._run(byref(launch), self._function, arguments, None)
        else:
            with torch.cuda.device(self.device):
                status = self._run(byref(launch), self._function, arguments, None)
        checked(status, "launch a kernel")


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence, both contiguous and of one dtype: less to do than torch's indexing."""
    device, size = value.device.index, value.nbytes
    make_current(device)
    stream = c_void_p(torch._C._cuda_getCurrentRawStream(device))
    to, source = c_size_t(sequence.data_ptr() + step * size), c_size_t(value.data_ptr())
    checked(cuda_driver().cuMemcpyDtoDAsync_v2(to, source, c_size_t(size), stream), "copy a state")
