"""`profile` on the command line: tables, CSV, JSON, the trace, and what may go wrong with them."""

import csv
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.cli import main, output
from forge_tui.cli.profile_csv import COLUMNS, as_csv
from forge_tui.cli.profile_trace import trace_document, write_trace
from forge_tui.cli.profile_view import CallTree, Choice, as_text
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.profiles import Baseline, Hotspot, Profile, TargetBaselines, WhatIf, short_kernel
from forge_tui.engine.rooms import WorkerRooms
from forge_tui.report.table import Column, render


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Each test may write one document, in a folder of its own."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rooms(monkeypatch, tmp_path):
    """A model file, and rooms that take what they are told for its profile; counts what was measured."""
    (tmp_path / "model.py").write_text("def build(): ...\n")
    found = fixture.whole_profile(baselines=(), what_ifs=(), target_baselines=())
    asked = {"profile": 0, "baselines": [], "what_if": [], "found": found}

    async def profile(self):
        asked["profile"] += 1
        asked["options"] = self.options
        # one whose captures exist, as they would
        return msgspec.structs.replace(asked["found"], warnings=("A \x1b[2Jwarning.",))

    async def baselines(self, found, ids, *, allow_tf32, on_progress):
        asked["baselines"].append((list(ids), allow_tf32))
        on_progress("timed eager")
        whole = fixture.whole_profile()
        rows = tuple(TargetBaselines(target_id=key, baselines=whole.target_baselines[0].baselines) for key in ids)
        return msgspec.structs.replace(found, baselines=whole.baselines, target_baselines=rows)

    async def what_if(self, found, ids, *, on_progress):
        asked["what_if"].append(list(ids))
        sets = [(key,) for key in ids] + ([tuple(ids)] if len(ids) > 1 else [])
        rows = tuple(WhatIf(mode="eager", target_ids=one, ms=4.0, base_ms=5.0) for one in sets)
        return msgspec.structs.replace(found, what_ifs=rows)

    monkeypatch.setattr(WorkerRooms, "profile", profile)
    monkeypatch.setattr(WorkerRooms, "baselines", baselines, raising=False)
    monkeypatch.setattr(WorkerRooms, "what_if", what_if, raising=False)
    return asked


def run(*arguments):
    """The exit code of `profile model.py` with these options on the CPU."""
    output._written = False
    return main.main(["profile", "model.py", "--device", "cpu", *arguments])


# ---- tables


def test_table_on_the_cpu():
    """The tree is indented, longest first; targets are ranked by headroom; nothing is said of launches."""
    lines = as_text(fixture.profile(), "example:tiny-llm").splitlines()
    assert lines[0] == "example:tiny-llm on cpu (Test CPU): 5.000 ms a call"
    assert lines[1] == "1.50x the time while profiled; two passes agree on 100% of the longest callables"
    assert lines[3].split("  ")[0] == "where the time goes"
    assert "launches" not in lines[3]
    assert [line.split()[0] for line in lines[5:8]] == ["TinyLLM", "RMSNorm", "softmax"]
    assert lines[5].endswith("the whole model")
    assert lines[6].startswith("  RMSNorm")
    assert lines[6].split()[1:] == ["9", "1.800", "ms", "1.800", "ms", "36.0%", "-", "1.500", "ms", "-", "RMSNorm"]
    norm, softmax = lines[lines.index("Targets") + 4 :][:2]
    assert norm.split()[:8] == ["RMSNorm", "9", "200.0", "us", "33.0", "us", "16.5%", "36.0%"]
    assert norm.endswith("bf16[32,128], bf16[128] -> bf16[32,128]")
    assert softmax.startswith("F.softmax")


