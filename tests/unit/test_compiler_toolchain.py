"""Finding compilers: where they may be, which versions, and the sentence where there is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from targets_fixture import cpu_device, cuda_device

from forge_tui.compiler import command, limit, toolchain
from forge_tui.core.errors import EnvironmentFault

GNU = "g++ (Fake) 13.1\nCopyright (C) 2023 Free Software Foundation, Inc."


def program(path, version, banner="banner"):
    """A program that answers --version and -dumpfullversion."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo "{banner}";; *) echo "{version}";; esac\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without any compiler; programs can be put into its `bin`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "_toolkits", list)
    monkeypatch.setattr(toolchain, "_site_folders", lambda: iter([tmp_path / "site"]))
    return tmp_path


def test_gxx_on_path_with_its_version(bare):
    """The plain name comes first, a versioned one will do."""
    program(bare / "bin" / "g++-12", "12.2.0", GNU)
    assert toolchain.find_gxx() == toolchain.Gxx(path=str(bare / "bin" / "g++-12"), version="12.2.0")
    program(bare / "bin" / "g++", "13.1.0", GNU)
    assert toolchain.find_gxx().version == "13.1.0"


def test_cxx_is_used_where_it_is_gnu(bare, monkeypatch):
    """`$CXX` wins; clang under it is passed over, since its OpenMP runtime is another."""
    program(bare / "bin" / "g++", "13.1.0", GNU)
    mine = program(bare / "mine" / "c++", "14.0.0", GNU)
    monkeypatch.setenv("CXX", str(mine))
    assert toolchain.find_gxx().path == str(mine)
    program(mine, "17.0.0", "clang version 17")
    assert toolchain.find_gxx().path == str(bare / "bin" / "g++")


def test_without_a_compiler_one_sentence_says_what_to_install(bare):
    """Each of the three has its sentence, and a device gets the one for it."""
    with pytest.raises(EnvironmentFault) as caught:
        toolchain.find_gxx()
    assert caught.value.what == "No C++ compiler was found: install g++ (Debian and Ubuntu: apt-get install g++)."
    for find in (toolchain.find_nvcc, toolchain.find_nvrtc, lambda: toolchain.find_tool(cuda_device())):
        with pytest.raises(EnvironmentFault) as caught:
            find()
        assert caught.value.what == (
            "No CUDA compiler was found: install the CUDA toolkit, or NVRTC with `pip install nvidia-cuda-nvrtc`."
        )
    with pytest.raises(EnvironmentFault, match="No C"):
        toolchain.find_tool(cpu_device())


def test_nvcc_on_path_in_a_toolkit_or_in_a_wheel(bare, monkeypatch):
    """PATH comes before toolkits, toolkits before wheels; a broken one is passed over."""
    banner = "Cuda compilation tools, release 13.0, V13.0.88"
    wheel = program(bare / "site/nvidia/cu13/bin/nvcc", "", banner)
    assert toolchain.find_nvcc() == toolchain.Nvcc(path=str(wheel), version="13.0.88")
    kit = program(bare / "cuda-12.8/bin/nvcc", "", banner.replace("13.0.88", "12.8.61"))
    monkeypatch.setattr(toolchain, "_toolkits", lambda: [bare / "cuda-12.8"])
    assert toolchain.find_nvcc().path == str(kit)
    program(bare / "bin/nvcc", "", "no version here")
    assert toolchain.find_nvcc().path == str(kit)


def test_toolkits_are_tried_chosen_first_then_newest(tmp_path, monkeypatch):
    """CUDA_HOME wins; versions are compared as numbers."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "mine"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert toolchain._toolkits()[0] == tmp_path / "mine"
    paths = [tmp_path / name for name in ("cuda-9.2", "cuda-12.10", "cuda-12.9", "cuda")]
    assert [p.name for p in sorted(paths, key=toolchain._version_of, reverse=True)] == [
        "cuda", "cuda-12.10", "cuda-12.9", "cuda-9.2",
    ]  # fmt: skip


def test_cuda_goes_through_nvrtc_where_nvcc_has_no_gxx(bare, monkeypatch):
    """The nvcc cannot run without a host compiler, so it is not chosen then."""
    program(bare / "bin/nvcc", "", "Cuda compilation tools, release 13.0, V13.0.88")
    library = toolchain.Nvrtc(path="libnvrtc.so", version="13.0", include=())
    monkeypatch.setattr(toolchain, "find_nvrtc", lambda: library)
    assert toolchain.find_tool(cuda_device()) == library
    program(bare / "bin" / "g++", "13.1.0", GNU)
    assert isinstance(toolchain.find_tool(cuda_device()), toolchain.Nvcc)


def test_a_library_that_does_not_load_is_no_nvrtc(bare):
    """A file of that name is asked, in a process of its own, before it is believed."""
    library = bare / "site/nvidia/cu13/lib/libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    assert list(toolchain._nvrtc_places()) == [str(library)]
    with pytest.raises(EnvironmentFault):
        toolchain.find_nvrtc()


def test_builds_see_no_secrets_and_no_settings_of_others(monkeypatch):
    """What would leak or change a build is not in its environment; the language is fixed."""
    for name in ("OPENAI_API_KEY", "CPATH", "NVCC_APPEND_FLAGS", "LD_PRELOAD", "SOURCE_DATE_EPOCH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    seen = toolchain.build_environment("/scratch")
    assert not {"OPENAI_API_KEY", "CPATH", "NVCC_APPEND_FLAGS", "LD_PRELOAD", "SOURCE_DATE_EPOCH"} & seen.keys()
    assert (seen["LC_ALL"], seen["TMPDIR"], seen["PATH"]) == ("C", "/scratch", os.environ["PATH"])


def test_command_lines_hold_no_path_of_a_build():
    """Sources and artifacts are named relative to the private folder, and tunables become macros."""
    gxx = toolchain.Gxx(path="/usr/bin/g++", version="12")
    argv = command.cxx_compile(gxx, {"B": -1, "A": 4}, "0x1")
    assert [part for part in argv if part.startswith("-D")] == ["-DNDEBUG", "-DA=4", "-DB=(-1)"]
    assert argv[-4:] == ["-c", "candidate.cpp", "-o", "candidate.o"]
    nvcc = toolchain.Nvcc(path="/usr/bin/nvcc", version="13")
    argv = command.nvcc_compile(nvcc, "sm_90a", {}, "0x1")
    assert argv[argv.index("-gencode") + 1] == "arch=compute_90a,code=sm_90a"
    assert argv[-3:] == ["candidate.cu", "-o", "kernel.cubin"]
    assert [command.valid_arch(a) for a in ("sm_80", "sm_90a", "sm_120f", "sm_9", "native", "sm_90a -x")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_limits_hold_in_the_command_that_is_run():
    """Address space, file size, processor time and core files are bounded in the command's own process."""
    kinds = "r.RLIMIT_AS, r.RLIMIT_FSIZE, r.RLIMIT_CPU, r.RLIMIT_CORE"
    ask = f"import resource as r; print(*(r.getrlimit(kind)[0] for kind in ({kinds})))"
    argv = command.limited([sys.executable, "-c", ask], memory_bytes=2**30, file_bytes=2**20, cpu_s=7)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(2**30), str(2**20), "7", "0"]


def test_a_command_that_cannot_start_says_so():
    """The limiting process ends with the code that the build knows."""
    argv = command.limited(["/nowhere/g++"], memory_bytes=2**30, file_bytes=2**20, cpu_s=7)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (command.NOT_STARTED, "/nowhere/g++: No such file or directory\n")
    assert limit.__file__ == str(command.LIMIT_SCRIPT)
