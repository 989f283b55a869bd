"""`config`: what holds for `run` in this workspace, and where each value came from."""

from __future__ import annotations

from typing import Any

import msgspec

from forge_tui.cli import output, settings
from forge_tui.core import secrets
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import workspace_for


def config(*, workspace: str | None, as_json: bool) -> int:
    """Show every value with its source; returns the exit code.

    Raises:
        ConfigError: a file or a variable cannot be used.
    """
    place = workspace_for(None, workspace)
    chosen = settings.load(place)
    run = msgspec.to_builtins(chosen.run)
    values = {key: {"value": _shown(run[key]), "source": chosen.sources[key]} for key in run}
    models = {
        name: {key: {"value": _shown(msgspec.to_builtins(own)[key]), "source": source}
               for key, source in chosen.model_sources[name].items()}
        for name, own in chosen.models.items()
    }  # fmt: skip
    if as_json:
        found = [{"path": str(file), "exists": file.exists()} for file in settings.files(place)]
        output.document({"files": found, "values": values, "models": models})
        return int(ExitCode.OK)
    rows = [(key, *_pair(entry)) for key, entry in values.items()]
    rows += [(f'models."{name}".{key}', *_pair(entry)) for name, table in models.items()
             for key, entry in table.items()]  # fmt: skip
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{key:<{wide[0]}}  {value:<{wide[1]}}  {source}" for key, value, source in rows]
    here = [f"{'read' if file.exists() else 'not there'}: {file}" for file in settings.files(place)]
    output.text("\n".join([*lines, "", *here]))
    return int(ExitCode.OK)


def _pair(entry: dict[str, Any]) -> tuple[str, str]:
    value = entry["value"]
    shown = "-" if value is None or value == [] else str(value).lower() if isinstance(value, bool) else \
        " ".join(map(str, value)) if isinstance(value, list) else str(value)  # fmt: skip
    return shown, entry["source"]


def _shown(value: Any) -> Any:
    """A value without anything that looks like a key."""
    if isinstance(value, str):
        return secrets.masked(value)
    return [_shown(part) for part in value] if isinstance(value, (list, tuple)) else value
