"""Textual bindings made from the registry."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from forge_tui.tui.actions import for_scope


def bindings_for(*scopes: str, priority: bool = False) -> list[BindingType]:
    """One binding for each action of the scopes; each runs `app.act(id)`."""
    return [
        Binding(",".join(action.keys), f"app.act('{action.id}')", action.label, id=action.id, show=False,
                priority=priority)
        for action in for_scope(*scopes)
    ]  # fmt: skip
