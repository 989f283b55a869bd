"""What doctor concludes, for machines of every kind."""

import contextlib
import json
import sqlite3

import pytest
import store_fixture as fixture

from forge_tui.cli import main, output, probe
from forge_tui.cli.commands import doctor
from forge_tui.cli.health import Machine, checks, version
from forge_tui.core.paths import Workspace
from forge_tui.store import filesystem

NO_GXX = "No C++ compiler was found: install g++ (apt-get install g++).\nSet CXX."
NO_NVCC = "No CUDA compiler was found: install the CUDA toolkit.\nSet CUDA_HOME."
CPU = Machine(device="cpu", torch="2.13.0+cpu", gpu_error="no driver", gxx="12.2.0", nvcc_error=NO_NVCC)
GPU = Machine(
    device="cuda:0", torch="2.11.0", torch_cuda="13.0", torch_sees_gpu=True, driver="580.1", driver_cuda="13.0",
    gpus=("H200",), gxx_error=NO_GXX, nvcc="13.0.88",
)  # fmt: skip


def found(machine, **changes):
    """Checks by name of a machine with changes."""
    import msgspec

    return {check.name: check for check in checks(msgspec.structs.replace(machine, **changes))}


def failures(machine, **changes):
    """Names of the checks that fail."""
    return [name for name, check in found(machine, **changes).items() if check.status == "fail"]


def test_machine_without_gpu_needs_torch_and_gxx_only():
    """On a CPU machine nvcc may be missing; g++ and PyTorch may not, and what to install is said."""
    assert failures(CPU) == []
    assert failures(CPU, gxx="", gxx_error=NO_GXX) == ["g++"]
    check = found(CPU, gxx="", gxx_error=NO_GXX)["g++"]
    assert check.text == "No C++ compiler was found: install g++ (apt-get install g++)."
    assert check.fix == "Set CXX."
    assert failures(CPU, torch="", torch_error="No module named 'torch'") == ["PyTorch"]
    assert found(CPU)["GPU"].text == "No NVIDIA GPU: no driver. The job runs on the CPU."


def test_machine_with_gpu_needs_one_cuda_compiler():
    """With a GPU either nvcc or NVRTC serves, and g++ may be missing."""
    assert failures(GPU) == []
    assert failures(GPU, nvcc="", nvrtc="13.0") == []
    assert failures(GPU, nvcc="", nvcc_error=NO_NVCC) == ["nvcc"]
    check = found(GPU, nvcc="", nvcc_error=NO_NVCC)["nvcc"]
    assert check.text == "No CUDA compiler was found: install the CUDA toolkit."


def test_sanitizers_and_counters_are_told_and_never_needed():
    """With a GPU compute-sanitizer and ncu are ok, or a note says why not; on the CPU AddressSanitizer."""
    assert failures(GPU, sanitizer_error="It was not found.", ncu_error="Forbidden.") == []
    lacking = found(GPU, sanitizer_error="It was not found.", ncu_error="Forbidden.")
    assert (lacking["compute-sanitizer"].status, lacking["ncu"].status) == ("note", "note")
    assert lacking["compute-sanitizer"].text == "Winners stay unsanitised. It was not found."
    assert lacking["ncu"].text == "check --ncu cannot be used. Forbidden."
    working = found(GPU, sanitizer="/bin/compute-sanitizer", ncu="/bin/ncu")
    assert working["compute-sanitizer"].text == "/bin/compute-sanitizer works on this GPU."
    assert (working["compute-sanitizer"].status, working["ncu"].status) == ("ok", "ok")
    assert "AddressSanitizer" not in working
    assert found(CPU)["AddressSanitizer"].status == "ok"
    told = found(CPU, cpu_sanitizer_error="g++ has no AddressSanitizer here.")["AddressSanitizer"]
    assert (told.status, told.text) == ("note", "Winners stay unsanitised. g++ has no AddressSanitizer here.")
    assert "ncu" not in found(CPU)
    assert "AddressSanitizer" not in found(CPU, gxx="", gxx_error=NO_GXX)


def test_driver_older_than_torch():
    """A driver of an older major version than PyTorch's CUDA fails; an older minor one works and says so."""
    old = found(GPU, driver="550.54", driver_cuda="12.4", nvcc="12.4.1")["PyTorch and driver"]
    assert old.status == "fail"
    assert old.text == (
        "The driver 550.54 serves CUDA 12.4 at most, PyTorch was built for CUDA 13.0: it is too old."
    )
    assert old.fix == "Update the driver to one for CUDA 13, or install a PyTorch for CUDA 12."
    minor = found(GPU, torch_cuda="13.2")["PyTorch and driver"]
    assert (minor.status, "the same major version" in minor.text) == ("note", True)
    assert found(GPU)["PyTorch and driver"].status == "ok"
    assert found(GPU, driver_cuda="13.10", torch_cuda="13.9")["PyTorch and driver"].status == "ok"


