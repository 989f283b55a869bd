"""The identity of a candidate: equal where the compiled kernel would be."""

from __future__ import annotations

import hashlib
import json

from forge_tui.contract import directives
from forge_tui.contract.source import read


def source_key(source: str, tunables: dict[str, int]) -> str:
    """Hash of the source's code, launches, workspace and chosen tunables; comments, blanks and line ends do not count.

    Raises:
        ContractError: the source or its directives cannot be read.
    """
    taken = read(source)
    plan = directives.parse_source(taken)
    hash_lines = {line.line: " ".join(line.text.split()) for line in taken.hash_lines}
    code: list[str] = []
    for token in taken.tokens:
        if not token.directive:
            code.append(token.text)
        elif token.directive in hash_lines:
            # as text: blanks have a meaning there, `#define F(x)` is not `#define F (x)`
            code.append(f"\n{hash_lines.pop(token.directive)}\n")
    document = {
        "code": code,
        "launches": [
            [_bare(launch.kernel, *launch.grid), _bare(*launch.block), _bare(launch.smem),
             _bare(*(launch.cluster or ())), launch.cooperative]
            for launch in plan.launches
        ],
        "workspace": [_bare(plan.workspace.bytes), plan.workspace.zero] if plan.workspace else None,
        "tunables": plan.chosen(tunables),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _bare(*texts: str) -> list[str]:
    return ["".join(text.split()) for text in texts]
