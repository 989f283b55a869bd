"""Worker processes: replies, faults, limits, and death."""

import os
import signal
import textwrap
from pathlib import Path

import psutil
import pytest

from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError, WorkerDied
from forge_tui.processes.child import WorkerProcess
from forge_tui.processes.environment import clean_environment

WORKER = textwrap.dedent("""
    import os, subprocess, sys, time
    from forge_tui.core.errors import EnvironmentFault
    from forge_tui.processes.wire import fds_from_argv, serve

    def fault(m):
        raise EnvironmentFault("The disk is full.", "Make room.")

    def bug(m):
        return 1 // 0

    def die(m):
        os.kill(os.getpid(), m["signal"])
        time.sleep(10)

    def hang(m):
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(60) # {m['mark']}"])
        print("hanging now", flush=True)
        time.sleep(60)

    serve({"echo": lambda m: {"got": m["x"]}, "fault": fault, "bug": bug, "die": die, "hang": hang,
           "noise": lambda m: print("noise on stdout") or {"pid": os.getpid()},
           "environment": lambda m: dict(os.environ)}, *fds_from_argv(sys.argv))
""")


@pytest.fixture
async def worker(tmp_path, monkeypatch):
    """A worker of the module above."""
    (tmp_path / "forge_test_worker.py").write_text(WORKER)
    monkeypatch.setenv("MY_API_KEY", "hidden")
    process = WorkerProcess("forge_test_worker", tmp_path / "worker.log", {"PYTHONPATH": str(tmp_path)})
    yield process
    await process.stop()


async def test_replies_come_back_whatever_the_worker_prints(worker):
    """Standard output belongs to libraries; replies travel elsewhere, also large ones."""
    assert (await worker.request("noise", 10))["pid"] == worker.pid
    big = "x" * 3_000_000
    assert await worker.request("echo", 10, x=big) == {"got": big}
    assert "noise on stdout" in worker.log_tail()


async def test_a_fault_keeps_its_class_sentence_and_hint(worker):
    """A ForgeError of the worker is raised as the same error here, and the worker lives on."""
    with pytest.raises(EnvironmentFault) as caught:
        await worker.request("fault", 10)
    assert (caught.value.what, caught.value.hint) == ("The disk is full.", "Make room.")
    assert await worker.request("echo", 10, x=1) == {"got": 1}


async def test_a_bug_is_a_bug(worker):
    """Any other exception arrives with exit code 1 and its name."""
    with pytest.raises(ForgeError, match="ZeroDivisionError") as caught:
        await worker.request("bug", 10)
    assert caught.value.exit_code is ExitCode.BUG


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
async def test_death_is_told_by_signal_and_the_next_request_gets_a_new_worker(worker, number):
    """A worker that dies raises WorkerDied with its signal; the next request works."""
    with pytest.raises(WorkerDied) as caught:
        await worker.request("die", 10, signal=int(number))
    assert caught.value.signal == number
    assert not caught.value.timed_out
    assert await worker.request("echo", 10, x=2) == {"got": 2}


async def test_a_hang_is_killed_with_everything_it_started(worker):
    """The limit ends the worker and its children; nothing is left running."""
    mark = f"forge-mark-{os.getpid()}"
    with pytest.raises(WorkerDied) as caught:
        await worker.request("hang", 2.5, mark=mark)
    assert caught.value.timed_out
    assert "hanging now" in caught.value.log
    left = [p for p in psutil.process_iter(["cmdline"]) if any(mark in c for c in p.info["cmdline"] or [])]
    assert left == []


async def test_secrets_do_not_reach_a_worker(worker):
    """Keys of the caller's environment are not in the worker's."""
    environment = await worker.request("environment", 10)
    assert "MY_API_KEY" not in environment
    assert environment["PATH"] == os.environ["PATH"]


def test_what_counts_as_a_secret(monkeypatch):
    """Names that look like credentials go, ordinary ones stay."""
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "AWS_PROFILE", "DB_PASSWORD", "SSH_AUTH_SOCK", "GH_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    kept = clean_environment({"EXTRA": "1"})
    assert not {"OPENAI_API_KEY", "HF_TOKEN", "AWS_PROFILE", "DB_PASSWORD", "SSH_AUTH_SOCK", "GH_TOKEN"} & set(kept)
    assert kept["CUDA_VISIBLE_DEVICES"] == "1"
    assert kept["EXTRA"] == "1"


async def test_no_descriptor_is_left_open(worker):
    """Twenty starts and stops leave the number of open descriptors as it was."""
    await worker.request("echo", 10, x=0)
    await worker.stop()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await worker.request("echo", 10, x=0)
        await worker.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
