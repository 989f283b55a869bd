"""Worker processes: replies, faults, limits, and death."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from forge_tui.compiler import subprocesses
from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError, WorkerDied
from forge_tui.processes import watch
from forge_tui.processes.child import WorkerProcess
from forge_tui.processes.environment import clean_environment
from forge_tui.processes.watch import Limits

WORKER = textwrap.dedent("""
    import os, subprocess, sys, threading, time
    from forge_tui.core.errors import EnvironmentFault
    from forge_tui.processes.wire import fds_from_argv, serve

    def fault(m):
        raise EnvironmentFault("The disk is full.", "Make room.")

    def traced(m):
        raise EnvironmentFault("It failed.", "The worker's log has the traceback.")

    def bug(m):
        return 1 // 0

    def die(m):
        os.kill(os.getpid(), m["signal"])
        time.sleep(10)

    def hang(m):
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(60) # {m['mark']}"])
        print("hanging now", flush=True)
        time.sleep(60)

    serve({"echo": lambda m: {"got": m["x"]}, "fault": fault, "traced": traced, "bug": bug, "die": die, "hang": hang,
           "noise": lambda m: print("noise on stdout") or {"pid": os.getpid()},
           "hog": lambda m: (lambda held: time.sleep(30))(bytearray(600 << 20)),
           "spawn": lambda m: subprocess.run([sys.executable, "-c", "import time; a = bytes(range(256)) * (600 << 12); "
                                              "time.sleep(30)"]),
           "crowd": lambda m: [threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
                               for _ in range(80)] and time.sleep(30),
           "flood": lambda m: [print("x" * 99) for _ in range(9000)] and print("the end", flush=True) or {},
           "endless": lambda m: [print("x" * 99999) for _ in range(10**9)],
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


async def test_a_traceback_in_the_log_is_said_with_the_logs_name(worker, tmp_path):
    """The worker does not know its log's name; whoever asked is told it."""
    with pytest.raises(EnvironmentFault) as caught:
        await worker.request("traced", 10)
    assert caught.value.hint == f"The traceback is in {tmp_path / 'worker.log'}."


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


SECRETS = {
    "OPENAI_API_KEY": "x", "MY_TOKEN": "x", "Session_Secret": "x", "PGPASSWORD": "x", "MYSQL_PWD": "x", "DB_PASS": "x",
    "GPG_PASSPHRASE": "x", "NETRC": "/home/me/.netrc", "NPM_CONFIG__AUTH": "x", "SENTRY_DSN": "x", "AZURE_SAS": "x",
    "SLACK_WEBHOOK": "x", "DEPLOY_PAT": "x", "VAULT_ADDR": "x", "CI_JOB_JWT": "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
    "ONE": "sk-proj-abcdefghijklmnopqrstuv", "TWO": "AKIAIOSFODNN7EXAMPLE", "THREE": f"ghp_{'a1' * 18}",
    "FOUR": f"github_pat_{'a1' * 12}", "FIVE": f"hf_{'Ab' * 17}", "SIX": "glpat-abcdefghij0123456789",
    "SEVEN": "xoxb-123456789012-abcdef", "EIGHT": f"AIza{'Sy' * 18}", "NINE": "-----BEGIN RSA PRIVATE KEY-----\nMII",
    "TEN": "https://hooks.slack.com/services/T0/B0/x", "ELEVEN": f"prefix sk-ant-{'x1' * 10} suffix",
    "TWELVE": "Server=db;User=me;Password=hunter2;", "THIRTEEN": "sk_live_0123456789abcdef",
    "http_proxy": "http://me:pa/ss@proxy:3128",
}  # fmt: skip
#: what stays, and as what
KEPT = {
    "HTTPS_PROXY": ("http://me:hunter2@proxy.example:3128", "http://proxy.example:3128"),
    "ALL_PROXY": ("me:hunter2@proxy.example:3128", "proxy.example:3128"),
    "PIP_INDEX_URL": ("https://hunter2@packages.example/simple", "https://packages.example/simple"),
    "DATABASE_URL": ("postgres://me:hunter2@db/main", "postgres://db/main"),
    "NO_PROXY": ("localhost,.example", "localhost,.example"),
    "TOKENIZERS_PARALLELISM": ("false", "false"), "HF_HUB_OFFLINE": ("1", "1"), "HF_HOME": ("/data/hf", "/data/hf"),
    "CUDA_VISIBLE_DEVICES": ("MIG-1f0c8b2e-0000-5000-8000-000000000000",) * 2, "OMP_NUM_THREADS": ("2", "2"),
    "MODELS": ("/data/task-sk-1/disk-abcdefghijklmnopqrstuvwxyz", "/data/task-sk-1/disk-abcdefghijklmnopqrstuvwxyz"),
    "LANG": ("C.UTF-8", "C.UTF-8"), "PYTHON_PREFIX": ("/opt/python@3.11/bin",) * 2, "PWD": ("/work", "/work"),
}  # fmt: skip


def test_secrets_are_known_by_name_and_by_value(monkeypatch):
    """Keys of every issuer go, whatever they are called; addresses lose user and password; the rest stays as it is."""
    for name, value in (SECRETS | {name: given for name, (given, _) in KEPT.items()}).items():
        monkeypatch.setenv(name, value)
    kept = clean_environment()
    assert sorted(SECRETS.keys() & kept.keys()) == []
    assert {name: kept.get(name) for name in KEPT} == {name: value for name, (_, value) in KEPT.items()}


async def test_no_secret_is_in_what_the_system_shows_of_workers_and_compilers(worker, monkeypatch, tmp_path):
    """Neither environment nor command line, of a worker or of what a compiler is started with, has one of them."""
    for name, value in (SECRETS | {name: given for name, (given, _) in KEPT.items()}).items():
        monkeypatch.setenv(name, value)
    show = ["/bin/sh", "-c", "cat /proc/$$/environ /proc/$$/cmdline"]
    done = await subprocesses.run(show, tmp_path, timeout_s=20, memory_bytes=2**32)
    other = WorkerProcess("forge_test_worker", tmp_path / "other.log", {"PYTHONPATH": str(tmp_path)})
    await other.request("echo", 10, x=1)
    seen = Path(f"/proc/{other.pid}/environ").read_bytes() + Path(f"/proc/{other.pid}/cmdline").read_bytes()
    await other.stop()
    assert "PATH=" in done.output
    assert b"PATH=" in seen
    for text in (done.output, seen.decode()):
        assert [value for value in SECRETS.values() if len(value) > 1 and value in text] == []
        assert "hunter2" not in text


async def test_a_worker_that_takes_too_much_is_ended_and_the_next_works(tmp_path, worker):
    """More memory or threads than allowed, its children's included, ends the tree; the reason says what it was."""
    for op, limits, sentence in (
        ("hog", Limits(memory_bytes=256 << 20), "The worker took more than 0.25 GiB of memory and was ended."),
        ("spawn", Limits(memory_bytes=256 << 20), "The worker took more than 0.25 GiB of memory and was ended."),
        ("crowd", Limits(threads=40), "The worker started more than 40 threads and was ended."),
    ):
        greedy = WorkerProcess("forge_test_worker", tmp_path / "worker.log", {"PYTHONPATH": str(tmp_path)}, (), limits)
        try:
            with pytest.raises(WorkerDied) as caught:
                await greedy.request(op, 20)
            assert (caught.value.what, caught.value.signal) == (sentence, signal.SIGKILL)
            assert await greedy.request("echo", 10, x=op) == {"got": op}
        finally:
            await greedy.stop()


async def test_a_log_is_cut_to_its_end(tmp_path, worker, monkeypatch):
    """However much a worker prints, its log stays small, and what it said last is there."""
    monkeypatch.setattr(watch, "_LOG_BYTES", 100_000)
    monkeypatch.setattr(watch, "_LOG_KEPT", 10_000)
    monkeypatch.setattr(watch, "_EVERY_S", 0.02)
    assert await worker.request("flood", 20) == {}
    log = tmp_path / "worker.log"
    while log.stat().st_size > 100_000:  # noqa: ASYNC110 - the watchdog's next look
        await asyncio.sleep(0.01)
    assert worker.log_tail().endswith("the end\n")
    monkeypatch.setattr(watch, "_FLOOD_BYTES", 200_000)
    with pytest.raises(WorkerDied, match="printed more than"):
        await worker.request("endless", 20)


async def test_a_system_that_gives_no_process_is_a_fault_of_the_environment(worker, monkeypatch):
    """No bug, which would end a session; the next request finds a worker."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/none/python")
        with pytest.raises(EnvironmentFault, match="The worker forge_test_worker could not be started: No such file"):
            await worker.request("echo", 5, x=1)
    assert await worker.request("echo", 5, x=1) == {"got": 1}


async def test_no_descriptor_is_left_open(worker):
    """Twenty starts and stops leave the number of open descriptors as it was."""
    await worker.request("echo", 10, x=0)
    await worker.stop()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await worker.request("echo", 10, x=0)
        await worker.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
