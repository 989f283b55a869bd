"""A person's own templates rendered in a process of their own, which is short of time and memory.

`python -m forge_tui.proposers.renderer FOLDER...` answers one JSON document a line: `{"name", "values"}` by
`{"text"}`, `{"names"}` by `{"referred", "worked_out"}`, both by `{"what", "hint"}` where a template does not work.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from forge_tui.core.errors import ConfigError
from forge_tui.processes.environment import clean_environment
from forge_tui.proposers.templating import HINT, Templates, UnendingError

#: processor time of one section; then the time in which a library call may end that Python does not interrupt
MOST_CPU_S, GRACE_CPU_S = 1.0, 2
#: seconds of a busy machine
LIMIT_S = 10.0
_MEMORY_BYTES = 1 << 29


class Renderer:
    """The process, started at the first request and again after one that it did not survive."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._argv = [sys.executable, "-m", __name__, *map(str, folders)]
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def render(self, name: str, values: Mapping[str, Any], path: Path | None) -> str:
        """The text of one template, which lies at `path`.

        Raises:
            ConfigError: it does not work, or not within its limits.
        """
        return str(self._ask({"name": name, "values": values}, path or Path(name))["text"])

    def referred(self, names: list[str], path: Path) -> tuple[set[str], bool]:
        """What these templates include, and whether one works a name out; one of them lies at `path`.

        Raises:
            ConfigError: one cannot be read, or is no template.
        """
        found = self._ask({"names": names}, path)
        return set(found["referred"]), found["worked_out"]

    def close(self) -> None:
        """End the process."""
        self._process = None
        if self._end is not None:
            self._end()

    def _ask(self, request: dict[str, Any], path: Path) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        try:
            # one that somebody else ended is no fault of a template
            answer = self._answer(line) or self._answer(line)
        except OSError as error:
            raise ConfigError(f"The prompt template {path} cannot be rendered: {error.strerror or error}.") from error
        if not answer:
            what = f"The prompt template {path}, or what it includes, takes too much time or memory."
            raise ConfigError(what, HINT)
        found: dict[str, Any] = json.loads(answer)
        if "what" in found:
            raise ConfigError(found["what"], found["hint"])
        return found

    def _answer(self, line: bytes) -> bytes:
        """What the process says; empty where it ended instead, or had to be ended."""
        answer = _exchange(self._started(), line, time.monotonic() + LIMIT_S)
        if not answer.endswith(b"\n"):
            self.close()
            return b""
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=clean_environment(), start_new_session=True, bufsize=0,
            )  # fmt: skip
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
            self._process, self._end = process, weakref.finalize(self, _kill, process)
        return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _exchange(process: subprocess.Popen[bytes], request: bytes, until: float) -> bytes:
    """The answer's line; less than a line where the process or its time ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    there, back = process.stdin.fileno(), process.stdout.fileno()
    left, answer = memoryview(request), bytearray()
    poll = select.poll()
    poll.register(back, select.POLLIN)
    poll.register(there, select.POLLOUT)
    while not answer.endswith(b"\n"):
        ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1e3))
        if not ready:
            break
        if there in ready:
            try:
                left = left[os.write(there, left):]
            except BrokenPipeError:
                break
            if not left:
                poll.unregister(there)
        if back in ready:
            part = os.read(back, 1 << 20)
            if not part:
                break
            answer += part
    return bytes(answer)


# ---- the process


def main(argv: list[str]) -> int:
    """Answer requests until the end of stdin; returns the exit code."""
    _limit(resource.RLIMIT_AS, _MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPROF, _too_long)
    templates = Templates(tuple(map(Path, argv)))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # where Python is not asked, the system ends it
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + MOST_CPU_S) + GRACE_CPU_S)
        reply = json.dumps(_answer(templates, request)).encode()
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _answer(templates: Templates, request: dict[str, Any]) -> dict[str, Any]:
    try:
        # again and again: a library may swallow the first one
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S, MOST_CPU_S / 4)
        try:
            if "names" in request:
                referred, worked_out = templates.referred(request["names"])
                return {"referred": sorted(referred), "worked_out": worked_out}
            return {"text": templates.render(request["name"], request["values"])}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    except ConfigError as error:
        return {"what": error.what, "hint": error.hint}
    except UnendingError as error:
        # in the moment between
        return {"what": f"A prompt template cannot be used: {error}.", "hint": HINT}


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _too_long(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise UnendingError(f"it is not done after {MOST_CPU_S:g} s")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
