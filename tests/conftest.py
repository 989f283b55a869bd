"""What all tests share: the gpu marker, a quiet environment."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

# a developer's own settings must not change what the tests see
for name in ("FORGE_TUI_ASCII", "FORGE_TUI_DEBUG", "NO_COLOR", "COLORTERM"):
    os.environ.pop(name, None)
# a shell that runs the tests in the background has SIGINT ignored, in all that they start as well
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# what is known of this machine is a developer's own, too
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="forge-tui-tests-")


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None and Path("/dev/nvidiactl").exists()


def pytest_collection_modifyitems(items):
    """Skip `gpu` tests where there is no NVIDIA GPU."""
    if _has_gpu():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
