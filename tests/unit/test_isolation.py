"""What keeps processes apart from the machine: Landlock, the filter of calls, and how it is found out and said."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forge_tui.cli.health import Machine, checks
from forge_tui.compiler import command
from forge_tui.core.ports import Isolation
from forge_tui.evaluator import confine, sandbox
from forge_tui.processes import isolation, landlock

needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")

#: says of each attempt whether it was refused
ATTEMPTS = """
import os, socket, sys
def refused(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"
own = sys.argv[1]
print([refused(work) for work in (
    lambda: open(own + "/inside", "w"), lambda: open(own + "/../outside/secret").read(),
    lambda: open(own + "/../outside/new", "w"), lambda: os.unlink(own + "/../outside/secret"),
    lambda: open(own + "/link").read(), lambda: open(f"/proc/{os.getppid()}/environ").read(),
    lambda: os.listdir("/proc"), lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2]))),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), lambda: os.kill(os.getppid(), 0),
    lambda: open("/dev/null", "w"),
)])
"""


@pytest.fixture
def cleared():
    """The finding is made anew before and after."""
    isolation.detect.cache_clear()
    yield
    isolation.detect.cache_clear()


@needs_landlock
def test_a_confined_command_reaches_nothing_but_its_folder(tmp_path):
    """Files elsewhere, also through links and `..`, other processes' environments and every network are refused."""
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (own / "link").symlink_to(outside / "secret")
    prefixes = [sys.prefix, sys.base_prefix]
    rules = json.dumps({"read": [*isolation.SYSTEM, *prefixes], "write": [str(own), *isolation.SINKS]})
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [sys.executable, "-I", "-c", ATTEMPTS, str(own), str(server.getsockname()[1])]
        limits = {"memory_bytes": 2**32, "file_bytes": 2**20, "cpu_s": 20}
        free = subprocess.run(command.limited(argv, **limits), capture_output=True, text=True, check=True, cwd=own)
        (outside / "secret").write_text("secret")
        (outside / "new").unlink()
        done = subprocess.run(command.limited(argv, confinement=rules, **limits), capture_output=True, text=True,
                              check=True, cwd=own)  # fmt: skip
    no = "PermissionError"
    signal = no if landlock.abi() >= 6 else "done"
    # without confinement the same attempts succeed: it is not the machine that refuses them
    assert free.stdout.strip() == str(["done"] * 3 + ["done", "FileNotFoundError"] + ["done"] * 6)
    assert done.stdout.strip() == str(["done", no, no, no, no, no, no, no, no, signal, "done"])
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


@needs_landlock
def test_a_command_that_cannot_be_confined_is_not_run(tmp_path):
    """Where the rules are not taken, the command does not run without them."""
    script = (tmp_path / "compiler")
    script.mkdir()
    shutil.copy(command.LIMIT_SCRIPT, script / "limit.py")
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "landlock.py").write_text("def restrict(read, write): raise OSError(38, 'gone')\n")
    (tmp_path / "processes" / "seccomp.py").write_text("")
    rules = json.dumps({"read": [], "write": []})
    argv = [sys.executable, "-I", str(script / "limit.py"), "4000000000", "1000", "5", rules, "/bin/echo", "ran"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (command.NOT_CONFINED, "", "/bin/echo: not confined: gone\n")


@needs_landlock
def test_a_cpu_candidate_reads_no_files_of_the_user_when_it_is_loaded(tmp_path):
    """Before a kernel's file is opened its process has lost the user's files and the right to write any."""
    built, private = tmp_path / "built" / "kernel.so", tmp_path / "private"
    built.parent.mkdir()
    built.write_bytes(b"kernel")
    private.write_text("private")

    def refused(work):
        try:
            work()
        except PermissionError:
            return True
        return False

    def work():
        sandbox.limit(1, 0)
        confined = confine.cpu_candidate(built)
        own = refused(built.read_bytes), refused(Path("/proc/self/maps").read_bytes)
        others = [private.read_bytes, Path(f"/proc/{os.getppid()}/environ").read_bytes,
                  lambda: (built.parent / "x").touch(), built.unlink]  # fmt: skip
        return {"confined": confined, "own": own, "others": [refused(one) for one in others]}

    ended = sandbox.run_in_child(work, 20)
    assert ended.reply == {"confined": True, "own": [False, False], "others": [True] * 4}
    assert private.read_text() == "private"


@needs_landlock
def test_a_cuda_runner_keeps_its_folders_only(tmp_path, monkeypatch):
    """It reads models wherever they are, writes to its own folders and the devices, and has no network."""
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    (home / "model").write_text("weights")
    for name, value in confine.cuda_environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)

    def work():
        confined = confine.cuda_runner([scratch])
        found = {}
        for name, attempt in {
            "scratch": lambda: (scratch / "a").touch(),
            "cache": lambda: Path(os.environ["CUDA_CACHE_PATH"], "a").touch(),
            "model": (home / "model").read_text, "home": lambda: (home / "a").touch(),
            "null": lambda: Path("/dev/null").write_text("x"), "network": lambda: socket.socket(socket.AF_INET),
            "local": lambda: socket.socket(socket.AF_UNIX), "comm": lambda: Path("/proc/self/comm").write_text("x"),
            "engine": Path(f"/proc/{os.getppid()}/environ").read_bytes,
        }.items():
            try:
                attempt()
                found[name] = True
            except OSError:
                found[name] = False
        return {"confined": confined, "found": found}

    assert sandbox.run_in_child(work, 20).reply == {"confined": True, "found": {
        "scratch": True, "cache": True, "model": True, "home": False, "null": True, "network": False, "local": True,
        "comm": True, "engine": False,
    }}  # fmt: skip


