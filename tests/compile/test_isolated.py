"""What a source cannot get out of the real compilers: files of the machine, by whatever way they are read."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from targets_fixture import SOFTMAX_CPP, SOFTMAX_CUDA, cpu_device, cuda_device, softmax_target

from forge_tui.compiler import command, isolated, private, subprocesses, toolchain
from forge_tui.compiler.build import CommandCompiler
from forge_tui.compiler.folder import private_folder
from forge_tui.contract import lint
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Built
from forge_tui.processes import isolation, landlock

SECRET = "int topsecret : no such type ;"
#: SECRET stands for a file of the machine
READERS = {
    "include": '#include "SECRET"\n',
    "include of a system header": "#include <SECRET>\n",
    "relative": '#include "../outside/secret"\n',
    "macro": '#define PLACE "SECRET"\n#include PLACE\n',
    "include_next": "#include_next <SECRET>\n",
    "import": '#import "SECRET"\n',
    "line marker": '# 1 "SECRET" 1\nint a b;\n',
    "line": '#line 1 "SECRET"\nint a b;\n',
    "embed": 'const unsigned char a[] = {\n#embed "SECRET"\n};\n',
    "digraph": '%:include "SECRET"\n',
    "joined": '#inc\\\nlude "SECRET"\n',
    "incbin": 'asm(".incbin \\"SECRET\\"");\n',
    "assembler include": 'asm(".include \\"SECRET\\"");\n',
    "has_include": '#if __has_include("SECRET")\n#error topsecret is there\n#endif\n',
    "dependency": '#pragma GCC dependency "SECRET"\n',
    "pragma operator": '_Pragma("GCC dependency \\"SECRET\\"")\n',
    "environment of the compiler": '#include "/proc/self/environ"\n',
    "environment of the engine": '#include "/proc/ENGINE/environ"\n',
}
#: what reads no file even where it could; the lint refuses it all the same
HARMLESS = {"embed"}
TOOLS = {
    "g++": (toolchain.find_gxx, cpu_device(), SOFTMAX_CPP), "nvcc": (toolchain.find_nvcc, cuda_device(), SOFTMAX_CUDA),
}  # fmt: skip

needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")


def written(source: str, secret: Path) -> str:
    """The source with the secret's place in it."""
    return source.replace("SECRET", str(secret)).replace("ENGINE", str(os.getpid()))


async def compiled(tool: toolchain.Tool, arch: str, source: str, place: Path, how: isolated.Confinement):
    """One compiler run on a source that nobody looked at before."""
    folder = place / "build"
    folder.mkdir(parents=True)
    language = "cpp" if isinstance(tool, toolchain.Gxx) else "cuda"
    (folder / command.SOURCE[language]).write_text(source)
    if language == "cpp":
        argv = command.cxx_compile(tool, {}, "0x1")
    else:
        argv = command.nvcc_compile(tool, arch, {}, "0x1")
    done = await subprocesses.run(argv, folder, timeout_s=60, memory_bytes=8 << 30, confined=how)
    artifacts = b"".join(path.read_bytes() for path in folder.iterdir() if path.suffix in (".o", ".cubin"))
    return done, private.own_words(done.output, str(folder), how.read), artifacts


@needs_landlock
@pytest.mark.parametrize("name", TOOLS)
async def test_no_way_of_reading_files_gives_anything_away(name, tmp_path, monkeypatch):
    """Past the lint, a confined compiler quotes nothing of a file outside, and builds nothing from it."""
    if shutil.which(name) is None:
        pytest.skip("no compiler")
    find, device, _ = TOOLS[name]
    tool = find()
    monkeypatch.setenv("FORGE_TEST_SETTING", "topsecret setting")
    how = await isolated.confinement(tool, device.arch)
    assert how.isolation.means == "landlock"
    ways = READERS if name == "g++" else {k: READERS[k] for k in ("include", "macro", "line marker", "incbin",
                                                                  "environment of the engine")}  # fmt: skip

    async def one(way: str, source: str):
        place = tmp_path / way
        (place / "outside").mkdir(parents=True)
        secret = place / "outside" / "secret"
        secret.write_text(f"{SECRET}\n")
        done, shown, artifacts = await compiled(tool, device.arch, written(source, secret), place, how)
        assert "topsecret :" not in done.output, way
        assert "topsecret setting" not in done.output, way
        assert "topsecret" not in shown.replace(str(place), ""), way
        assert b"topsecret" not in artifacts, way
        assert done.code != 0 or name == "nvcc", way

    await asyncio.gather(*(one(way, source) for way, source in ways.items()))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
