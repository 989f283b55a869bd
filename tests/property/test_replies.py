"""Replies of many forms, each with what is expected of it in a file beside it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.core.errors import ContractError
from forge_tui.core.records import Language
from forge_tui.proposers.edits import Edit, apply, find
from forge_tui.proposers.parse import ENTRY, parse_reply

FOLDER = Path(__file__).parents[1] / "replies"
SOURCE = (FOLDER / "softmax.cu").read_text()
CASES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def reply(name: str) -> str:
    """The text as a client hands it on."""
    return (FOLDER / f"{name}.txt").read_bytes().decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", CASES)
def test_a_reply_is_read_as_expected(name: str) -> None:
    """The source by its hash and the names of its kernels, or the failure in words; the family; what was changed."""
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    base = (FOLDER / expected["base"]).read_text() if "base" in expected else ""
    found = parse_reply(reply(name), expected["language"], expected["finish"], base)
    assert found.failure == expected.get("failure", "")
    assert found.family == expected["family"]
    if "sha256" in expected:
        assert found.source is not None
        assert hashlib.sha256(found.source.encode()).hexdigest() == expected["sha256"], found.source
        assert [entry for entry in expected["entries"] if f"{entry}(FORGE_PARAMS)" not in found.source] == []
        assert len(found.notes) == expected["notes"]
    else:
        assert found.source is None


def test_the_corpus_is_whole() -> None:
    """At least sixty replies, each with its expectation, good and bad ones, in both languages."""
    expected = [json.loads((FOLDER / f"{name}.json").read_text()) for name in CASES]
    assert len(expected) >= 60
    assert sum("failure" in e for e in expected) >= 15
    assert min(sum(e["language"] == language for e in expected) for language in ENTRY) >= 25


@given(st.sampled_from(CASES), st.integers(0, 2**32), st.sampled_from(["stop", "length", "", "content_filter"]))
def test_damaged_replies_are_read(name: str, seed: int, finish: str) -> None:
    """Pieces cut out, doubled, moved and swapped between replies: nothing raises, and the outcome is a whole one."""
    rng = random.Random(seed)
    text = reply(name)
    other = reply(rng.choice(CASES))
    for _ in range(rng.randrange(1, 6)):
        a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        piece = rng.choice([text[a:b], other[a:b], "```\n", "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n",
                            "<think>", "</think>", "{", "}", "\r", '"""', "\ud800", "//@launch", "“"])  # fmt: skip
        text = rng.choice([text[:a] + text[b:], text[:a] + piece + text[a:], piece, text[:b]])
    for language in ENTRY:
        base = (FOLDER / ("norm.cpp" if language == "cpp" else "softmax.cu")).read_text()
        found = parse_reply(text, language, finish, rng.choice(["", base]))
        assert (found.source is None) == bool(found.failure)
        assert found.source is None or ENTRY[language].search(found.source)


lines = st.lists(st.sampled_from(["a", "b", "  a", "", "c {", "}", "=====", "<<<<<", "x = 1;"]), max_size=12)


@given(lines, st.data())
def test_an_edit_replaces_its_lines_alone(base: list[str], data: st.DataObject) -> None:
    """Where a part is there once, its lines become the others and the rest stays; else the source is not touched."""
    start = data.draw(st.integers(0, len(base)))
    end = data.draw(st.integers(start, len(base)))
    new = data.draw(lines)
    old = base[start:end]
    made = apply("\n".join(base), (Edit(search=tuple(old), replace=tuple(new)),))
    if made.source is None:
        assert made.failure
        return
    times = sum(base[i:i + len(old)] == old for i in range(len(base) - len(old) + 1))
    assert times == 1 or "".join(old).strip()
    if times == 1 and old and old[0].strip() and old[-1].strip():
        assert made.source == "\n".join([*base[:start], *new, *base[end:]])


@given(lines, lines)
def test_edits_are_found_as_written(search: list[str], replace: list[str]) -> None:
    """What stands between the marks comes back line by line, unless it holds marks of its own."""
    marks = ("=====", "<<<<<")
    search, replace = ([line for line in part if line not in marks] for part in (search, replace))
    text = "\n".join(["talk", "<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE", "talk"])
    found = find(text)
    assert found.edits == (Edit(search=tuple(search), replace=tuple(replace)),)
    assert not found.open
    assert find(text.rpartition(">>>>>>>")[0]).open


def test_what_is_read_of_a_kernel_without_a_launch_can_be_repaired() -> None:
    """The source goes on to the contract, whose sentence a repair is told."""
    from forge_tui.contract import plan
    from forge_tui.core.records import Device
    from forge_tui.search import simulate

    name = next(name for name in CASES if name.endswith("no_launch_directive"))
    language: Language = "cuda"
    source = parse_reply(reply(name), language).source
    assert source is not None
    with pytest.raises(ContractError, match="no `//@launch` directive, so nothing would run"):
        plan.make(source, simulate.target("t"), Device(name="cuda:0", model="m", arch="sm_90a"), {})


@pytest.mark.parametrize("piece", [
    "<code>\n", "<think>", "<think>a</think>", "/*", "<pre></code>", "*_", "```\n", "<<<<<<< SEARCH\n=======\n",
    '"""', "{",
    "family: ", "> ", "// ...", " ", "\n", "\t\n ", "<pre> ", "```  ", "- ", "# include ", "1 | \n", "@@ ", "<",
    "&lt;", "\\", "'", "I can't ", "//@launch ",
])  # fmt: skip
def test_no_reply_takes_long_to_read(piece: str) -> None:
    """A flood of anything is read in time that grows with its length: a hang here would stop the whole search."""
    flood = piece * (60_000 // len(piece))
    inside = f"```cuda\n//@launch\nFORGE_PARAMS __global__ <<<\n{flood}\n```\n"
    texts = [flood, f"<pre>{flood}", inside, f"```{flood}`"]
    for text in texts:
        found = parse_reply(text, "cuda", "stop", SOURCE)
        assert (found.source is None) == bool(found.failure)
