"""What goes to stdout and stderr, and how."""

import io
import json
import math
import sys

import pytest

from forge_tui.cli import output
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Evaluation, Verdict
from forge_tui.report.table import Column, render


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Each test may write one document."""
    monkeypatch.setattr(output, "_written", False)


class Stream(io.StringIO):
    """A stream with an encoding, which may fail."""

    def __init__(self, encoding="utf-8", error=None):
        super().__init__()
        self._encoding, self._error = encoding, error

    @property
    def encoding(self):
        return self._encoding

    def write(self, text):
        if self._error:
            raise self._error
        text.encode(self._encoding)
        return super().write(text)


def test_document_takes_records_and_has_no_bare_nan(capsys):
    """Records become objects; NaN and infinity, which JSON has not, become null."""
    output.document({"at": math.nan, "evaluation": Evaluation(verdict=Verdict.FASTER, speedup=math.inf)})
    out = capsys.readouterr().out
    assert out.endswith("}\n")
    read = json.loads(out, parse_constant=lambda text: pytest.fail(text))
    assert read["at"] is None
    assert (read["evaluation"]["verdict"], read["evaluation"]["speedup"]) == ("faster", None)


def test_half_a_surrogate_pair(capsys):
    """A path whose bytes are no UTF-8, as the system hands it over, is written with escapes, in records too."""
    output.document({"caf\udce9": [Evaluation(verdict=Verdict.INFRA, reason="no file caf\udce9", speedup=math.nan)]})
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["caf\\udce9"]
    assert (found["caf\\udce9"][0]["reason"], found["caf\\udce9"][0]["speedup"]) == ("no file caf\\udce9", None)


def test_only_one_document(capsys):
    """A second document is a bug, and is not printed."""
    output.document([1])
    with pytest.raises(AssertionError):
        output.document([2])
    assert capsys.readouterr().out == "[\n  1\n]\n"


def test_characters_that_the_locale_has_not(monkeypatch):
    """Text in a Latin-1 or ASCII locale is written with escapes instead of failing."""
    for encoding, expected in (("ascii", "caf\\xe9 \\u2713\n"), ("latin-1", "caf\xe9 \\u2713\n")):
        stream = Stream(encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        output.text("caf\xe9 \u2713\n\n")
        assert stream.getvalue() == expected


def test_stderr_that_is_gone_does_not_matter(monkeypatch):
    """Progress to a closed or broken stderr is dropped; stdout's faults are faults."""
    for broken in (None, Stream(error=BrokenPipeError()), Stream(error=OSError(5, "Input/output error"))):
        monkeypatch.setattr(sys, "stderr", broken)
        output.note("still here")
    monkeypatch.setattr(sys, "stdout", Stream(error=OSError(28, "No space left on device")))
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        output.text("x")
    monkeypatch.setattr(sys, "stdout", Stream(error=BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        output.text("x")
    monkeypatch.setattr(sys, "stdout", None)
    output.text("nowhere")


def test_table_is_aligned_and_cut():
    """Columns are as wide as their content, numbers stand right, long cells and lines are cut."""
    columns = [Column("name", 8), Column("n", right=True), Column("why")]
    rows = [("  inner", "1", "a\x1bb"), ("a very long name", "100", "because of it")]
    assert render(columns, rows).splitlines() == [
        "name        n  why",
        "----------------------------",
        "  inner     1  a?b",
        "a very..  100  because of it",
    ]
    assert [len(line) for line in render(columns, rows, 20).splitlines()] == [18, 20, 18, 20]
