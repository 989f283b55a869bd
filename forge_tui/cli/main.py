"""The entry point: every end of the program is a sentence and an exit code.

Typer only parses: commands come back as calls, which are made here, so that no library decides what an interrupt or
a closed pipe means. Nothing is imported before `main` can answer an interrupt.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: 128 + SIGPIPE, what a shell reports of a program that a closed pipe ended
PIPE_CLOSED = 141
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code and never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        return _interrupted(given)
    except BrokenPipeError:
        from forge_tui.cli import output

        output.silence()
        return PIPE_CLOSED
    except SystemExit as error:
        # typer's own, and a model file's
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _fault(given, error)


def _run(given: list[str]) -> int:
    from forge_tui.cli.app import parse

    call = parse(given)
    if isinstance(call, int):
        return call
    from forge_tui.proposers import keys

    # what is in the file of keys is shown and kept by no command
    keys.learn()
    return call()


def _fault(given: list[str], error: Exception) -> int:
    from forge_tui.core.errors import ForgeError

    if os.environ.get("FORGE_TUI_DEBUG") == "1":
        import traceback

        from forge_tui.core import secrets

        sys.stderr.write(secrets.masked(traceback.format_exc()))
    if isinstance(error, ForgeError):
        return _end(given, error.what, error.hint, int(error.exit_code))
    return _bug(given, error)


def _bug(given: list[str], error: Exception) -> int:
    from forge_tui.cli.crash import write_crash_log
    from forge_tui.core import secrets
    from forge_tui.core.errors import ExitCode

    path = write_crash_log(error, given)
    what = secrets.masked(" ".join(f"{type(error).__name__}: {error}".split()))
    hint = f"This is a bug; the details are in {path}." if path else "This is a bug; no log of it could be written."
    return _end(given, what if what.endswith(".") else what + ".", hint, int(ExitCode.BUG))


def _end(given: list[str], what: str, hint: str, exit_code: int) -> int:
    from forge_tui.cli import output

    output.note(f"forge-tui: {what} {hint}".rstrip())
    if "--json" in given:
        output.error_document(what, hint, exit_code)
    return exit_code


def _interrupted(given: list[str]) -> int:
    import signal

    # a second Ctrl-C must not tear the ending apart
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _end(given, "Interrupted.", "", _INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, before)
