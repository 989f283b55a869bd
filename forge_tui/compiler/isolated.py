"""Compilers confined to their toolkit and the private folder: which paths that takes, and whether it works here."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from forge_tui.compiler import command, toolchain
from forge_tui.compiler.subprocesses import run
from forge_tui.compiler.toolchain import Gxx, Nvcc, Nvrtc, Tool
from forge_tui.core.ports import Isolation
from forge_tui.core.records import Language
from forge_tui.processes import isolation

#: what a toolchain outside the system's folders consists of
_PARTS = ("bin", "lib", "lib32", "lib64", "libexec", "include", "nvvm", "targets", "share", "*-linux-*")
_TRY_S = 60.0
_TRY_BYTES = 8 << 30
_TRIAL: dict[Language, str] = {
    "cpp": '#include <cmath>\n#include <omp.h>\nextern "C" int forge_launch(float* x) { return *x = exp(*x), 0; }\n',
    "cuda": 'extern "C" __global__ void k(float* x) { *x = __expf(*x); }\n',
}

_known: dict[tuple[str, str], Confinement] = {}


@dataclass(frozen=True, slots=True)
class Confinement:
    """How the commands of one tool are to be started."""

    isolation: Isolation
    read: tuple[str, ...] = ()

    def wrap(self, argv: list[str], folder: Path) -> tuple[str, list[str]]:
        """What `limit.py` is to put into force, and the command as it is to be run."""
        write = [str(folder), *isolation.SINKS]
        if self.isolation.means == "landlock":
            return json.dumps({"read": self.read, "write": write}), argv
        if self.isolation.means == "bubblewrap":
            return "", [*isolation.bubblewrap(self.read, write, str(folder)), *argv]
        return "", argv


NONE = Confinement(Isolation(means="", why="it was not asked for"))


async def confinement(tool: Tool, arch: str) -> Confinement:
    """What serves for a tool, after a small kernel was built in it; nothing, with the reason, where that fails."""
    key = (repr(tool), os.environ.get(isolation.VARIABLE, ""))
    if key not in _known:
        _known[key] = await _tried(tool, arch)
    return _known[key]


async def _tried(tool: Tool, arch: str) -> Confinement:
    found = isolation.detect()
    if not found.means:
        return Confinement(found)
    made = Confinement(found, read_roots(tool))
    said = await _trial(tool, arch, made)
    if said and not await _trial(tool, arch, NONE):
        why = f"{Path(tool.path).name} does not work under {found.means} ({said})"
        return Confinement(msgspec.structs.replace(found, means="", why=why))
    return made


async def _trial(tool: Tool, arch: str, how: Confinement) -> str:
    """Empty where a small kernel could be built, else the compiler's last words."""
    language: Language = "cpp" if isinstance(tool, Gxx) else "cuda"
    with tempfile.TemporaryDirectory(prefix="forge-tui-trial-") as name:
        folder = Path(name).resolve()
        (folder / command.SOURCE[language]).write_text(_TRIAL[language])
        (folder / command.LINK_MAP).write_text(command.LINK_MAP_TEXT)
        if isinstance(tool, Gxx):
            steps = [command.cxx_compile(tool, {}, "0x1"), command.cxx_link(tool)]
        elif isinstance(tool, Nvcc):
            steps = [command.nvcc_compile(tool, arch, {}, "0x1")]
        else:
            steps = [command.nvrtc_compile(tool, arch, {})]
        for argv in steps:
            try:
                done = await run(argv, folder, timeout_s=_TRY_S, memory_bytes=_TRY_BYTES, confined=how)
            except OSError as error:
                return str(error.strerror or error)
            if done.code:
                lines = [line.strip() for line in done.output.splitlines() if line.strip()]
                return (lines or [f"exit code {done.code}"])[-1][:160]
    return ""


def read_roots(tool: Tool) -> tuple[str, ...]:
    """Folders that the tool must read: the system's, and of toolchains elsewhere the parts they consist of."""
    prefixes: list[Path] = []
    for program in (tool.path, shutil.which("g++"), shutil.which("gcc"), shutil.which("c++")):
        if program:
            # a wrapper's own folder, and where the program really lies
            prefixes += [Path(program).absolute().parent.parent, Path(program).resolve().parent.parent]
    if not isinstance(tool, Gxx):
        prefixes += [path.resolve() for path in toolchain.toolkit_folders()]
    folders: list[str] = [*isolation.SYSTEM]
    if isinstance(tool, Nvrtc):
        prefixes += [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
        library = Path(tool.path)
        folders += [str(library.parent), str(library.resolve().parent), *tool.include]
        folders += [str(Path(__file__).parent)]
    for prefix in dict.fromkeys(prefixes):
        if not _inside(prefix, isolation.SYSTEM):
            folders += [str(path) for part in _PARTS for path in sorted(prefix.glob(part)) if path.is_dir()]
    return tuple(dict.fromkeys(folders))


def _inside(path: Path, roots: Iterable[str]) -> bool:
    return any(path == Path(root) or Path(root) in path.parents for root in roots)
