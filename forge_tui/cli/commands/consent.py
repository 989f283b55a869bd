"""`consent`: to which hosts a person agreed, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence

from forge_tui.cli import consent as kept
from forge_tui.cli import output
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import workspace_for


def consent(*, workspace: str | None, withdraw: Sequence[str], as_json: bool) -> int:
    """List the hosts with the time of each consent, after withdrawing some; returns the exit code."""
    place = workspace_for(None, workspace)
    hosts = kept.withdraw(place, withdraw) if withdraw else kept.consented(place)
    if as_json:
        output.document({"workspace": str(place.root), "hosts": hosts, "withdrawn": list(withdraw)})
    elif hosts:
        output.text("\n".join(f"{host}  since {at}" for host, at in hosts.items()))
    else:
        output.note(f"Nothing of {place.root} goes to another machine unasked.")
    return int(ExitCode.OK)
