"""Names: of operations, and of kernel parameters (placeholders until the source is complete)."""

from __future__ import annotations

import re

from forge_tui.contract import facts, header
from forge_tui.core.records import GraphNode, Language, Signature, TensorSpec

_PLACEHOLDER = re.compile(r"\bparameter_(\d+)_\b")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_BODY = re.compile(r"\(FORGE_PARAMS\) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


def op_name(node: GraphNode) -> str:
    """`mul` for `aten.mul.Tensor`."""
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def placeholder(number: int) -> str:
    """What an input is called until the source is complete."""
    return f"parameter_{number}_"


def with_names(source: str, signature: Signature, language: Language) -> str:
    """The source with the real names of inputs; a name that the source uses for something else gets an alias.

    Outputs keep their names: out0, out1, ...
    """
    parameters = facts.parameters(signature)
    inputs = [name for name, _, is_output in parameters if not is_output]
    used = set(_WORD.findall(source))
    clash = {number for number, name in enumerate(inputs) if name in used}
    if clash:
        source = _BODY.sub(lambda match: _aliased(match, parameters, clash, language), source)
    return _PLACEHOLDER.sub(lambda match: match[0] if int(match[1]) in clash else inputs[int(match[1])], source)


def _aliased(
    match: re.Match[str], parameters: list[tuple[str, TensorSpec, bool]], clash: set[int], language: Language
) -> str:
    lines = []
    for number in sorted(clash):
        name, spec, _ = parameters[number]
        if placeholder(number) in match[1]:
            ctype = header.c_type(spec.dtype, language)
            lines.append(f"    const {ctype}* __restrict__ {placeholder(number)} = {name};")
    # a block of its own, where names of parameters may be used again
    body = "".join("    " + line + "\n" if not line.startswith("#") else line + "\n" for line in match[1].splitlines())
    last = "    return 0;\n"
    tail = ""
    if body.endswith("    " + last):
        body, tail = body.removesuffix("    " + last), last
    aliases = "".join(line + "\n" for line in lines)
    return f"(FORGE_PARAMS) {{\n{aliases}    {{\n{body}    }}\n{tail}}}"
