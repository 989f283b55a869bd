"""A reply that was cut off, asked for once more: with more room where the model has it, else from where it ended."""

from __future__ import annotations

from typing import Any

#: of what the first reply could have
FACTOR = 2
#: a prefix of this many characters says that a continuation began anew
_SAME = 40

GO_ON = ("Your reply was cut off. Go on exactly where it ended, in the middle of a line if need be: no greeting, "
         "nothing twice, no new fence.")  # fmt: skip


#: how providers say that a reply had no room left; a server that says nothing may mean it
_CUT = ("length", "max_tokens", "")


def cut(finish: str) -> bool:
    """Whether a reply that looks cut off may be: who says `stop` has said all."""
    return finish in _CUT


def request(asked: dict[str, Any], text: str, most: int | None) -> dict[str, Any]:
    """The request that follows one whose reply ended at `max_tokens`; `most` is what the model can send at all.

    With more room the same is asked. Where the model has no more, or nobody knows, it is asked to go on behind its own
    text: a server refuses more than it has.
    """
    had = int(asked["max_tokens"])
    if most is None:
        # without any text there is nothing to go on from
        most = had if text.strip() else had * FACTOR
    room = min(had * FACTOR, most)
    if room > had or not text.strip():
        return asked | {"max_tokens": max(room, had)}
    said = [{"role": "assistant", "content": text.rstrip()}, {"role": "user", "content": GO_ON}]
    return asked | {"messages": [*asked["messages"], *said]}


def joined(asked: dict[str, Any], text: str, reply: str) -> str:
    """The whole reply after the second request."""
    if asked["messages"][-1].get("content") != GO_ON:
        return reply
    start = text.lstrip()[:_SAME]
    if len(start) == _SAME and reply.lstrip().startswith(start):
        return reply
    lines = reply.split("\n")
    if lines[0].lstrip().startswith("```") and text.count("```") % 2:
        # a fence that is still open is opened again
        lines = lines[1:]
    reply = "\n".join(lines)
    # what ends a statement ends its line, and a comment or directive may follow
    return f"{text}\n{reply}" if text.endswith((";", "{", "}")) and not reply.startswith("\n") else text + reply