def test_table_on_a_gpu_with_everything():
    """Busy and idle time, phases, floors, kernels by name over all callables, baselines, ceilings with `together`."""
    text = as_text(fixture.whole_profile(), "m")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == ("GPU busy 4.000 ms, idle 20.0% of the time; 100 launches; 1.50x the time while profiled; "
                        "two passes agree on 90% of the longest callables")  # fmt: skip
    for line in (
        "prefill 1 3.500 ms 70.0% 3.000 ms 14.3% 60",
        "decode 128 11.7 us 30.0% 7.8 us 33.3% 3",
        "RMSNorm 9 1.800 ms 1.800 ms 45.0% 2.000 ms 63 16.7% 1.500 ms memory RMSNorm",
        "linear 4 0.950 ms 0.950 ms 23.8% 0.400 ms 4 94.7% - compute a vendor library does this near its floor",
        "pow_kernel<float> 40 1.000 ms 25.0% RMSNorm",
        "compile 2.500 ms 2.00x 28.0 s 0.001",
        "compile max-autotune-no-cudagraphs failed - - -",
        "compile max-autotune-no-cudagraphs: it did not end within 300 s",
        "RMSNorm 200.0 us 50.0 us failed",
        "RMSNorm, graph: capture failed",
        "nothing: the model as it is 5.000 ms 2.500 ms",
        "RMSNorm 1.500 ms 30.0% loses 250.0 us 10.0%",
        "F.softmax 125.0 us 2.5% -",
        "together: 2 targets 1.625 ms 32.5% failed",
        "together, torch.compile: it broke",
    ):
        assert line in lines, line
    order = [text.index(f"\n{title}\n") for title in ("Phases", "Targets", "Kernels", "Baselines of the model",
                                                      "Baselines of the targets")]  # fmt: skip
    assert order == sorted(order)
    assert "seq=1|32" in text


@pytest.mark.parametrize(("others", "said"), [(0.2, False), (1.3, True)])
def test_table_says_that_others_were_busy(others, said):
    """Times of a busy CPU are marked, at every later look too."""
    found = fixture.profile(others=others)
    device = msgspec.structs.replace(found.device, cores=2, threads=2)
    text = as_text(msgspec.structs.replace(found, device=device), "m.py")
    assert ("other processes used 1.3 of 2 cores" in text) == said
    assert msgspec.json.decode(msgspec.json.encode(found))["others"] == others


