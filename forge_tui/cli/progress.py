"""Progress as plain lines: one line for each thing that happened, for logs and pipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forge_tui.core.events import Kind
from forge_tui.core.records import Event, Verdict
from forge_tui.core.words import count
from forge_tui.store.reader import Reader


class ProgressLines:
    """Follows a session's events and says each in one line."""

    def __init__(self, reader: Reader, session: str, say: Callable[[str], None]) -> None:
        self._reader = reader
        self._session = session
        self._say = say
        self._seen = 0
        self._names: dict[str, str] = {}
        self._evaluated = 0

    def poll(self) -> None:
        """Say what is new."""
        for event in self._reader.events(self._session, self._seen):
            self._seen = event.id
            line = self._line(event)
            if line:
                self._say(line)

    def _line(self, event: Event) -> str:
        data = event.data
        match event.kind:
            case Kind.STATE:
                return self._state(data)
            case Kind.PROFILED:
                return f"profiled  {data['model_ms']:.2f} ms a call, {count(data['targets'], 'target')}"
            case Kind.TARGET_OPENED:
                self._names[data["target"]] = data["name"]
                if not data["usable"]:
                    return f"target    {data['name']}: left out, {data['reason']}"
                return f"target    {data['name']}: {data['eager_us']:.1f} us in PyTorch" if data["eager_us"] else ""
            case Kind.NODE_EVALUATED:
                return self._evaluation(data)
            case Kind.NODE_CONFIRMED:
                # one that failed is told by a warning
                name = self._names.get(data["target"], data["target"])
                value = f" {data['speedup']:.2f}x" if data.get("speedup") else ""
                return f"confirmed node {data['node']} of {name}{value}" if data["verdict"] == Verdict.FASTER else ""
            case Kind.PROPOSAL_FAILED:
                return f"proposer  {data['proposer']}: {data['reason']}"
            case Kind.DEPLOY_DECISION:
                name = self._names.get(data["target"], data["target"])
                return f"deploy    {name}: {'in' if data['deployed'] else 'out, ' + data['why_not']}"
            case Kind.DEPLOYED:
                return f"model     {data['baseline_ms']:.2f} ms to {data['deployed_ms']:.2f} ms, {data['speedup']:.3f}x"
            case Kind.LOG | Kind.ISOLATION | Kind.PAUSED:
                return f"{data['level']:<9} {data['text']}"
        return ""

    def _state(self, data: dict[str, Any]) -> str:
        return f"state     {data['state']}" + (f": {data['text']}" if data.get("text") else "")

    def _evaluation(self, data: dict[str, Any]) -> str:
        self._evaluated += 1
        name = self._names.get(data["target"], data["target"])
        speedup = f" {data['speedup']:.2f}x" if data.get("speedup") else ""
        reason = f": {data['reason']}" if data.get("reason") else ""
        return f"node {data['node']:<4} {name}: {data['verdict']}{speedup}{reason}"