def test_torch_that_cannot_use_the_gpu():
    """A CPU build of PyTorch, or one that sees no GPU, fails where a GPU is to be used."""
    cpu_build = found(GPU, torch="2.13.0+cpu", torch_cuda="", torch_sees_gpu=False)["PyTorch and driver"]
    assert (cpu_build.status, cpu_build.text) == (
        "fail", "There is a GPU, but PyTorch 2.13.0+cpu is a CPU build.",
    )  # fmt: skip
    assert found(GPU, device="cpu", torch_cuda="")["PyTorch and driver"].status == "warn", "hidden from this process"
    blind = found(GPU, torch_sees_gpu=False, torch_why="no device nodes")["PyTorch and driver"]
    assert (blind.status, blind.text) == ("fail", "PyTorch does not see the GPU: no device nodes.")


def test_compiler_against_driver_and_torch():
    """A compiler of a newer major version than the driver fails; one that only differs from PyTorch's is a warning."""
    new = found(GPU, driver_cuda="12.8", torch_cuda="12.8")
    assert new["compiler and driver"].status == "fail"
    assert new["compiler and driver"].text == "nvcc 13.0 makes code that the driver (CUDA 12.8) cannot load."
    other = found(GPU, torch_cuda="12.8")
    assert other["compiler and PyTorch"].status == "warn"
    assert "compiler and driver" not in other
    assert "compiler and PyTorch" not in found(GPU)
    assert found(GPU, nvcc="", nvrtc="14.0")["compiler and driver"].text.startswith("NVRTC 14.0")


def test_versions_are_numbers():
    """Versions compare by number, not by letter."""
    assert version("13.10.1") > version("13.9")
    assert version("2.13.0+cpu") == (2, 13, 0)
    assert version("") == version("unknown") == ()


def test_workspace_is_looked_at(tmp_path, monkeypatch):
    """A folder that can be written is fine and stays as it is; a network filesystem is a warning."""
    place = Workspace(tmp_path / "not" / "there")
    (check,) = doctor.check_workspace(place)
    assert check.status == "ok"
    assert not place.root.exists()
    monkeypatch.setattr(filesystem, "network_kind", lambda _: "NFS")
    assert [c.status for c in doctor.check_workspace(place)] == ["ok", "warn"]
    blocked = doctor.check_workspace(Workspace(__import__("pathlib").Path("/proc/self/nothing")))
    assert [c.status for c in blocked] == ["fail"]
    assert "--workspace" in blocked[0].fix


def test_database_is_looked_at(tmp_path):
    """Sessions are counted; a database of a newer version fails with its sentence."""
    workspace, _ = fixture.finished(tmp_path / ".forge")
    assert doctor.check_workspace(workspace)[-1].text == "1 session."
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        raw.execute("UPDATE meta SET schema_version = 9")
        raw.commit()
    check = doctor.check_workspace(workspace)[-1]
    assert (check.status, "schema 9" in check.text) == ("fail", True)


def test_probe_that_hangs_or_dies_is_an_answer(monkeypatch, tmp_path):
    """A library that hangs, crashes or prints nonsense is an error text, never an exception."""
    for code, error in (
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
        ("raise SystemExit('no such library')", "no such library"),
        ("print('hello')", "exit code 0"),
    ):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\nexec {__import__('sys').executable} -c \"{code}\"\n")
        script.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(probe.sys, "executable", str(script))
            assert probe.ask("torch", 0.5 if "sleep" in code else 20) == {"error": error}


@pytest.mark.parametrize(("machine", "code"), [(CPU, 0), (Machine(device="cpu", torch="2.13.0", gxx_error=NO_GXX), 4)])
def test_doctor_says_ready_or_what_to_install(machine, code, monkeypatch, tmp_path, capsys):
    """Exit code 0 where the default job can run, else 4 and what to do, in both forms."""
    monkeypatch.setattr(doctor, "examine", lambda: (machine, {"gxx": "/usr/bin/g++"}))
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    assert main.main(["doctor"]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Ready:" if code == 0 else "Not ready for cpu: Set CXX.")
    assert main.main(["doctor", "--json"]) == code
    read = json.loads(capsys.readouterr().out)
    assert (read["ok"], read["device"], read["paths"]) == (code == 0, "cpu", {"gxx": "/usr/bin/g++"})
    assert read["versions"]["torch"].startswith("2.13.0")
    assert {"name", "status", "text", "fix"} == set(read["checks"][0])


def test_doctor_on_this_machine(monkeypatch, tmp_path, capsys):
    """The real probes find this Python's PyTorch without importing it here."""
    import importlib.metadata
    import sys

    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    before = "torch" in sys.modules
    main.main(["doctor", "--json"])
    read = json.loads(capsys.readouterr().out)
    assert read["versions"]["torch"].split("+")[0] == importlib.metadata.version("torch").split("+")[0]
    assert ("torch" in sys.modules) == before
