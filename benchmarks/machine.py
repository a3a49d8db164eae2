"""On what machine, with what versions and beside how much else, a run was made."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess

import torch

from leporello.engine.cpu.build import compiler


def machine() -> dict[str, object]:
    return {
        "processor": _model_name() or platform.processor() or platform.machine(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load": load(),
        "system": platform.system(),
        "compiler": _compiler(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **_gpu(),
        "jax": _version("jax"),
    }


def load() -> float | None:
    """How many threads computed here in the last minute, where the system tells."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _gpu() -> dict[str, object]:
    """The GPU that torch uses, and the versions of CUDA and cuDNN it was built with; nothing where there is none."""
    if not torch.cuda.is_available():
        return {}
    name = torch.cuda.get_device_name()
    return {"gpu": name, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


def _compiler() -> str | None:
    path = compiler()
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return next(iter(told.splitlines()), path)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