@pytest.mark.usefixtures("cleared")
def test_what_is_in_force_is_found_by_trying(monkeypatch, tmp_path):
    """Landlock first; bubblewrap where it is missing and works; else nothing, with the reason for each."""
    if landlock.abi():
        assert isolation.detect() == Isolation(means="landlock", abi=landlock.abi())
    monkeypatch.setattr(isolation.landlock, "abi", lambda: 0)
    monkeypatch.setattr(isolation, "_try_landlock", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "bwrap"
    said = []
    for text in ("exit 42", "echo 'bwrap: No namespaces' >&2; exit 1", None):
        isolation.detect.cache_clear()
        program.unlink(missing_ok=True)
        if text is not None:
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        said.append(isolation.detect().short)
    assert said == [
        "isolated: bubblewrap+seccomp",
        "not isolated: this kernel has no Landlock and bubblewrap is refused (bwrap: No namespaces)",
        "not isolated: this kernel has no Landlock and bubblewrap is not installed",
    ]
    isolation.detect.cache_clear()
    monkeypatch.setenv(isolation.VARIABLE, "off")
    assert isolation.detect().short == "not isolated: FORGE_TUI_ISOLATION is off"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.usefixtures("cleared")
def test_bubblewrap_hides_what_it_is_not_given(monkeypatch, tmp_path):
    """Where it works at all, a command in it sees its folder and the system, and nothing of the user."""
    monkeypatch.setenv(isolation.VARIABLE, "bubblewrap")
    if not isolation.detect().means:
        pytest.skip(isolation.detect().why)
    own = tmp_path / "own"
    own.mkdir()
    (tmp_path / "secret").write_text("x")
    text = f"touch {own}/made; cat {tmp_path}/secret; ls /proc | grep -c '^[0-9]'; cat /proc/net/route | wc -l"
    argv = [*isolation.bubblewrap(isolation.SYSTEM, [str(own)], str(own)), "/bin/sh", "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (own / "made").exists()
    assert "No such file" in done.stderr
    assert int(done.stdout.split()[0]) < 6
    assert done.stdout.split()[1] in ("0", "1")


def test_bubblewrap_is_given_paths_only():
    """Folders are bound, links at the root are made again, devices come from its own /dev."""
    argv = isolation.bubblewrap(["/usr", "/dev/zero"], ["/work", "/dev/null"], "/work")
    assert argv[:4] == ["bwrap", "--unshare-all", "--die-with-parent", "--dev"]
    assert argv[7:] == ["--ro-bind-try", "/usr", "/usr", "--bind", "/work", "/work", "--chdir", "/work", "--"]


def test_doctor_says_it():
    """What is in force is a finding; where nothing is, a warning with what to do."""
    machine = Machine(device="cpu", torch="2.13.0", gxx="12")
    for found, status in ((Isolation(means="landlock", abi=7), "ok"), (Isolation(means="", why="it is off"), "warn")):
        shown = msgspec.structs.replace(machine, isolated=bool(found.means), isolation=found.sentence)
        (check,) = [check for check in checks(shown) if check.name == "isolation"]
        assert (check.status, check.text) == (status, found.sentence)
        assert bool(check.fix) == (status == "warn")
    assert not [check for check in checks(machine) if check.name == "isolation"]