async def test_messages_about_other_files_are_left_out_without_isolation_too(tmp_path):
    """Where a compiler could read a file, what it says of it is dropped, and what it says of the source stays."""
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text(f"{SECRET}\n")
    source = f'int right = wrong;\n#include "{secret}"\n'
    done, shown, _ = await compiled(toolchain.find_gxx(), "", source, tmp_path, isolated.NONE)
    assert "topsecret" in done.output
    assert "topsecret" not in shown
    assert private.LEFT_OUT in shown
    assert "candidate.cpp:1:13: error: 'wrong' was not declared" in shown


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_the_lint_refuses_every_way(way, language, tmp_path):
    """A source that asks for a file never reaches a compiler."""
    allowed = {"pragma operator"}
    try:
        lint.check(written(READERS[way], tmp_path / "secret"), language)
    except ContractError:
        return
    assert way in allowed, "the lint lets it pass"


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        ("candidate.cpp:4:1: error: x\n    4 | x\n      | ^\n", True),
        ("/etc/passwd:1:1: error: 'root'\n    1 | root:x:0\n      | ^\n", False),
        ("In file included from /etc/passwd:1,\n                 from candidate.cpp:1:\n", False),
        ("../../etc/passwd:1:1: error: 'root'\n", False),
        ("/usr/include/stdio.h:3:1: error: y\n", True),
        ("/usr/../etc/passwd:3:1: error: y\n", False),
        ("/etc/passwd(1): error: this declaration has no storage class\n  root:x:0:0\n  ^\n", False),
        ('"/etc/passwd", line 1: error: root:x\n', False),
        ("candidate.cu(12): error: identifier \"foo\" is undefined\n      foo(x);\n      ^\n", True),
        ("/etc/passwd: Assembler messages:\n/etc/passwd:1: Error: no such instruction: `root:x:0'\n", False),
        ("/etc/passwd:1: syntax error in VERSION script\n", False),
        ("ptxas /etc/passwd, line 1; error   : root\n", False),
        ("ptxas info    : Used 20 registers, used 1 barriers\n", True),
        ("collect2: error: ld returned 1 exit status\n", True),
    ],
)  # fmt: skip
def test_whose_messages_are_kept(log, kept, tmp_path):
    """Those about the build's own files and the toolkit, in the words of every tool."""
    shown = private.own_words(f"before\n{log}", str(tmp_path), ())
    if kept:
        assert shown == f"before\n{log}"
    else:
        assert "root" not in shown
        assert private.LEFT_OUT in shown


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
async def test_a_toolchain_that_isolation_breaks_is_used_without(tmp_path, monkeypatch):
    """A compiler that needs a file elsewhere works on, unconfined, and that is said."""
    elsewhere = tmp_path / "settings"
    elsewhere.write_text("")
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n. {elsewhere} || exit 1\nexec {toolchain.find_gxx().path} \"$@\"\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache")
    found = await compiler.isolation()
    assert isinstance(await compiler.build(softmax_target(), SOFTMAX_CPP, {}), Built)
    if isolation.detect().means:
        assert found.short.startswith("not isolated: g++ does not work under landlock (")


async def test_a_killed_engine_s_folder_is_swept_up(tmp_path, monkeypatch):
    """A build folder whose owner was killed goes with the next compiler, one that is in use stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "forge-build-left"
    left.mkdir()
    (left / "candidate.cpp").write_text("int x;")
    async with private_folder() as used:
        assert used.parent == tmp_path
        assert used.stat().st_mode & 0o777 == 0o700
        CommandCompiler(cpu_device(), tmp_path / "cache")
        assert used.is_dir()
        assert not left.exists()
    assert [path.name for path in tmp_path.glob("forge-*")] == []
