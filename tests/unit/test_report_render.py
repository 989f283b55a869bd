"""The report as people read it."""

import contextlib

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.core.reports import RunReport, summary
from forge_tui.report import format as form
from forge_tui.report import markdown, text
from forge_tui.report.build import details
from forge_tui.store.reader import Reader


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Report and details of a finished session."""
    workspace, name = fixture.finished(tmp_path_factory.mktemp("report"))
    with contextlib.closing(Reader.open(workspace)) as reader:
        return details(reader, name)


GOLDEN = """\
session      tiny-llm-1: done
             All 5 evaluations are used up.
model        example:tiny-llm on cpu, under eager
whole model  5.000 ms before, 4.000 ms after: 1.250x (95% 1.200-1.300)
vs compile   4.500 ms: 1.125x
outputs      largest difference to the original 2.00e-06
spent        5 evaluations, 1 min 30 s, $0.0100

target                 share    before      best speedup         95% tried  in
------------------------------------------------------------------------------
RMSNorm                36.0%  200.0 us  100.0 us   2.00x   1.75-2.25     3 yes
F.softmax              50.0%  100.0 us   80.0 us   1.25x   1.00-1.50     2  no
    the model is not faster

warning      Two calls were left out.
warning      The clock was not steady."""


def test_table_of_a_finished_session(found):
    """The table, letter for letter."""
    assert text.render(found.report) == GOLDEN


def test_table_says_what_the_confirmation_found(found):
    """Beside the speedup of the search stands the one of fresh processes."""
    best = msgspec.structs.replace(found.report.targets[0], confirmed=True, confirmed_speedup=1.5)
    rendered = text.render(msgspec.structs.replace(found.report, targets=(best,)))
    assert "    confirmed in fresh processes: 1.500x\n" in rendered + "\n"


def test_table_of_a_model_that_stays_as_it_was(found):
    """One time, and no interval of a comparison that nobody made."""
    targets = tuple(msgspec.structs.replace(t, deployed=False) for t in found.report.targets)
    report = msgspec.structs.replace(found.report, targets=targets, deployed_ms=5.0, speedup=1.0, speedup_ci=(1.0, 1.0))
    lines = text.render(report).splitlines()
    assert "whole model  5.000 ms a call, with no kernel in it" in lines
    assert "vs compile   4.500 ms: 0.900x" in lines


def test_table_fits_eighty_columns_whatever_is_in_it(found):
    """Long names, reasons and numbers are cut or wrapped; what could drive a terminal is not passed on."""
    evil = "\x1b[2Jvery long " + "word " * 60
    wide = msgspec.structs.replace(
        found.report.targets[1], name="A" * 50, why_not=evil, baseline_us=123456789.0, speedup=1234.5,
        speedup_ci=(100.0, 2000.0),
    )
    report = msgspec.structs.replace(found.report, targets=(wide,), warnings=(evil,), model="/long" * 40,
                                     stop_reason=evil, baseline_failures={"compile": evil})  # fmt: skip
    rendered = text.render(report)
    assert max(map(len, rendered.splitlines())) <= 80
    assert "\x1b" not in rendered
    assert rendered.isascii()
    assert "A" * 19 + ".." in rendered


def test_table_before_anything_is_measured(found):
    """Without measurements it says so instead of printing None."""
    report = msgspec.structs.replace(
        found.report, baseline_ms=None, deployed_ms=None, speedup=None, speedup_ci=None, max_abs_error=None,
        baselines_ms={}, targets=(), warnings=(), stop_reason="", cost_usd=0.0, cost_is_lower_bound=True,
    )
    assert text.render(report).splitlines() == [
        "session      tiny-llm-1: done",
        "model        example:tiny-llm on cpu, under eager",
        "whole model  not measured with the winners yet",
        "spent        5 evaluations, 1 min 30 s, at least $0.00",
    ]


def test_document_of_a_finished_session(found):
    """Every section is there, with the numbers worked out by hand, and the same again gives the same text."""
    document = markdown.render(found.report, found)
    assert document == markdown.render(found.report, found)
    lines = document.splitlines()
    assert lines[0] == "# example:tiny-llm on cpu: 1.250x"
    assert [line for line in lines if line.startswith("## ")] == [
        "## Summary", "## Machine", "## Baselines", "## Targets", "## Decisions", "## Best kernels", "## LLM calls",
        "## Warnings",
    ]  # fmt: skip
    norm = "| RMSNorm | bf16\\[32,128\\], bf16\\[128\\] -\\> bf16\\[32,128\\] | 9 | 36.0% | 1.500 ms "
    norm += "| 200.0 us | 100.0 us | 2.00x | 1.75-2.25 | faster | 3 | yes |"
    decision = "- **RMSNorm**: in the model, node 3, 9 calls of the model served, 0 given back. "
    decision += "The model with this kernel alone: 1.240x, 95% 1.200-1.280."
    for row in (
        norm,
        decision,
        "| speedup | 1.250x, 95% 1.200-1.300 |",
        "| speedup over the fastest baseline | 1.125x |",
        "| tolerance | 1e-4 relative: within |",
        "| model | Test CPU |",
        "| copy bandwidth | 20 GB/s |",
        "| compile | 4.500 ms | 1.125x |",
        "- **F.softmax**: not in the model. The model is not faster.",
        ("Node 3 by templates: faster, 2.00x. Idea 3. Built file: sha256 `sha-2.0`. Resources of forge\\_launch: 32 "
         "registers."),
        "| openai/some | 1 | 0 | 1000 | 400 | 200 | $0.0100 |",
        "- The clock was not steady.",
    ):
        assert row in lines
    assert lines[lines.index("### RMSNorm") + 4 :][:3] == ["```cpp", "// kernel 3", "```"]


def test_document_is_not_broken_by_foreign_text(found):
    """Marks in names, reasons and sources stay text: no broken table, no fence that ends early."""
    node = msgspec.structs.replace(found.best["RMSNorm"], source="// ```\n// ````\nint x;\n", idea="a | b\n# c <b>")
    target = msgspec.structs.replace(found.report.targets[1], name="f|g`h", why_not="line\nbreak | pipe")
    report = msgspec.structs.replace(found.report, targets=(found.report.targets[0], target))
    changed = msgspec.structs.replace(found, best={"RMSNorm": node})
    lines = markdown.render(report, changed).splitlines()
    assert "`````cpp" in lines
    assert lines.count("`````") == 1
    assert "- **f\\|g\\`h**: not in the model. Line break \\| pipe." in lines
    assert any("A \\| b # c \\<b\\>." in line for line in lines)
    rows = [line for line in lines if line.startswith(("| f\\|g", "| RMSNorm |"))]
    assert len(rows) == 2
    columns = {row.replace("\\|", "").count("|") for row in rows}
    assert columns == {13}


def test_document_of_a_session_that_only_began(found):
    """Sections without content are left out."""
    report = msgspec.structs.replace(found.report, baseline_ms=None, speedup=None, baselines_ms={}, targets=(),
                                     warnings=())  # fmt: skip
    bare = msgspec.structs.replace(found, best={}, decisions={}, deployment=None, profile=None, spending=(),
                                   session=msgspec.structs.replace(found.session, device=None))  # fmt: skip
    document = markdown.render(report, bare)
    assert document.startswith("# example:tiny-llm on cpu: not measured\n")
    assert [line for line in document.splitlines() if line.startswith("## ")] == ["## Summary"]


@pytest.mark.parametrize(("made", "expected"), [
    (form.time_us(None), "-"), (form.time_us(0.04), "0.0 us"), (form.time_us(999.94), "999.9 us"),
    (form.time_us(999.96), "1.00 ms"), (form.time_us(1_234_567), "1.23 s"), (form.time_ms(9.9994), "9.999 ms"),
    (form.time_ms(48.25), "48.2 ms"), (form.time_ms(12345), "12.3 s"), (form.times(1.005), "1.00x"),
    (form.times(250.4), "250x"), (form.money(0), "$0.00"), (form.money(0.0123), "$0.0123"),
    (form.money(12.5), "$12.50"), (form.money(1, lower_bound=True), "at least $1.00"),
    (form.duration(59.4), "59 s"), (form.duration(59.6), "1 min 00 s"),
    (form.duration(7384), "2 h 03 min"), (form.count(1, "call"), "1 call"), (form.count(0, "call"), "0 calls"),
    (form.one_line(" a\n\tb \x1b[1m"), "a b ?[1m"),
])  # fmt: skip
def test_numbers_are_written_in_fixed_forms(made, expected):
    """Units change at their limits, sums of money and times read as people write them."""
    assert made == expected


@pytest.fixture(scope="module")
def whole(found):
    """The same session with a profile of everything, on a GPU."""
    profile = summary(fixture.whole_profile())
    report = msgspec.structs.replace(found.report, profile=profile, device="cuda:0")
    return report, msgspec.structs.replace(found, report=report, profile=fixture.whole_profile())


def test_table_with_a_profile_of_everything(whole):
    """How busy the GPU is, then phases, baselines and ceilings behind the targets, in eighty columns."""
    lines = text.render(whole[0]).splitlines()
    assert "GPU busy     4.000 ms of 5.000 ms a call, idle 20.0%, 100 launches" in lines
    assert max(map(len, lines)) <= 80
    flat = [" ".join(line.split()) for line in lines]
    for line in ("decode 128 11.7 us 30.0% 7.8 us 33.3% 3", "compile 2.500 ms 2.00x 28.0 s 0.001",
                 "compile max-autotune-no-cudagraphs: it did not end within 300 s",
                 "RMSNorm 200.0 us 50.0 us failed", "together: 2 targets 1.625 ms 32.5% failed"):  # fmt: skip
        assert line in flat, line
    titles = ["Phases", "Baselines of the model", "Baselines of the targets", "What if: time saved in the whole model"]
    assert [line for line in lines if line in titles] == titles
    assert flat.index("Phases") < next(i for i, line in enumerate(flat) if line.startswith("warning"))


def test_document_with_a_profile_of_everything(whole):
    """The same as sections of the document; names with marks do not break the tables."""
    report, more = whole
    names = {"test-RMSNorm": "a|b*", "test-F.softmax": "F.softmax"}
    report = msgspec.structs.replace(report, profile=msgspec.structs.replace(report.profile, target_names=names))
    lines = markdown.render(report, more).splitlines()
    at = lines.index("## Profile")
    assert lines[at - 2].startswith("| matrix rate")
    for row in ("| of it the GPU is busy | 4.000 ms |", "| idle | 20.0% |", "| launches | 100 |",
                "| decode | 128 | 11.7 us | 30.0% | 7.8 us | 33.3% | 3 |",
                "| a\\|b\\* | 1.500 ms 30.0% | loses 250.0 us 10.0% |",
                "- Compile max-autotune-no-cudagraphs: it did not end within 300 s.",
                "### What if: time saved in the whole model"):  # fmt: skip
        assert row in lines, row


def test_report_of_the_cpu_says_nothing_of_launches(found):
    """A profile with one phase and nothing measured beside it adds no line."""
    assert found.report.profile is not None
    assert "GPU" not in text.render(found.report)
    assert "## Profile" not in markdown.render(found.report, found)


def test_profile_in_the_json_report(whole):
    """Numbers of the profile, with the names of the targets that it speaks of; without the call tree."""
    read = msgspec.json.decode(whole[0].to_json())["profile"]
    assert (read["busy_ms"], read["idle_share"], read["launches"]) == (4.0, pytest.approx(0.2), 100)
    assert [p["name"] for p in read["phases"]] == ["prefill", "decode"]
    assert read["target_names"] == {"test-RMSNorm": "RMSNorm", "test-F.softmax": "F.softmax"}
    assert "hotspots" not in read
    assert msgspec.json.decode(whole[0].to_json(), type=RunReport) == whole[0]
