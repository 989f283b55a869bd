"""Our reading of a source against g++'s own preprocessor: what is code, and what is quoted or a comment."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from forge_tui.contract.source import read
from forge_tui.core.errors import ContractError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PIECES = [
    "EVIL", "EVIL", "EVIL", " ", " ", "\n", "\n", "\n", '"', "'", "\\\n", "\\ \n", 'R"(', ')"', 'R"x(', ')x"',
    'u8R"(', "/*", "*/", "//", "/", "*", "1", "a", "R", "u8", "L", "0x1p", ".5", "e+", "\t", "(", ")", "\r\n", "%:",
    "$", "é", '"EVIL"', '"a\\\n"', 'R"(EVIL\n)"', 'R"(a\\)"', 'R"q(EVIL)" )q"', "// EVIL \\\n EVIL \n",
    "/* EVIL */", "/\\\n* EVIL */", "'a'", "1'0", "1'a'", 'L"EVIL"', 'fooR"("', "E\\\nVIL", "\\\nEVIL",
    'R\\\n"(EVIL)"', "\\\\", '\\"',
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_the_compiler_finds_a_word_exactly_where_we_do(seed):
    """A macro is expanded as often as the word is a name for us, in every source that both accept."""
    rng = random.Random(seed)
    compared = 0
    while compared < 40:
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(3, 22)))
        try:
            source = read(text)
        except ContractError:
            continue
        done = subprocess.run(
            ["g++", "-E", "-P", "-w", "-std=c++17", "-DEVIL=HIT_TOKEN", "-x", "c++", "-"],
            input=source.text.encode(), capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            continue
        compared += 1
        ours = sum(token.kind == "name" and token.text == "EVIL" for token in source.code)
        assert done.stdout.decode().count("HIT_TOKEN") == ours, repr(text)
