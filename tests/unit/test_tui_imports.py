"""What the screen process holds, proven in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = ("torch", "numpy", "litellm", "anthropic", "pynvml", "sqlite_utils", "openai", "httpx")


def loaded_after(code: str) -> set[str]:
    """Which of the forbidden modules a fresh interpreter has after running `code`."""
    probe = f"{code}\nimport sys; print(*[m for m in {FORBIDDEN!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["forge_tui.tui.app", "forge_tui.tui.screens.main", "forge_tui.telemetry.ring", "forge_tui.tui.feed"]
)
def test_importing_the_screen_loads_nothing_heavy(module: str) -> None:
    """No torch, no LLM library, no NVML, not even numpy."""
    assert loaded_after(f"import {module}") == set()


def test_running_the_screen_loads_nothing_heavy() -> None:
    """The app with its reader, one frame painted and left again, is as light."""
    code = """
import asyncio, tempfile, pathlib
from forge_tui.core.paths import Workspace
from forge_tui.tui.app import ForgeApp, _opener
from forge_tui.tui.feed import NoFeed
workspace = Workspace(pathlib.Path(tempfile.mkdtemp()))
async def main():
    app = ForgeApp(workspace, _opener(workspace), feed=NoFeed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "3", "tab")
        await pilot.pause()
asyncio.run(main())
"""
    assert loaded_after(code) == set()