def test_table_without_targets_says_so():
    """A model without targets has a tree and a sentence."""
    text = as_text(fixture.profile(targets=()), "m.py")
    assert text.splitlines()[-1].startswith("There is no target that a kernel could replace. What the model's forward ")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_table_fits_the_terminal(width):
    """At every width lines fit, whatever the names hold; the name and the time are always there."""
    evil = "\x1b[2J" + "very_long_name" * 20
    found = fixture.whole_profile()
    spots = tuple(msgspec.structs.replace(s, name=evil, reason=evil, signature=evil) for s in found.hotspots)
    for profile in (found, msgspec.structs.replace(found, hotspots=spots)):
        text = as_text(profile, evil, width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
        assert "total" in text
    assert ("% floor" in as_text(found, "m", width)) == (width >= 80)
    assert ("launches  % floor" in as_text(found, "m", width)) == (width >= 132)


def test_small_models_are_shown_in_microseconds():
    """Of a model of 0.05 ms three digits of milliseconds would show nothing; one unit for the whole column."""
    spots = (Hotspot(id=1, parent=None, name="M", kind="model", path="", calls=1, total_ms=0.05, self_ms=0.0004,
                     share=1.0),)  # fmt: skip
    text = as_text(fixture.profile(model_ms=0.05, hotspots=spots, targets=()), "m")
    assert "50.0 us  0.4 us" in " ".join(text.split("\n")[5].split(" "))


def test_what_if_without_a_difference_and_of_one_target():
    """A change within the noise is none; one target has no sum line."""
    same = (WhatIf(mode="graph", target_ids=("test-RMSNorm",), ms=4.9999, base_ms=5.0),)
    text = as_text(fixture.whole_profile(what_ifs=same), "m")
    assert " ".join(text.splitlines()[-1].split()) == "RMSNorm none"
    assert "together" not in text
    assert same[0].gain_ms == pytest.approx(0.0001)


def test_small_rows_are_hidden_and_counted():
    """What takes less than half a percent is left out with a sentence, and shown with --all."""
    tiny = Hotspot(id=9, parent=1, name="tiny", kind="torch", path="", calls=1, total_ms=0.001, self_ms=0.001,
                   share=0.0002, reason="too small")  # fmt: skip
    profile = fixture.profile(hotspots=(*fixture.profile().hotspots, tiny))
    text = as_text(profile, "m")
    assert "1 callable not shown, below 0.5% of the largest; --all shows them." in text
    assert "tiny" not in text
    assert "tiny" in as_text(profile, "m", choice=Choice(everything=True))
    assert "tiny" in as_text(profile, "m", choice=Choice("calls")), "it has as many calls as others"


def test_limit_keeps_the_largest_with_their_parents():
    """By headroom the one row is RMSNorm, below the phase and the model that call it."""
    tree = CallTree(fixture.whole_profile().hotspots)
    assert [(d, s.name) for d, s in tree.rows(Choice("headroom", 1))] == [(0, "TinyLLM"), (1, "prefill"),
                                                                         (2, "RMSNorm")]  # fmt: skip
    assert [s.name for _, s in tree.rows(Choice("calls", everything=True))] == [
        "TinyLLM", "decode", "softmax", "prefill", "RMSNorm", "linear"
    ]  # fmt: skip
    text = as_text(fixture.whole_profile(), "m", choice=Choice("headroom", 1))
    assert "3 callables not shown." in text
    assert "1 more with less headroom." in text
    assert "1 more that take less." in text


def test_deep_and_broken_trees_are_shown():
    """Ten thousand levels do not recurse; a parent that is missing makes a root; no hotspots make no rows."""
    deep = [Hotspot(id=i, parent=i - 1 if i else None, name=f"n{i}", kind="module", path="", calls=1, total_ms=1.0,
                    self_ms=0.0, share=1.0) for i in range(10_000)]  # fmt: skip
    assert [d for d, _ in CallTree(deep).rows(Choice())] == list(range(10_000))
    orphan = msgspec.structs.replace(deep[5], parent=77_777)
    assert [(d, s.id) for d, s in CallTree([orphan]).rows(Choice())] == [(0, 5)]
    assert CallTree(()).rows(Choice("self", 3)) == []
    assert "where the time goes" in as_text(fixture.profile(hotspots=(), targets=()), "m", 80)
    assert len(trace_document(fixture.profile(hotspots=tuple(deep)), "m")["traceEvents"]) == 10_003
    assert as_csv(fixture.profile(hotspots=tuple(deep)), Choice(), ranked=False).count("\r\n") == 10_001


@pytest.mark.parametrize(("name", "short"), [
    ("void at::native::(anonymous namespace)::cat<int, 4>(int*, char)", "cat<int, 4>"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::f(at::It&)::{lambda(float)#1}>(int, T)",
     "vectorized_elementwise_kernel<4, f(at::It&)::{lambda(float)#1}>"),
    ("triton_poi_fused_0", "triton_poi_fused_0"), ("sm90_gemm_bf16", "sm90_gemm_bf16"), ("()", "()"), ("", ""),
    ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
])  # fmt: skip
def test_kernel_names_are_shortened(name, short):
    """Return type, arguments and PyTorch's namespaces go; what is not C++ stays."""
    assert short_kernel(name) == short


def test_columns_go_by_priority_and_text_is_cut_first():
    """Elastic columns give before others are left out; what may not go is cut at the line's end."""
    columns = [Column("name", least=6), Column("a", right=True, drop=2), Column("b", right=True, drop=1),
               Column("why", 30, least=5)]  # fmt: skip
    rows = [("a_rather_long_name", "1234", "56789", "because of that")]
    assert render(columns, rows).splitlines()[2] == "a_rather_long_name  1234  56789  because of that"
    assert render(columns, rows, 40).splitlines()[2] == "a_rather_lo..  1234  56789  because of.."
    assert render(columns, rows, 20).splitlines()[2] == "a_ra..  56789  bec.."
    assert render(columns, rows, 12).splitlines()[2] == "a_ra..  be.."
    assert [len(line) <= 5 for line in render(columns, rows, 5).splitlines()] == [True] * 3
    assert render(columns, []).splitlines()[0] == "name  a  b  why"


# ---- CSV


def test_csv_reads_back():
    """One row a hotspot under documented names, lines as RFC 4180 has them, any text in the cells."""
    evil = 'a,"b"\nc;\td'
    found = fixture.whole_profile()
    spots = (*found.hotspots[:-1], msgspec.structs.replace(found.hotspots[-1], name=evil, reason=evil))
    text = as_csv(msgspec.structs.replace(found, hotspots=spots), Choice(), ranked=False)
    assert text.endswith("\r\n")
    assert text.splitlines()[0] == ",".join(COLUMNS)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    norm = rows[2]
    assert (norm["name"], norm["parent"], norm["depth"], norm["kind"]) == ("RMSNorm", "2", "2", "module")
    assert (float(norm["total_ms"]), float(norm["headroom_ms"]), norm["target"]) == (1.8, 1.5, "RMSNorm")
    assert float(norm["floor_share"]) == pytest.approx(0.3 / 1.8)
    assert rows[0]["parent"] == ""
    assert rows[1]["floor_ms"] == rows[1]["floor_share"] == "", "not known"
    assert (rows[5]["name"], rows[5]["reason"]) == (evil, evil)


def test_csv_can_be_ranked_and_cut():
    """With --sort rows are in order of size; --limit keeps the first."""
    text = as_csv(fixture.whole_profile(), Choice("self", 2), ranked=True)
    assert [row["name"] for row in csv.DictReader(io.StringIO(text, newline=""))] == ["RMSNorm", "linear"]


# ---- the trace


def assert_trace(document, spots):
    """Chrome's format: complete events with whole fields, named tracks, slices that nest exactly."""
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    tracks = {}
    for event in document["traceEvents"]:
        assert set(event) >= {"ph", "pid", "tid", "name", "args", "ts"}
        assert event["ph"] in ("X", "M")
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            continue
        assert isinstance(event["name"], str)
        assert event["name"]
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks.setdefault(event["tid"], []).append(event)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    for events in tracks.values():
        assert len(events) == spots
        stack = []
        last = 0
        for event in events:
            start, end = round(1e3 * event["ts"]), round(1e3 * event["ts"]) + round(1e3 * event["dur"])
            assert start >= last or event["dur"] == 0, "in order"
            last = start
            while stack and start >= stack[-1] and end > stack[-1]:
                stack.pop()
            assert not stack or end <= stack[-1], "within the parent"
            stack.append(end)
    return tracks


def test_trace_nests_with_all_that_is_known():
    """GPU and host time are tracks of their own; a slice is as long as its callable's time, with its numbers."""
    document = trace_document(fixture.whole_profile(), "m")
    tracks = assert_trace(document, 6)
    names = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert names == {1: "GPU time", 2: "host time"}
    by_name = {event["name"]: event for event in tracks[1]}
    assert (by_name["TinyLLM"]["ts"], by_name["TinyLLM"]["dur"]) == (0.0, 4000.0)
    assert (by_name["RMSNorm"]["ts"], by_name["RMSNorm"]["dur"]) == (0.0, 1800.0)
    assert (by_name["linear"]["ts"], by_name["decode"]["ts"]) == (1800.0, 3000.0)
    shown = by_name["RMSNorm"]["args"]
    assert (shown["launches"], shown["headroom_ms"], shown["floor reached"], shown["target"]) == (63, 1.5, "16.7%",
                                                                                                "RMSNorm")  # fmt: skip
    assert by_name["RMSNorm"]["cat"] == "module"
    assert {event["name"]: event for event in tracks[2]}["RMSNorm"]["dur"] == 2000.0


def test_trace_shortens_children_that_overlap():
    """Children that sum to more than their parent (overlap, rounding, NaN) still nest; the numbers stay true."""
    def spot(number, parent, ms):
        return Hotspot(id=number, parent=parent, name=f"n{number}", kind="module", path="", calls=1, total_ms=ms,
                       self_ms=0, share=1)  # fmt: skip

    spots = (spot(1, None, 1.0), spot(2, 1, 0.9), spot(3, 1, 0.9), spot(4, 2, float("nan")), spot(5, 2, -1.0),
             spot(6, 3, 1e9 / 3), spot(7, None, 0.5))  # fmt: skip
    document = trace_document(fixture.profile(hotspots=spots[:3] + spots[4:]), "m")
    events = assert_trace(document, 6)[1]
    assert [(e["name"], e["ts"], e["dur"]) for e in events] == [
        ("n1", 0.0, 1000.0), ("n2", 0.0, 500.0), ("n5", 0.0, 0.0), ("n3", 500.0, 500.0), ("n6", 500.0, 500.0),
        ("n7", 1000.0, 500.0),
    ]  # fmt: skip
    assert next(e for e in events if e["name"] == "n2")["args"]["total_ms"] == 0.9
    with_nan = trace_document(fixture.profile(hotspots=spots), "m")
    assert len([e for e in with_nan["traceEvents"] if e["ph"] == "X"]) == 7


def test_trace_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    """A link stays a link; where the disk is full the earlier trace is kept and nothing is left beside it."""
    real = tmp_path / "real.json"
    real.write_text("earlier")
    (tmp_path / "trace.json").symlink_to(real)
    write_trace(tmp_path / "trace.json", fixture.whole_profile(), "m")
    assert (tmp_path / "trace.json").is_symlink()
    assert_trace(json.loads(real.read_text()), 6)
    before = real.read_text()

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentFault) as caught:
        write_trace(tmp_path / "trace.json", fixture.whole_profile(), "m")
    assert str(caught.value) == (
        f"The trace {tmp_path}/trace.json cannot be written: no space left on device. Name another file."
    )
    assert real.read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["real.json", "trace.json"]


def test_trace_into_a_full_device():
    """A device file is written to, not replaced; that it is full is one sentence."""
    with pytest.raises(EnvironmentFault, match="The trace /dev/full cannot be written: no space left on device"):
        write_trace(Path("/dev/full"), fixture.profile(), "m")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(("place", "code", "sentence"), [
    ("folder", 2, "folder is a folder. Name a file for --trace, such as trace.json."),
    ("nowhere/t.json", 2, "There is no folder nowhere for the trace."),
    ("/proc/t.json", 4, "The trace /proc/t.json cannot be written: "),
])  # fmt: skip
def test_trace_that_cannot_be_written_is_said(rooms, tmp_path, capsys, place, code, sentence):
    """What can be known before is said before anything is measured."""
    (tmp_path / "folder").mkdir()
    assert run("--trace", place) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    if code == 2:
        assert rooms["profile"] == 0


# ---- the command


def test_forms_of_output(rooms, capsys):
    """Table by default, the record as JSON, rows as CSV; stdout holds nothing else, warnings are made harmless."""
    assert run() == 0
    out, err = capsys.readouterr()
    assert out.startswith("model.py on cuda:0 (Test GPU): 5.000 ms a call\n")
    assert err.splitlines() == ["Profiling model.py on cpu ...", "warning: A ?[2Jwarning."]
    assert run("--table") == 0
    again, err = capsys.readouterr()
    assert again == out
    assert err.startswith("Reused the saved profile: nothing has changed since. --fresh measures again.\n")
    assert run("--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Profile).hotspots == rooms["found"].hotspots
    assert run("--csv", "--sort", "headroom", "--limit", "1", "--trace", "t.json") == 0
    out, err = capsys.readouterr()
    assert out.split("\r\n")[1].startswith("3,2,2,module,RMSNorm,")
    assert "Wrote t.json; it opens in" in err
    assert_trace(json.loads(Path("t.json").read_text()), 6)
    assert rooms["profile"] == 1
    assert run("--fresh") == 0
    assert rooms["profile"] == 2


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--json", "--csv"], "--table, --json and --csv exclude each other"), (["--sort", "name"], "'--sort'"),
    (["--limit", "-1"], "'--limit'"), (["--top", "0"], "'--top'"), (["--capture-gb", "nan"], "'--capture-gb'"),
    (["--capture-gb", "-1"], "'--capture-gb'"), (["--capture-gb", "x"], "'--capture-gb'"),
])  # fmt: skip
def test_options_that_make_no_sense(rooms, capsys, arguments, sentence):
    """Exit code 2 and one sentence on stderr, before anything runs."""
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert rooms["profile"] == 0


