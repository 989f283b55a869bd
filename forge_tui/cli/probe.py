"""`python -m forge_tui.cli.probe torch|nvml`: one JSON line about a library that may hang, crash or take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from forge_tui.processes.environment import clean_environment


def ask(what: str, timeout_s: float) -> dict[str, Any]:
    """The answer of a probe in a process of its own; `{"error": ...}` where there is none."""
    try:
        done = subprocess.run([sys.executable, "-m", "forge_tui.cli.probe", what], capture_output=True, text=True,
                              errors="replace", timeout=timeout_s, env=clean_environment(), check=False,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    except OSError as error:
        return {"error": str(error)}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": last[0]}
    return answer if isinstance(answer, dict) else {"error": "no answer"}


def probe_torch() -> dict[str, Any]:
    """PyTorch's version, the CUDA it was built for, and whether it sees a GPU."""
    import warnings

    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        count = torch.cuda.device_count() if available else 0
    return {
        "version": str(torch.__version__), "cuda": torch.version.cuda, "available": available, "count": count,
        "why": str(caught[-1].message) if caught else "",
    }  # fmt: skip


def probe_nvml() -> dict[str, Any]:
    """Driver, the newest CUDA that it serves, and the GPUs' names."""
    try:
        import pynvml
    except ImportError:
        return {"error": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        }  # fmt: skip
    except pynvml.NVMLError as error:
        return {"error": str(error)}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps({"torch": probe_torch, "nvml": probe_nvml}[sys.argv[1]]()))
