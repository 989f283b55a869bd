"""Waiting for what may hang in a library, so that Ctrl-C always ends it at once.

Threads that Python waits for at its end, as those of asyncio are, would keep a process that was interrupted alive until
a name server or a keyring gives up. These are left behind instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class _Daemons(ThreadPoolExecutor):
    """A thread for each piece of work, that nobody waits for at the end."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start it now."""
        made: Future[T] = Future()

        def work() -> None:
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(fn(*args, **kwargs))
                # whoever waits is told, whatever it was
                except BaseException as error:  # noqa: BLE001
                    made.set_exception(error)

        Thread(target=work, daemon=True).start()
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is waited for."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but that threads which hang do not keep the process.

    Raises:
        KeyboardInterrupt: it was interrupted; the coroutine was cancelled.
    """
    with asyncio.Runner(loop_factory=_loop) as runner:
        return runner.run(coroutine)


def _loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    made.set_default_executor(_Daemons())
    return made


def in_thread(work: Callable[[], T], limit_s: float) -> T:
    """The result of work that blocks.

    Raises:
        TimeoutError: it took too long, and goes on by itself.
        KeyboardInterrupt: it was interrupted.
    """
    return _Daemons().submit(work).result(limit_s)
