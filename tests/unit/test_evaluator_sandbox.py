"""What a candidate's process may do, how its end is told, the lease, and the folder for outputs."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from targets_fixture import cpu_device, cuda_device

from forge_tui.core.errors import EnvironmentFault
from forge_tui.evaluator import sandbox
from forge_tui.evaluator.lease import lease, lease_path
from forge_tui.evaluator.scratch import Scratch
from forge_tui.processes import folders

LIBC = ctypes.CDLL(None)


def confined(work, timeout_s: float = 5.0) -> sandbox.Ended:
    """Run something as a candidate would be run."""

    def all_of_it():
        faulthandler.disable()
        sandbox.limit(2, 0)
        sandbox.lock_down()
        return {"said": work()}

    return sandbox.run_in_child(all_of_it, timeout_s)


def refused(work):
    """The name of the exception that something raises."""
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"


def test_a_reply_comes_back():
    """What the work returns is the reply, large ones too."""
    assert confined(lambda: "x" * 500_000).reply == {"said": "x" * 500_000}


def test_an_exception_is_a_fault_of_ours():
    """A Python error in the child is told, not taken for a crash of the candidate."""
    assert sandbox.run_in_child(lambda: {"a": 1 // 0}, 5).reply == {
        "fault": "ZeroDivisionError: integer division or modulo by zero"
    }


def test_a_fault_is_told_where_no_file_may_grow(tmp_path, capsys):
    """Under the limits an error of Python is still a fault: its trace comes through the pipe, not the log."""

    def work():
        log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
        os.dup2(log, 2)
        sandbox.limit(1, 0)
        sandbox.lock_down()
        raise RuntimeError("not enough of something")

    ended = sandbox.run_in_child(work, 5)
    assert ended.reply == {"fault": "RuntimeError: not enough of something"}
    assert "in work" in capsys.readouterr().err


def test_the_end_is_told():
    """Signals and exit codes have their names."""
    assert confined(lambda: os.kill(os.getpid(), 0) or os.abort()).how == "SIGSYS"
    assert confined(lambda: ctypes.string_at(8)).how == "SIGSEGV"
    assert confined(os.abort).how == "SIGABRT"
    assert confined(lambda: os._exit(0)).how == "exit code 0"


def test_a_hang_is_ended_with_its_threads():
    """The limit holds while the child spins, and nothing of it is left."""
    started = time.monotonic()
    ended = confined(lambda: threading.Thread(target=lambda: time.sleep(60)).start() or time.sleep(60), 0.5)
    assert ended.timed_out
    assert ended.reply is None
    assert time.monotonic() - started < 5
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    "work",
    [
        lambda: os.execv("/bin/true", ["/bin/true"]), os.fork, lambda: os.kill(1, 0), socket.socket,
        Path("/tmp/none").unlink, lambda: Path("/tmp/none").rename("/tmp/nothing"),
        lambda: os.sched_setaffinity(0, {0}), lambda: os.memfd_create("x"),
        lambda: LIBC.tgkill(os.getppid(), os.getppid(), 0), lambda: LIBC.sigqueue(os.getppid(), 0, None),
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)), lambda: LIBC.shmget(0, 4096, 0o1600),
        lambda: signal.setitimer(signal.ITIMER_REAL, 1), lambda: os.sched_setparam(0, os.sched_param(0)),
        lambda: os.chown("/tmp/none", 0, 0), lambda: os.utime("/tmp/none"), lambda: os.setxattr("/tmp/none", "a", b""),
        lambda: LIBC.mremap(ctypes.c_void_p(1 << 40), 4096, 4096, 3, ctypes.c_void_p(1 << 41)),
    ],
    ids=["exec", "fork", "kill", "socket", "unlink", "rename", "affinity", "memfd", "tgkill", "sigqueue", "setrlimit",
         "shmget", "setitimer", "sched_setparam", "chown", "utime", "setxattr", "mremap"],
)  # fmt: skip
def test_calls_out_of_the_process_end_it(work):
    """Programs, processes, signals, network and files are out of reach."""
    assert confined(work).how == "SIGSYS"


def test_what_the_c_library_needs_stays_possible():
    """Limits may be asked for, a block may grow, and abort() is told as such."""
    assert confined(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)).reply == {"said": [0, 0]}

    def grow():
        block = bytearray(1 << 25)
        block.extend(bytes(1 << 25))
        return len(block)

    assert confined(grow).reply == {"said": 1 << 26}
    assert confined(os.abort).how == "SIGABRT"


def test_files_cannot_be_opened_or_grown(tmp_path):
    """No file opens, and one that was open cannot be written."""
    assert confined(lambda: refused(Path("/etc/passwd").read_bytes)).reply == {"said": "OSError"}
    with open(tmp_path / "f", "wb", buffering=0) as file:
        assert confined(lambda: file.write(b"x")).how == "SIGXFSZ" or not (tmp_path / "f").stat().st_size
    assert (tmp_path / "f").read_bytes() == b""


def test_memory_is_limited():
    """A terabyte is refused, threads and ordinary amounts work."""
    assert confined(lambda: len(bytearray(1 << 26))).reply == {"said": 1 << 26}

    def take():
        try:
            return len(bytearray(1 << 40))
        except MemoryError:
            return "refused"

    assert confined(take).reply == {"said": "refused"}

    def thread():
        found = []
        worker = threading.Thread(target=lambda: found.append(3))
        worker.start()
        worker.join()
        return found

    assert confined(thread).reply == {"said": [3]}


def test_a_forged_reply_is_none(monkeypatch):
    """Bytes in the right descriptor are not taken for the child's answer."""
    pipes = []
    monkeypatch.setattr(sandbox.os, "pipe", lambda pipe=os.pipe: pipes.append(pipe()) or pipes[-1])

    def forge():
        os.write(pipes[0][1], b'{"said": "fine"}\n')
        os._exit(0)

    ended = sandbox.run_in_child(forge, 5)
    assert ended.reply is None
    assert ended.how == sandbox.FORGED