def test_capture_size_reaches_the_profile(rooms):
    """GiB on the command line are bytes in the options, and another size is another profile."""
    assert run("--capture-gb", "0.5") == 0
    assert rooms["options"].capture_bytes == 1 << 29
    assert run() == 0
    assert (rooms["profile"], rooms["options"].capture_bytes) == (2, 2 << 30)


def test_measurements_are_added_and_kept(rooms, capsys):
    """Baselines and ceilings go into the saved profile; what is there is not measured again, more targets are."""
    norm, softmax = "test-RMSNorm", "test-F.softmax"
    assert run("--baselines", "--top", "1") == 0
    assert "timed eager" in capsys.readouterr().err
    assert run("--what-if", "--tf32") == 0
    assert rooms["baselines"] == [([norm], False)]
    assert rooms["what_if"] == [[norm, softmax]]
    assert run("--json") == 0
    kept = msgspec.json.decode(capsys.readouterr().out.partition("{")[2].join(["{", ""]), type=Profile)
    assert [b.name for b in kept.baselines][:2] == ["eager", "compile"]
    assert len(kept.what_ifs) == 3
    assert run("--what-if", "--baselines", "--top", "1") == 0, "all of that is there"
    assert (len(rooms["baselines"]), len(rooms["what_if"]), rooms["profile"]) == (1, 1, 1)
    assert run("--baselines", "--tf32") == 0
    assert rooms["baselines"][1:] == [([norm, softmax], True)]
    assert run("--fresh", "--what-if") == 0
    assert (rooms["profile"], rooms["what_if"][1:]) == (2, [[norm, softmax]])


