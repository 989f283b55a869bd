"""`doctor`: whether the default job can run on this machine, and what to do if it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from forge_tui import __version__
from forge_tui.cli import output, probe
from forge_tui.cli.commands.run import resolve_device
from forge_tui.cli.health import Check, Machine, checks
from forge_tui.core.errors import EnvironmentFault, ExitCode, StoreError
from forge_tui.core.paths import Workspace, workspace_for
from forge_tui.report.format import one_line
from forge_tui.store import filesystem

_TORCH_LIMIT_S = 120.0
_NVML_LIMIT_S = 20.0
_LEAST_FREE_BYTES = 1 << 30


class _Tool(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...


def doctor(*, workspace: str | None, as_json: bool) -> int:
    """Look at everything the job needs; returns 0 if it can run here, else 4."""
    machine, paths = examine()
    place = workspace_for(None, workspace)
    found = [
        Check(name="Forge TUI", status="ok", text=f"{__version__} on Python {platform.python_version()}."),
        *checks(machine), *check_workspace(place), *check_terminal(),
    ]  # fmt: skip
    failures = [check for check in found if check.status == "fail"]
    if as_json:
        output.document({
            "ok": not failures, "device": machine.device, "checks": found, "versions": machine, "paths": paths,
            "workspace": str(place.root),
        })  # fmt: skip
    else:
        output.text("\n".join([*map(_line, found), "", _conclusion(machine, failures)]))
    return int(ExitCode.ENVIRONMENT if failures else ExitCode.OK)


def examine() -> tuple[Machine, dict[str, str]]:
    """Versions of everything, and where the compilers are. Slow or hanging libraries are asked in processes."""
    from forge_tui.compiler import isolated, toolchain
    from forge_tui.processes.isolation import detect

    with ThreadPoolExecutor() as pool:
        torch_asked = pool.submit(probe.ask, "torch", _TORCH_LIMIT_S)
        nvml_asked = pool.submit(probe.ask, "nvml", _NVML_LIMIT_S)
        tools = {name: pool.submit(_find, find) for name, find in
                 (("gxx", toolchain.find_gxx), ("nvcc", toolchain.find_nvcc), ("nvrtc", toolchain.find_nvrtc))}
        torch, nvml = torch_asked.result(), nvml_asked.result()
        found = {name: tool.result() for name, tool in tools.items()}
    gpus = tuple(nvml.get("gpus", ()))
    versions = {name: tool.version for name, (tool, _) in found.items() if tool is not None}
    errors = {f"{name}_error": fault for name, (_, fault) in found.items() if fault}
    # a driver that hangs must not be asked again in this process
    device = resolve_device("auto") if gpus else "cpu"
    tool = found["gxx"][0]
    isolation = asyncio.run(isolated.confinement(tool, "")).isolation if isinstance(tool, toolchain.Gxx) else detect()
    machine = Machine(
        device=device,
        torch=torch.get("version", ""), torch_error=torch.get("error", ""), torch_cuda=torch.get("cuda") or "",
        torch_sees_gpu=bool(torch.get("available")), torch_why=torch.get("why", ""),
        driver=nvml.get("driver", ""), driver_cuda=nvml.get("cuda", ""), gpus=gpus, gpu_error=nvml.get("error", ""),
        isolated=bool(isolation.means), isolation=isolation.sentence,
        **versions, **errors, **asyncio.run(_tools(device, gxx="gxx" in versions)),
    )  # fmt: skip
    return machine, {name: tool.path for name, (tool, _) in found.items() if tool is not None}


async def _tools(device: str, *, gxx: bool) -> dict[str, str]:
    """Whether sanitizer and profiler work here, tried on small kernels."""
    from forge_tui.compiler import sanitised
    from forge_tui.evaluator import ncu
    from forge_tui.evaluator.sanitizer import ComputeSanitizer

    kind, _, index = device.partition(":")
    if kind != "cuda":
        return {"cpu_sanitizer_error": await sanitised.why_not() if gxx else ""}
    sanitizer = ComputeSanitizer(int(index or 0))
    with tempfile.TemporaryDirectory(prefix="forge-doctor-") as folder:
        why_not = await sanitizer.why_not(Path(folder))
        no_counters = await ncu.why_not(int(index or 0))
    return {
        "sanitizer": "" if why_not else sanitizer.path, "sanitizer_error": why_not,
        "ncu": "" if no_counters else ncu.find(), "ncu_error": no_counters,
    }  # fmt: skip


def _find(find: Callable[[], _Tool]) -> tuple[_Tool | None, str]:
    try:
        return find(), ""
    except EnvironmentFault as error:
        return None, f"{error.what}\n{error.hint}"


def check_workspace(place: Workspace) -> list[Check]:
    """Whether sessions can be written where they would be, and what is there already."""
    folder = _nearest(place.root)
    kind = filesystem.describe(folder)
    found: list[Check] = []
    try:
        with tempfile.TemporaryFile(dir=folder) as probe_file:
            probe_file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [Check(name="workspace", status="fail", text=f"{folder} cannot be written: {error.strerror or error}.",
                      fix="Name another folder with --workspace, or free space there.")]  # fmt: skip
    if free < _LEAST_FREE_BYTES:
        found.append(Check(name="workspace", status="warn", text=f"Only {free >> 20} MiB are free in {folder}."))
    else:
        found.append(Check(name="workspace", status="ok", text=f"{place.root} on {kind}, {free >> 30} GiB free."))
    if filesystem.network_kind(folder):
        found.append(Check(
            name="filesystem", status="warn", text=f"{folder} is on a network filesystem ({kind}): the database is "
            "slower there.", fix="Name a folder on a local disk with --workspace.",
        ))  # fmt: skip
    if place.database.exists():
        found.append(_database(place))
    return found


def _database(place: Workspace) -> Check:
    from forge_tui.store.reader import Reader

    try:
        with contextlib.closing(Reader.open(place)) as reader:
            count = len(reader.sessions())
    except StoreError as error:
        return Check(name="database", status="fail", text=error.what, fix=error.hint)
    return Check(name="database", status="ok", text=f"{count} session{'' if count == 1 else 's'}.")


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def check_terminal() -> list[Check]:
    """What the screen will have to do with."""
    term = os.environ.get("TERM", "")
    if not (sys.stdin and sys.stdin.isatty() and term not in ("", "dumb")):
        return [Check(name="terminal", status="note", text="There is none: use --headless or --json.")]
    size = shutil.get_terminal_size()
    colors = "truecolor" if os.environ.get("COLORTERM", "") in ("truecolor", "24bit") else \
        "256 colours" if "256" in term else "16 colours"  # fmt: skip
    small = size.columns < 80 or size.lines < 24
    found = [Check(
        name="terminal", status="warn" if small else "ok", text=f"{term}, {size.columns}x{size.lines}, {colors}.",
        fix="The screen is made for at least 80x24." if small else "",
    )]  # fmt: skip
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") != "utf8":
        found.append(Check(name="locale", status="warn", text=f"The locale's encoding is {encoding}.",
                           fix="Set LANG to a UTF-8 locale, such as C.UTF-8."))  # fmt: skip
    if os.environ.get("TMUX"):
        found.append(Check(name="tmux", status="ok", text=f"{_tmux_version()}."))
    return found


def _tmux_version() -> str:
    try:
        done = subprocess.run(["tmux", "-V"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "tmux of unknown version"
    return done.stdout.strip() or "tmux of unknown version"


def _line(check: Check) -> str:
    fix = f" {check.fix}" if check.fix else ""
    return f"{check.status.upper() if check.status == 'fail' else check.status:<5} {check.name:<20} " \
           + one_line(check.text + fix)  # fmt: skip


def _conclusion(machine: Machine, failures: list[Check]) -> str:
    if not failures:
        return f"Ready: forge-tui run example:tiny-llm takes {machine.device}."
    steps = " ".join(check.fix or check.text for check in failures)
    return f"Not ready for {machine.device}: {one_line(steps)}"
