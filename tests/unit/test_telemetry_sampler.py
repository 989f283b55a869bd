"""The sampling process: its lines, and that it never outlives its reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from forge_tui.tui.feed import NoFeed, SamplerFeed

ARGV = [sys.executable, "-m", "forge_tui.telemetry.sampler", "--interval", "0.25"]


def test_lines_and_end() -> None:
    """Each line is one JSON record with the host's values; closing the pipe ends the process without a word."""
    process = subprocess.Popen(ARGV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.stdout.close()
    assert process.wait(timeout=10) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    for line in lines:
        host = line["host"]
        assert 0 <= host["cpu_percent"] <= 100 * host["cores"]
        assert 0 < host["memory_used"] < host["memory_total"]
        assert isinstance(line["gpus"], list)
        assert bool(line["gpus"]) != bool(line["no_gpus"])
    assert lines[1]["at"] > lines[0]["at"]


def test_it_ends_with_its_parent() -> None:
    """If the screen is killed outright, the sampler is gone within a few intervals."""
    code = (f"import subprocess, sys, os; p = subprocess.Popen({ARGV!r}, stdout=subprocess.PIPE); "
            "p.stdout.readline(); print(p.pid, flush=True); os.kill(os.getpid(), 9)")  # fmt: skip
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    pid = int(parent.stdout)
    end = time.monotonic() + 10
    while time.monotonic() < end and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_feed_reads_and_stops() -> None:
    """The screen's side gets samples, has no trouble, and stops its child."""
    feed = SamplerFeed(0.25)
    feed.start()
    process = feed._process
    assert process is not None
    samples: list[object] = []
    end = time.monotonic() + 15
    while not samples and time.monotonic() < end:
        samples += feed.drain()
        time.sleep(0.02)
    assert samples
    assert feed.trouble() == ""
    feed.stop()
    assert process.poll() is not None


def test_a_silent_or_dead_sampler_is_said() -> None:
    """A driver that hangs and a sampler that ended are two sentences."""
    feed = SamplerFeed(1.0)
    feed._last = time.monotonic() - 12
    assert feed.trouble() == "No sample for 12 s: the driver does not answer."
    feed.start()
    process = feed._process
    assert process is not None
    process.kill()
    end = time.monotonic() + 10
    while "ended" not in feed.trouble() and time.monotonic() < end:
        time.sleep(0.02)
    assert feed.trouble() == "The sampler ended; it is started again."
    feed._ended_at = time.monotonic() - 11
    feed.drain()
    assert feed._process is not process
    assert feed.trouble() == ""
    feed.stop()
    assert NoFeed().drain() == []