# ---- lease


async def test_a_lease_is_exclusive_and_bounded(tmp_path):
    """A second holder waits, then gets a sentence; once the first lets go it gets the lease."""
    device = cuda_device()
    async with lease(device, 1.0, tmp_path):
        with pytest.raises(EnvironmentFault, match=rf"cuda:0 is in use by process {os.getpid()} .*waited 0.2 s"):
            async with lease(device, 0.2, tmp_path):
                pytest.fail("two holders")
        waiting = asyncio.create_task(_hold(device, tmp_path))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    assert await waiting == "held"


async def _hold(device, folder):
    async with lease(device, 5.0, folder):
        return "held"


async def test_a_lease_dies_with_its_holder(tmp_path):
    """A process that is killed lets go."""
    code = f"""
        import fcntl, os, sys, time
        f = os.open({str(lease_path(cpu_device(), tmp_path))!r}, os.O_RDWR | os.O_CREAT)
        fcntl.flock(f, fcntl.LOCK_EX)
        print("held", flush=True)
        time.sleep(60)
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(code), stdout=subprocess.PIPE
    )
    assert await process.stdout.readline() == b"held\n"
    with pytest.raises(EnvironmentFault, match="in use by another process"):
        async with lease(cpu_device(), 0.1, tmp_path):
            pass
    process.kill()
    await process.wait()
    async with lease(cpu_device(), 2.0, tmp_path):
        pass


def test_lease_files_are_by_device(tmp_path):
    """GPUs by UUID, so that renumbering changes nothing; every user may take part."""
    assert lease_path(cuda_device(uuid="GPU-12/ab"), tmp_path).name == "forge-tui-GPU-12-ab.lease"
    assert lease_path(cuda_device(name="cuda:3"), tmp_path) == lease_path(cuda_device(), tmp_path)
    assert lease_path(cpu_device(), tmp_path) != lease_path(cuda_device(), tmp_path)
    asyncio.run(_hold(cpu_device(), tmp_path))
    assert lease_path(cpu_device(), tmp_path).stat().st_mode & 0o777 == 0o666


async def test_a_lease_that_cannot_be_opened_is_said(tmp_path):
    """A folder that is not there gives a sentence."""
    with pytest.raises(EnvironmentFault, match="cannot be"):
        async with lease(cpu_device(), 0.1, tmp_path / "none"):
            pass


# ---- scratch


def test_scratch_is_private_and_goes(tmp_path):
    """Only the user can enter it; closing removes it."""
    scratch = Scratch(tmp_path)
    assert scratch.folder.stat().st_mode & 0o777 == 0o700
    with scratch.lent("a") as path:
        path.write_bytes(b"x")
        scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_swept_up(tmp_path):
    """The next owner removes the folder of one that was killed, and leaves that of one that lives."""
    code = f"""
        import time
        from pathlib import Path
        from forge_tui.evaluator.scratch import Scratch
        scratch = Scratch(Path({str(tmp_path)!r}))
        with scratch.lent("a") as path:
            path.write_bytes(b"x")
            print(scratch.folder, flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    left = Path(process.stdout.readline().strip())
    mine = Scratch(tmp_path)
    assert left.exists()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    other = Scratch(tmp_path)
    assert not left.exists()
    assert mine.folder.exists()
    mine.close()
    other.close()


def test_no_folder_is_swept_up_before_its_owner_holds_it(tmp_path, monkeypatch):
    """Another session that starts at the very moment in which a folder is made leaves it alone."""
    lock = folders.fcntl.flock

    def after_a_sweep(descriptor, how):
        if how == folders.fcntl.LOCK_EX:
            folders.sweep("mine-", tmp_path)
        lock(descriptor, how)

    monkeypatch.setattr(folders.fcntl, "flock", after_a_sweep)
    own = folders.OwnFolder("mine-", tmp_path)
    folders.sweep("mine-", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [own.path.name]
    own.close()
    assert list(tmp_path.iterdir()) == []
