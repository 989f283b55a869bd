"""How an evaluation ends, as it is gathered stage by stage, and the sentences for candidates that did not end well."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from forge_tui.core.records import Built, Verdict
from forge_tui.evaluator.sandbox import FORGED


class Ended(Exception):
    """Carries the verdict out of a stage."""

    def __init__(self, verdict: Verdict, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.log = log


class Outcome:
    """What is known of an evaluation so far."""

    def __init__(self, built: Built) -> None:
        self.fields: dict[str, Any] = {
            "verdict": Verdict.INFRA, "compile_s": built.compile_s, "sha256": built.sha256,
            "resources": built.resources,
        }  # fmt: skip
        self.waited_s = 0.0
        """Seconds in which another candidate had the device, or a runner was started."""

    @contextlib.contextmanager
    def spending(self, name: str) -> Iterator[None]:
        """Note the seconds of a stage."""
        started, waited = time.monotonic(), self.waited_s
        try:
            yield
        finally:
            spent = time.monotonic() - started - (self.waited_s - waited)
            self.fields[name] = self.fields.get(name, 0.0) + spent


def no_end(doing: str, limit_s: float) -> str:
    """The sentence for a stage that outlasted its limit."""
    return f"It did not end within {limit_s:.0f} s while it was {doing}; does it loop for ever?"


_SIGNALS = {
    "SIGSEGV": "a memory access outside of its buffers, or too deep a stack",
    "SIGBUS": "a memory access outside of its buffers",
    "SIGFPE": "an integer division by zero",
    "SIGABRT": "it called abort, or the C library found its memory damaged",
    "SIGILL": "an instruction that this CPU does not have, or unreachable code",
    "SIGSYS": "a system call that kernels may not make",
    "SIGKILL": "it was killed, most likely for the memory it took",
    "SIGXFSZ": "it wrote a file",
}


def crash(how: str, doing: str) -> str:
    """The sentence for a candidate that took its process or its context along; `how` is a signal, code or error."""
    if how == FORGED:
        return f"While it was {doing}, it wrote into the channel that its results come through."
    if how.startswith("exit code"):
        return f"It ended the process ({how}) while it was {doing}."
    known = _SIGNALS.get(how)
    return f"It crashed with {how} while it was {doing}{f': {known}' if known else ''}."
