"""Every end of the program is one sentence and an honest exit code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui import __version__
from forge_tui.cli import app, main, output
from forge_tui.cli.crash import state_folder
from forge_tui.core.errors import ConfigError, ExitCode, UsageError
from forge_tui.models.spec import ModelRequest

FORGE = [sys.executable, "-m", "forge_tui"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Each test may write one document, and has a state folder of its own."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FORGE_TUI_DEBUG", raising=False)


def ending_with(monkeypatch, error):
    """A command line whose command raises."""
    def call():
        raise error

    monkeypatch.setattr(app, "parse", lambda _: call)


def forge(*arguments, **more):
    """The program in a process of its own."""
    return subprocess.run([*FORGE, *arguments], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL, **more)  # fmt: skip


def test_fault_is_a_sentence_and_its_exit_code(monkeypatch, capsys):
    """A fault prints what happened and what to do to stderr, nothing to stdout."""
    ending_with(monkeypatch, ConfigError("The theme is wrong.", "Look at line 3."))
    assert main.main(["run", "x"]) == ExitCode.CONFIG
    assert capsys.readouterr() == ("", "forge-tui: The theme is wrong. Look at line 3.\n")


def test_fault_with_json_is_one_document(monkeypatch, capsys):
    """With --json stdout has the fault as a document too."""
    ending_with(monkeypatch, UsageError("No such file.", "Check the path."))
    assert main.main(["run", "x", "--json"]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"what": "No such file.", "hint": "Check the path.", "exit_code": 2}}
    assert err == "forge-tui: No such file. Check the path.\n"


def test_fault_after_the_document_adds_no_second_one(monkeypatch, capsys):
    """What fails after the result is printed is said on stderr only."""
    def call():
        output.document({"speedup": 1.5})
        raise UsageError("Late.")

    monkeypatch.setattr(app, "parse", lambda _: call)
    assert main.main(["run", "x", "--json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out) == {"speedup": 1.5}


def test_interrupt_is_a_sentence(monkeypatch, capsys):
    """Ctrl-C ends with 130 and a word, with --json also as a document."""
    ending_with(monkeypatch, KeyboardInterrupt())
    assert main.main(["run", "x", "--json"]) == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["exit_code"] == 130
    assert err == "forge-tui: Interrupted.\n"


def test_bug_is_a_sentence_with_a_log(monkeypatch, capsys):
    """An unknown exception names a crash log in the state folder, which has the traceback and the arguments."""
    ending_with(monkeypatch, ZeroDivisionError("of\nhere"))
    assert main.main(["run", "model.py"]) == ExitCode.BUG
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("forge-tui: ZeroDivisionError: of here. This is a bug; the details are in ")
    assert err.count("\n") == 1
    path = Path(err.split("the details are in ")[1].strip().removesuffix("."))
    assert path.parent == state_folder() / "crashes"
    log = path.read_text()
    assert "Traceback (most recent call last)" in log
    assert "'run' 'model.py'" in log


def test_bug_without_a_place_for_its_log(monkeypatch, capsys, tmp_path):
    """Where no log can be written, the sentence says so."""
    ending_with(monkeypatch, ZeroDivisionError("x"))
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(blocked))
    assert main.main([]) == ExitCode.BUG
    assert "no log of it could be written" in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch, capsys):
    """FORGE_TUI_DEBUG=1 prints the traceback before the sentence."""
    monkeypatch.setenv("FORGE_TUI_DEBUG", "1")
    ending_with(monkeypatch, UsageError("No."))
    assert main.main([]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("forge-tui: No.\n")


@pytest.mark.parametrize(("arguments", "begin", "command"), [
    (["nosuch"], "No such command 'nosuch'.", ""),
    (["run"], "Missing argument 'MODEL'.", " run"),
    (["run", "m.py", "--evaluations", "0"], "Invalid value for '--evaluations': ", " run"),
    (["run", "m.py", "--evaluations", "many"], "Invalid value for '--evaluations': ", " run"),
    (["run", "m.py", "--minutes", "nan"], "Invalid value for '--minutes': ", " run"),
    (["run", "m.py", "--nosuch"], "No such option: --nosuch", " run"),
    (["report", "--json", "--markdown"], "Invalid value: --json and --markdown exclude each other.", " report"),
    (["--workspace", "x", "sessions"], "Invalid value: --workspace goes behind the command.", ""),
    (["check", "m.py", "k.cpp", "extra"], "Got unexpected extra argument", " check"),
], ids=lambda value: value if isinstance(value, str) else " ".join(value))  # fmt: skip
def test_wrong_command_line_is_a_sentence(arguments, begin, command, capsys):
    """What cannot be parsed is one line with exit code 2, without a page of usage."""
    assert main.main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert err.startswith(f"forge-tui: {begin}")
    assert err.endswith(f". See forge-tui{command} --help.\n")
    assert err.count("\n") == 1
    assert (json.loads(out)["error"]["exit_code"] == 2) if "--json" in arguments else out == ""


@pytest.mark.parametrize(("arguments", "module", "name", "expected"), [
    (["run", "m.py", "--model", "a/b", "--model", "c", "--no-templates", "--evaluations", "7", "--minutes", "1.5",
      "--usd", "2", "--gpu-rate", "3.5", "--worth", "9", "--no-transfer", "--targets", "3", "--target", "RMSNorm",
      "--start", "norm=k.cu", "--seed", "5", "--threads", "2",
      "--dtype", "bfloat16", "--api-base", "http://x", "--tools", "4", "--send-source", "module",
      "--no-compile-baseline", "--headless", "--json",
      "--detach",
      "--device", "cpu", "--workspace", "w", "--inputs", "a.pt", "--vary", "v.py:f", "--phase", "a=1", "--phase", "b=2",
      "--dynamic", "seq", "--batch", "3", "--length", "4", "--layers", "5", "--attention", "sdpa",
      "--trust-remote-code", "--capture-gb", "0.5", "--price", "a/b=1,2", "--price", "c=3,4",
      "--allow-remote"], "run", "run",
     {"model": "m.py", "models": ["a/b", "c"], "templates": False, "evaluations": 7, "minutes": 1.5, "usd": 2.0,
      "gpu_rate": 3.5, "worth": 9.0, "transfer": False, "targets": 3, "target_names": ["RMSNorm"],
      "start": [Path("norm=k.cu")], "seed": 5, "threads": 2,
      "request": ModelRequest(dtype="bfloat16", inputs="a.pt", vary="v.py:f", phases=("a=1", "b=2"), dynamic=("seq",),
                              batch=3, length=4, layers=5, attention="sdpa", remote_code=True),
      "capture_gb": 0.5, "api_base": "http://x", "tools": 4, "send_source": "module",
      "compile_baseline": False, "pace": 0.0, "headless": True,
      "as_json": True, "detach": True, "device": "cpu", "workspace": "w", "under": "eager",
      "prices": ["a/b=1,2", "c=3,4"], "allow_remote": True, "local_only": False,
      "given": frozenset({
          "model", "templates", "evaluations", "minutes", "usd", "gpu_rate", "worth", "transfer", "targets", "target",
          "start", "seed", "threads", "dtype", "api_base", "tools", "send_source",
          "compile_baseline", "headless", "as_json", "detach",
          "device", "workspace", "inputs", "vary", "phase", "dynamic", "batch", "length", "layers", "attention",
          "trust_remote_code", "capture_gb", "price", "allow_remote"})}),
    (["run", "m.py"], "run", "run",
     {"model": "m.py", "models": [], "templates": True, "evaluations": 60, "minutes": 60.0, "usd": None, "targets": 12,
      "gpu_rate": 0.0, "worth": 5.0, "transfer": True,
      "target_names": [], "start": [], "seed": 0, "threads": 0, "request": ModelRequest(), "capture_gb": 2.0,
      "api_base": None, "tools": 0, "send_source": "callable", "pace": 0.0,
      "compile_baseline": True, "headless": False, "as_json": False, "detach": False, "device": "auto",
      "workspace": None, "under": "eager", "prices": [], "allow_remote": False, "local_only": False,
      "given": frozenset()}),
    (["resume", "s-1", "--evaluations", "9", "--json", "--local-only"], "run", "resume",
     {"session": "s-1", "workspace": None, "evaluations": 9, "minutes": None, "usd": None, "headless": False,
      "as_json": True, "detach": False, "prices": [], "allow_remote": False, "local_only": True}),
    (["cost", "s-1", "--json"], "cost", "cost", {"session": "s-1", "workspace": None, "as_json": True}),
    (["record", "m.py", "--output", "o.landscape", "--target", "a", "--target", "b", "--limit", "7", "--minutes", "2",
      "--threads", "1", "--json"], "record", "record",
     {"model": "m.py", "output_file": Path("o.landscape"), "targets": ["a", "b"], "device": "auto", "workspace": None,
      "limit": 7, "minutes": 2.0, "threads": 1, "seed": 0, "request": ModelRequest(), "capture_gb": 2.0,
      "as_json": True}),
    (["check", "m.py", "k.cu", "--target", "t", "--tune", "B=4", "--device", "cuda:1"], "check", "check",
     {"model": "m.py", "kernel": Path("k.cu"), "target": "t", "device": "cuda:1", "workspace": None, "threads": 0,
      "seed": 0, "request": ModelRequest(), "capture_gb": 2.0, "tune": ["B=4"], "print_header": False,
      "as_json": False, "confirm": True, "ncu": False}),
    (["check", "m.py", "--print-header"], "check", "check",
     {"model": "m.py", "kernel": None, "target": None, "device": "auto", "workspace": None, "threads": 0, "seed": 0,
      "request": ModelRequest(), "capture_gb": 2.0, "tune": [], "print_header": True, "as_json": False,
          "confirm": True, "ncu": False}),
])  # fmt: skip
def test_options_reach_their_command(arguments, module, name, expected, monkeypatch):
    """What is typed is what the command gets, with the right types and defaults; its exit code is ours."""
    import importlib

    seen = {}

    def command(**options):
        seen.update(options)
        return 5

    monkeypatch.setattr(importlib.import_module(f"forge_tui.cli.commands.{module}"), name, command)
    assert main.main(arguments) == 5
    assert seen == expected


def test_commands_take_what_the_parser_gives():
    """Parser and commands agree on every name."""
    import inspect

    from forge_tui.cli.commands import check, record, run

    for command in (run.run, run.resume, check.check, record.record):
        assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(command).parameters.values())


def test_version(capsys):
    """--version prints the version to stdout."""
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"forge-tui {__version__}\n"


def test_no_command_without_a_terminal_is_usage():
    """Without a terminal there is no screen: usage on stderr and exit code 2."""
    done = forge()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: forge-tui" in done.stderr
    assert done.stderr.rstrip().endswith("The screen needs a terminal; name a command.")


FORBIDDEN = ("torch", "litellm", "anthropic", "textual", "sqlite_utils", "rich", "numpy", "pynvml")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["--version"], ["sessions", "--json"], ["report"]], ids=" ".join
)
def test_light_commands_import_nothing_heavy(arguments, tmp_path):
    """Help, version, sessions and report load neither torch nor LiteLLM nor Textual nor sqlite-utils nor rich."""
    import store_fixture

    store_fixture.finished(tmp_path / ".forge")
    code = (
        "import sys\nfrom forge_tui.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10
    loaded = set(eval(done.stderr.strip().splitlines()[-1]))
    assert "forge_tui" in loaded
    assert loaded.isdisjoint(FORBIDDEN)


def test_closed_pipe_is_quiet(tmp_path):
    """A reader that goes away ends the program without a word."""
    import store_fixture

    store_fixture.finished(tmp_path / ".forge")
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*FORGE, "report", "--markdown"], stdout=write, stderr=subprocess.PIPE, text=True,
                              cwd=tmp_path, timeout=60, check=False)  # fmt: skip
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (main.PIPE_CLOSED, "")


def test_full_output_is_a_sentence(tmp_path):
    """Output that cannot be written is a fault of the machine, not a bug."""
    import store_fixture

    store_fixture.finished(tmp_path / ".forge")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*FORGE, "report"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                              timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (
        4, "forge-tui: The output cannot be written: No space left on device.\n",
    )  # fmt: skip


def test_ctrl_c_while_a_command_works(tmp_path):
    """SIGINT amid a command ends with 130, one sentence and no traceback; its worker ends too."""
    model = tmp_path / "model.py"
    body = "    open('began', 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
    model.write_text(f"import os, time\ndef build():\n{body}")
    process = subprocess.Popen([*FORGE, "profile", str(model), "--device", "cpu", "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=tmp_path)  # fmt: skip
    began = tmp_path / "began"
    try:
        for _ in range(600):
            if began.exists() and began.read_text():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert json.loads(out)["error"]["what"] == "Interrupted."
    assert err == f"Profiling {model} on cpu ...\nforge-tui: Interrupted.\n"
    stat = Path(f"/proc/{began.read_text()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.parametrize("where", ["loop", "loop/below"])
def test_a_workspace_in_a_circle_of_links_is_a_sentence(where, tmp_path, capsys, monkeypatch):
    """It is the user's fault, said in one sentence, with exit code 2; no bug."""
    monkeypatch.setattr(output, "_written", False)
    (tmp_path / "loop").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "loop")
    assert main.main(["sessions", "--workspace", str(tmp_path / where)]) == 2
    said = capsys.readouterr().err
    assert said == (f"forge-tui: The workspace {tmp_path / where} cannot be found: its links lead in a circle. Name "
                    "another folder with --workspace.\n")  # fmt: skip
