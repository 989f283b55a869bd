"""Prompts of a session that came into the inbox, said to who follows its progress as lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from forge_tui.proposers.desk import Desk
from forge_tui.report.format import one_line

_TICK_NS = 10**9


class InboxNews:
    """Says each open prompt of a session once."""

    def __init__(self, desk: Desk, session: str, say: Callable[[str], None], flag: str = "") -> None:
        """`flag` is what the named commands need to find the workspace."""
        self._desk = desk
        self._session = session
        self._say = say
        self._flag = flag
        self._changed = 0
        self._said: set[int] = set()

    def poll(self) -> None:
        """Say what is new; cheap where nothing is."""
        try:
            changed = self._desk.folder.stat().st_mtime_ns
        except OSError:
            return
        # within one tick of the file system's clock more may come
        if changed == self._changed and time.time_ns() - changed > _TICK_NS:
            return
        self._changed = changed
        for entry in self._desk.entries():
            if entry.session != self._session or entry.number in self._said or self._desk.state(entry) != "open":
                continue
            self._said.add(entry.number)
            show, reply = (f"forge-tui inbox {verb} {entry.number}" for verb in ("show", "reply"))
            self._say(f"inbox     prompt {entry.number} ({entry.edge} of {one_line(entry.target)}) waits for you: "
                      f"{show}{self._flag}, then {reply} FILE{self._flag}")  # fmt: skip
