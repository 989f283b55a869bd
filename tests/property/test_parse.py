"""Reading a model's reply: never a crash, the right block, nothing cut off."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_tui.proposers.parse import CUT_THOUGH_DONE, ENTRY, clean, parse_reply

CPP = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
CUDA = '//@launch k grid=1 block=32\n#include "forge_target.h"\nextern "C" __global__ void k(FORGE_PARAMS) {\n}\n'
HEAD = "family: one pass\nhypothesis: reads memory once\n"

pieces = st.lists(
    st.sampled_from(["```", "````", "~~~", "```cpp\n", "\n", "\r\n", "\r", "<kernel>\n", "</kernel>", "forge_launch",
                     "__global__", "{", "}", "family:", "hypothesis: *x*", '#include "forge_target.h"\n', "\u200b",
                     "\ufe0f", "\x00", "\ud800", " ", "text", CPP, CUDA]) | st.text(max_size=8),
    max_size=25,
).map("".join)  # fmt: skip


@example("forge_launch```cpp\n#include \"forge_target.h\"\n", "cpp", "stop")
@given(pieces | st.text(), st.sampled_from(["cuda", "cpp"]), st.sampled_from(["stop", "length", "", "max_tokens", "?"]))
def test_any_text_is_read(text: str, language: str, reason: str) -> None:
    """Nothing raises; a source holds an entry and no invisible characters; without one there is a failure."""
    reply = parse_reply(text, language, reason)
    if reply.source is None:
        assert reply.failure
    else:
        assert not reply.failure
        assert ENTRY[language].search(reply.source)
        assert clean(reply.source) == reply.source
        assert reason not in ("length", "max_tokens")
    assert len(reply.family) <= 300
    assert len(reply.hypothesis) <= 300


@given(st.text(), st.sampled_from(["cuda", "cpp"]))
def test_a_well_formed_reply_survives_talk_around_it(talk: str, language: str) -> None:
    """Talk without fences before the block does not change the source."""
    talk = talk.replace("`", "").replace("~", "").replace("family", "").replace("hypothesis", "")
    source = CUDA if language == "cuda" else CPP
    reply = parse_reply(f"{talk}\n{HEAD}```{language}\n{source}```\n", language, "stop")
    assert reply.source == source
    assert (reply.family, reply.hypothesis) == ("one pass", "reads memory once")


def test_the_last_whole_kernel_is_taken() -> None:
    """Several blocks: the one with an entry, the last of them, one with the header before one without."""
    snippet = "for (;;) forge_launch;"
    text = f"{HEAD}```cpp\nint helper;\n```\n```cpp\n{CPP}```\nor\n```cpp\n{CPP}// final\n```\n```\n{snippet}\n```"
    assert parse_reply(text, "cpp").source == CPP + "// final\n"


def test_the_other_languages_entry_does_not_count() -> None:
    """A CUDA kernel is no answer to a request for C++."""
    reply = parse_reply(f"```\n{CUDA}```", "cpp", "stop")
    assert reply.source is None
    assert reply.failure == "The reply is a kernel for CUDA, which is not what was asked for."


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
def test_a_cut_reply_is_truncated(reason: str) -> None:
    """A reply that hit its limit is never taken, whole blocks or not."""
    assert parse_reply(f"```cpp\n{CPP}```", "cpp", reason).failure == "truncated"
    assert parse_reply("", "cpp", reason).failure == "truncated"


@pytest.mark.parametrize("end", ["", "\n    /* sums", "\n    if (x) {"])
def test_an_open_block_is_truncated_unless_the_kernel_is_whole(end: str) -> None:
    """A missing last fence is forgiven where all is closed; else it is a cut only if the provider says nothing."""
    cut = "```cpp\n" + CPP[:-3] + end
    assert parse_reply(cut, "cpp", "").failure == "truncated"
    assert parse_reply(cut, "cpp", "stop").failure == CUT_THOUGH_DONE
    assert parse_reply("```cpp\n" + CPP, "cpp", "stop").source == CPP
    assert parse_reply("```cpp\n" + CPP, "cpp", "").source == CPP


def test_tags_are_read_where_there_are_no_fences() -> None:
    """Some models prefer tags."""
    assert parse_reply(f"{HEAD}<kernel>\n{CPP}</kernel>", "cpp").source == CPP


def test_a_bare_source_is_taken_only_if_it_looks_like_one() -> None:
    """Without a block the whole reply must hold entry and header; talk before it goes."""
    assert parse_reply(HEAD + "Here it is:\n" + CPP, "cpp").source == CPP
    assert parse_reply("I would write forge_launch with a loop.", "cpp").failure == "The reply has no code block."
    assert parse_reply("", "cpp").failure == "empty"


def test_header_lines_in_odd_dress() -> None:
    """Bold, bullets and comments inside the source are read; the first one counts."""
    reply = parse_reply(f"- **Family:** warp rows\n**hypothesis**: *fast*\nfamily: two\n```\n{CUDA}```", "cuda")
    assert (reply.family, reply.hypothesis) == ("warp rows", "fast")
    inside = parse_reply(f"```\n// family: inner\n{CPP}```", "cpp")
    assert inside.family == "inner"


def test_invisible_characters_go() -> None:
    """Zero-width characters, variation selectors and odd spaces do not reach the compiler."""
    dirty = CPP.replace("return 0", "re\u200bturn\u00a00\ufe0f").replace("\n", "\r\n")
    assert parse_reply(f"```cpp\n{dirty}```", "cpp").source == CPP


def test_longer_fences_hold_shorter_ones() -> None:
    """A block fenced by four marks may hold three."""
    body = CPP + "// ```\n// text\n"
    assert parse_reply(f"````cpp\n{body}````", "cpp").source == body
