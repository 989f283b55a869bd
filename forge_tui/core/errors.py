"""The one exception tree for faults that a person can do something about.

An expected outcome (a kernel that does not compile, a wrong result) is a value, see `records.Verdict`. A bug is any
other exception. Only what is below reaches the user as a sentence and an exit code.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; documented in the README."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    ENVIRONMENT = 4
    NO_GAIN = 5
    KERNEL_NOT_RIGHT = 6
    INTERRUPTED = 130


#: the hint of an error whose traceback a worker wrote to its log; whoever started the worker says which file that is
TRACEBACK_IN_LOG = "The worker's log has the traceback."


class ForgeError(Exception):
    """A fault with one sentence of what happened and one of what to do.

    `what` and `hint` are whole sentences. `exit_code` is what the command line returns.
    """

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, what: str, hint: str = "", *, exit_code: ExitCode | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.what} {self.hint}".strip()


class UsageError(ForgeError):
    """The command line, or the model file it names, is not usable as given."""

    exit_code = ExitCode.USAGE


class ModelError(UsageError):
    """The model could not be built, or its forward raised."""


class ConfigError(ForgeError):
    """A configuration file or value is wrong."""

    exit_code = ExitCode.CONFIG


class EnvironmentFault(ForgeError):
    """Something on this machine is missing or full: compiler, GPU, disk, permission."""

    exit_code = ExitCode.ENVIRONMENT


class StoreError(EnvironmentFault):
    """The workspace's database cannot be used: not writable, full, newer, damaged."""


class ContractError(ForgeError):
    """A kernel source breaks the kernel contract; becomes the verdict `refused`."""

    exit_code = ExitCode.KERNEL_NOT_RIGHT


class WorkerDied(ForgeError):
    """A worker process ended without a reply.

    `signal` is the signal that ended it, or None. `timed_out` says that the limit ended it.
    """

    def __init__(self, what: str, *, signal: int | None = None, timed_out: bool = False, log: str = "") -> None:
        super().__init__(what)
        self.signal = signal
        self.timed_out = timed_out
        self.log = log
