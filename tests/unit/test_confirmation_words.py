"""Confirmations, sanitizers and the compiler's figures as reports, `check` and the screen say them."""

import contextlib

import msgspec
import store_fixture as fixture

from forge_tui.cli.commands.check import _as_document, _as_text
from forge_tui.core.events import Kind
from forge_tui.core.records import Confirmation, Event, Verdict
from forge_tui.engine.check import Checked
from forge_tui.report import text
from forge_tui.report.build import run_report
from forge_tui.report.format import confirmation_lines, resource_lines
from forge_tui.store.codec import standing
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store
from forge_tui.tui.glyphs import ASCII
from forge_tui.tui.panes.events import describe
from forge_tui.tui.panes.kernel import confirmation_words
from forge_tui.tui.panes.tree import _confirmed

HELD = Confirmation(verdict=Verdict.FASTER, speedup=1.8, speedup_ci=(1.75, 1.85), sanitised=("memcheck", "initcheck"))
PARTLY = msgspec.structs.replace(HELD, unsanitised="Racecheck did not end within 150 s.")
NOT_AT_ALL = msgspec.structs.replace(PARTLY, sanitised=(), unsanitised="compute-sanitizer was not found.")
FAILED = Confirmation(verdict=Verdict.REJECTED, reason="On fresh inputs: wrong.")
RESOURCES = {"rows": {"registers": 62, "spill_bytes": 16, "spill_store_bytes": 8, "spill_load_bytes": 8,
                      "stack_bytes": 32, "smem_bytes": 4096}, "none": {}}  # fmt: skip


def test_lines_of_reports():
    """What held, by how much, under which passes; what is missing is called unsanitised with its reason."""
    first = "confirmed in fresh processes: 1.800x, 95% interval 1.750-1.850"
    assert confirmation_lines(HELD) == [first, "sanitised: memcheck, initcheck"]
    assert confirmation_lines(PARTLY) == [
        first, "unsanitised (but for memcheck, initcheck): Racecheck did not end within 150 s.",
    ]  # fmt: skip
    assert confirmation_lines(NOT_AT_ALL) == [first, "unsanitised: compute-sanitizer was not found."]
    assert confirmation_lines(None) == []
    assert confirmation_lines(FAILED) == ["not confirmed"]
    ours = Confirmation(verdict=Verdict.INFRA, reason="It could not be made: no memory.")
    assert confirmation_lines(ours) == ["not confirmed: It could not be made: no memory."]
    assert resource_lines(RESOURCES) == ["rows: 62 registers, 16 B spilled, 4096 B shared, 32 B stack"]


def test_the_screen_says_the_same():
    """A word in the tree, lines in the kernel's notes, a line among the events."""
    node = fixture.node(1, evaluation=standing(fixture.faster(2.0), HELD))
    assert _confirmed(node) == "confirmed"
    assert _confirmed(fixture.node(1, evaluation=standing(fixture.faster(2.0), PARTLY))) == "confirmed!"
    assert _confirmed(fixture.node(1, evaluation=standing(fixture.faster(2.0), FAILED))) == ""
    assert _confirmed(fixture.node(1)) == ""
    assert confirmation_words(PARTLY)[1:] == [
        "Sanitised: memcheck, initcheck.", "Unsanitised: Racecheck did not end within 150 s.",
    ]  # fmt: skip
    assert confirmation_words(FAILED) == ["Not confirmed, rejected: On fresh inputs: wrong."]
    event = Event(id=1, session="s", at=0.0, kind=Kind.NODE_CONFIRMED, data={
        "node": 3, "target": "t", "verdict": "faster", "reason": "", "speedup": 1.8, "unsanitised": "No tool.",
    })  # fmt: skip
    line = describe(event, {"t": "norm"}, ASCII)
    assert (line.kind, line.node) == ("once more", 3)
    assert "norm" in line.text
    assert line.text.endswith(", unsanitised: No tool.")


def test_check_prints_figures_confirmation_and_counters():
    """Text and document hold what the compiler said, what the confirmation came to, and counters or why not."""
    target = fixture.targets()[0]
    evaluation = msgspec.structs.replace(standing(fixture.faster(2.0), PARTLY), resources=RESOURCES)
    checked = Checked(target=target, evaluation=evaluation, counters="rows: 81.5 us\n  occupancy: 44%")
    said = _as_text(checked)
    assert "  rows: 62 registers, 16 B spilled, 4096 B shared, 32 B stack\n" in said
    assert "  unsanitised (but for memcheck, initcheck): Racecheck did not end within 150 s." in said
    assert said.endswith("\n\nrows: 81.5 us\n  occupancy: 44%")
    document = _as_document(checked)
    assert (document["resources"], document["confirmation"]) == (RESOURCES, PARTLY)
    assert (document["counters"], document["no_counters"]) == (checked.counters, "")
    without = msgspec.structs.replace(checked, counters="", no_counters="ncu was not found.")
    assert _as_text(without).endswith("\n\nNo hardware counters: ncu was not found.")
    failed = msgspec.structs.replace(checked, evaluation=standing(fixture.faster(2.0), FAILED))
    assert _as_text(failed).splitlines()[:2] == [
        f"{target.name}: rejected", "  In the final confirmation: On fresh inputs: wrong.",
    ]  # fmt: skip
    assert "2.000x" not in _as_text(failed)


def test_the_table_marks_what_no_sanitizer_saw(tmp_path):
    """Below the target's line stands why its kernel is unsanitised."""
    workspace, name = fixture.finished(tmp_path)
    with contextlib.closing(Store.open(workspace)) as store:
        store.confirm(name, 3, NOT_AT_ALL)
    with contextlib.closing(Reader.open(workspace)) as reader:
        rendered = text.render(run_report(reader, name)).splitlines()
    at = next(i for i, line in enumerate(rendered) if line.startswith("RMSNorm"))
    assert rendered[at + 1 : at + 3] == [
        "    confirmed in fresh processes: 1.800x", "    Unsanitised: compute-sanitizer was not found.",
    ]  # fmt: skip
