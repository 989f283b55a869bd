"""The engine's log: tracebacks and messages of libraries, without keys."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

from forge_tui.core import secrets


class _Masked(logging.Formatter):
    """Clears a record, its traceback included, of keys."""

    def format(self, record: logging.LogRecord) -> str:
        return secrets.masked(super().format(record))


def keep_keys_out() -> None:
    """From now on nothing that Python or a library reports on standard error holds a key."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Masked("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # warnings can quote what they were given
    logging.captureWarnings(capture=True)
    sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if sys.stderr is not None:
        sys.stderr.write(secrets.masked("".join(traceback.format_exception(kind, error, trace))))