def test_measurements_of_a_model_without_targets(rooms, capsys):
    """Without targets there is no ceiling to measure, and that is said; the model's own baselines are measured."""
    rooms["found"] = fixture.profile(targets=())
    assert run("--what-if", "--baselines") == 0
    assert "There is no target whose ceiling could be measured." in capsys.readouterr().err
    assert (rooms["what_if"], rooms["baselines"]) == ([], [([], False)])


def test_fault_half_way_keeps_the_profile(rooms, monkeypatch, capsys):
    """A what-if that fails is one sentence, and the profile before it is not measured again."""
    async def broken(self, found, ids, *, on_progress):
        raise EnvironmentFault("The worker died.", "The log is x.")

    monkeypatch.setattr(WorkerRooms, "what_if", broken, raising=False)
    assert run("--what-if", "--json") == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["what"] == "The worker died."
    assert err.endswith("forge-tui: The worker died. The log is x.\n")
    assert run() == 0
    assert rooms["profile"] == 1


def test_profile_that_cannot_be_saved_is_shown(rooms, monkeypatch, capsys):
    """Minutes of measuring are not lost to a full disk: the tables are printed, with a warning."""
    def full(self, text, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    Path(".forge").mkdir()
    Path(".forge/.gitignore").touch()
    assert run() == 0
    out, err = capsys.readouterr()
    assert "where the time goes" in out
    assert "warning: The profile could not be saved for the next time: No space left on device." in err


MODEL = """
import torch
from helper import scale

def build():
    torch.manual_seed(0)
    weight = float(open("weight.txt").read())
    norm = torch.nn.LayerNorm(256)
    return torch.nn.Sequential(norm, torch.nn.GELU()), (torch.randn(64, 256) * scale(weight),), {}
"""


def test_a_real_model_is_profiled_again_when_one_of_its_files_changes(tmp_path, capsys):
    """The profile names the files the model is made of: module beside it, data it read; another time changes none."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text("def scale(x): return 2 * x\n")
    (tmp_path / "weight.txt").write_text("1.5")
    assert run("--threads", "1", "--json") == 0
    profile = msgspec.json.decode(capsys.readouterr().out, type=Profile)
    assert profile.device.name == "cpu"
    assert profile.model_ms > 0
    assert any("LayerNorm" in t.name or "layer_norm" in t.name for t in profile.targets)
    assert sorted(Path(path).name for path in profile.sources) == ["helper.py", "model.py", "weight.txt"]
    assert (tmp_path / ".forge" / "artifacts" / "captures").is_dir(), "beside the model file"
    os.utime(tmp_path / "helper.py", (1, 1))
    assert run("--threads", "1") == 0
    assert "Reused the saved profile" in capsys.readouterr().err
    (tmp_path / "weight.txt").write_text("2.5")
    assert run("--threads", "1") == 0
    assert "Profiling model.py on cpu ..." in capsys.readouterr().err


def test_closed_pipe_is_quiet(rooms, tmp_path):
    """A reader that goes away ends the program without a word; a full stdout is one sentence."""
    assert run() == 0  # saved, so that the process below only prints
    code = "import sys; from forge_tui.cli.main import main; sys.exit(main(['profile', 'model.py', '--device', 'cpu']))"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, timeout=60,
                              check=False, text=True)  # fmt: skip
    finally:
        os.close(write)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (141, [])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, timeout=60,
                              check=False, text=True)  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "forge-tui: The output cannot be written: No space left on device."


def test_baselines_name_what_is_missing():
    """Ways that one target lacks are dashes, not failures."""
    rows = (
        TargetBaselines(target_id="test-RMSNorm", baselines=(Baseline(name="eager", ms=0.2),)),
        TargetBaselines(target_id="gone", baselines=(Baseline(name="compile", ms=0.1),)),
    )
    text = as_text(fixture.whole_profile(target_baselines=rows), "m")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "RMSNorm 200.0 us -" in lines
    assert "gone - 100.0 us" in lines
