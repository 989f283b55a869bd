"""The inspection of built CPU files, on files that were built without the lint."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from forge_tui.compiler import command, inspect, symbols, toolchain
from forge_tui.core.errors import ContractError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ENTRY = 'extern "C" __attribute__((visibility("default"))) int forge_launch(float* x) '
HELPER = "__attribute__((noinline)) static int f(int i) { return i + 1; }\n"


def build(folder, source, *, link=(), flags=("-fopenmp",), own_link=True):
    """A shared library of a source, linked as a candidate is."""
    (folder / "candidate.cpp").write_text(source)
    (folder / command.LINK_MAP).write_text(command.LINK_MAP_TEXT)
    gxx = toolchain.Gxx(path="g++", version="0")
    compile_flags = ["-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", *flags]
    subprocess.run(["g++", *compile_flags, "-c", "candidate.cpp", "-o", "candidate.o"], cwd=folder, check=True)
    argv = command.cxx_link(gxx) if own_link else ["g++", "-shared", "candidate.o", "-o", "kernel.so"]
    subprocess.run([*argv, *link], cwd=folder, check=True)
    return (folder / "kernel.so").read_bytes()


@pytest.mark.parametrize(
    "source",
    [
        ENTRY + "{ return 0; }",
        "#include <cmath>\n#include <cstring>\n" + ENTRY
        + "{ std::memset(x, 0, x[3]); x[0] = std::sin(x[1]); return 0; }",
        ENTRY + "{\n#pragma omp parallel for schedule(dynamic) reduction(+ : x[:4])\n"
        "for (int i = 0; i < 9; ++i) x[0] += i;\nreturn 0; }",
        "static const float table[] = {1, 2};\n" + ENTRY + "{ x[0] = table[int(x[1])]; return 0; }",
        "typedef void (*F)(float*); static void a(float* x) { x[0] = 1; } static void b(float* x) { x[0] = 2; }\n"
        "static const F choice[] = {a, b};\n" + ENTRY + "{ choice[int(x[1])](x); return 0; }",
        "#include <algorithm>\n" + ENTRY + "{ std::sort(x, x + 100); return 0; }",
    ],
    ids=["empty", "libm", "openmp", "table", "pointers", "sort"],
)  # fmt: skip
def test_arithmetic_openmp_and_constants_pass(tmp_path, source):
    """What honest kernels are made of is allowed."""
    inspect.check_cpu(build(tmp_path, source))


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("static int n;\n" + ENTRY + "{ return n++; }", "The variable `n` can be written"),
        ("int n = 4;\n" + ENTRY + "{ return n++; }", "The variable `n` can be written"),
        ("thread_local int n;\n" + ENTRY + "{ return n++; }", "The variable `n` is kept by thread"),
        ("static int calls(int* n) { static int c; return c += *n; }\n" + ENTRY + "{ int i = 1; return calls(&i); }",
         "The variable `c` can be written"),
        ('__attribute__((constructor)) static void f() { asm volatile(""); }\n' + ENTRY + "{ return 0; }",
         "(section .init_array)"),
        ('__attribute__((destructor)) static void f() { asm volatile(""); }\n' + ENTRY + "{ return 0; }",
         "(section .fini_array)"),
        ("#include <unistd.h>\n" + ENTRY + "{ return fork(); }", "calls `fork`, which is not allowed"),
        ("#include <cstdlib>\n" + ENTRY + '{ return system("ls"); }', "calls `system`"),
        ("#include <cstdio>\n" + ENTRY + '{ return printf("%f", x[0]); }', "a kernel prints nothing"),
        ("#include <cstdlib>\n" + ENTRY + "{ return *(int*)malloc(x[0]); }", "a kernel allocates nothing"),
        (ENTRY + "{ return *new int[int(x[0])]; }", "a kernel allocates nothing"),
        ("#include <omp.h>\n" + ENTRY + "{ omp_set_num_threads(1); return 0; }", "does not change OpenMP's settings"),
        ("#include <dlfcn.h>\n" + ENTRY + '{ return dlopen("x", 1) != 0; }', "calls `dlopen`"),
        ('static int one(int i) { return i; } extern "C" int (*pick())(int) { return one; }\n'
         '__attribute__((ifunc("pick"))) int chosen(int);\n' + ENTRY + "{ return chosen(1); }", "nothing may run then"),
        ("int forge_other() { return 0; }", "does not define"),
    ],
    ids=range(15),
)  # fmt: skip
def test_everything_else_is_refused_by_name(tmp_path, source, part):
    """State, code at load and calls into the system are named in the refusal."""
    data = build(tmp_path, source)
    with pytest.raises(ContractError) as caught:
        inspect.check_cpu(data)
    assert part in caught.value.what


def test_files_linked_in_another_way_are_refused(tmp_path):
    """Start files, a search path, foreign libraries and other exports do not pass."""
    source = ENTRY + "{ return 0; }"
    for name, options, part in (
        ("start", {"own_link": False}, "The built kernel"),
        ("rpath", {"link": ("-Wl,-rpath,/tmp",)}, "nothing may run or be searched"),
        ("needed", {"link": ("-Wl,--no-as-needed", "-ldl", "-lstdc++")}, "needs the library"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        data = build(folder, source, **options)
        with pytest.raises(ContractError) as caught:
            inspect.check_cpu(data)
        assert part in caught.value.what, name
    with pytest.raises(ContractError, match="cannot be read"):
        inspect.check_cpu(b"not an ELF file")


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_system_call_instructions_are_found(tmp_path):
    """An assembled system call is seen in the disassembly; the same bytes as data are not."""
    assembly = 'asm volatile("INSTRUCTION" ::: "memory");'
    for instruction in ("syscall", "sysenter", "int $0x80"):
        build(tmp_path, ENTRY + f"{{ {assembly.replace('INSTRUCTION', instruction)} return 0; }}")
        done = subprocess.run(command.disassemble("objdump"), cwd=tmp_path, capture_output=True, text=True, check=True)
        with pytest.raises(ContractError) as caught:
            inspect.check_instructions(done.stdout)
        assert instruction.split()[0] in caught.value.what
    data = "extern const unsigned char data[] = {0x0f, 0x05};\n"
    build(tmp_path, data + HELPER + ENTRY + "{ return f(data[int(x[0])]); }")
    done = subprocess.run(command.disassemble("objdump"), cwd=tmp_path, capture_output=True, text=True, check=True)
    inspect.check_instructions(done.stdout)


def test_allowed_symbols_are_functions_of_arithmetic():
    """Mathematics in three precisions, OpenMP's own calls and memory functions; nothing that outlives a call."""
    right = "expf exp expl memcpy GOMP_parallel GOMP_loop_dynamic_start omp_get_thread_num _ZGVdN8v_expf __expf_finite"
    wrong = (
        "system GOMP_target_ext GOMP_offload_register GOMP_alloc omp_set_num_threads mmap write pthread_create "
        "clock_gettime _Znwm __tls_get_addr dlsym environ expff_x"
    )
    assert [name for name in right.split() if not symbols.allowed(name)] == []
    assert [name for name in wrong.split() if symbols.allowed(name)] == []
