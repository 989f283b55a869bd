"""A CPU candidate as a program under AddressSanitizer and UndefinedBehaviorSanitizer, without Python around it.

The program reads inputs from a file into buffers of their exact size and promised alignment, between zones that may
not be touched, calls `forge_launch` once a set, and ends. The same source with the same macros, another build: what is
deployed stays the file that was verified.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from forge_tui.compiler import command, diagnostics, subprocesses
from forge_tui.compiler.folder import private_folder
from forge_tui.compiler.isolated import Confinement, confinement
from forge_tui.compiler.toolchain import Gxx, find_gxx
from forge_tui.contract import directives, facts, header, pragmas
from forge_tui.contract.source import read
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import ITEMSIZE, Device, LaunchPlan, Target, TensorSpec
from forge_tui.processes import isolation
from forge_tui.processes.command import Finished, run_in
from forge_tui.processes.environment import clean_environment

PROGRAM = "sanitised"
_MAIN = "main.cpp"
_TIMEOUT_S = 120.0
_MEMORY = 8 * 2**30
_FILE_BYTES = 1 << 20
#: integers that wrap are left out: the very file that was verified is deployed, so they wrap there as they did; and the
#: sizes of objects, about which AddressSanitizer knows and says more
_CHECKS = "address,undefined", "-fno-sanitize=signed-integer-overflow,shift,vptr,object-size"
_OWN_FLAGS = (
    "-O1", "-g1", "-std=c++17", "-march=native", "-fopenmp", "-fno-omit-frame-pointer", "-w", "-DNDEBUG",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fdiagnostics-color=never",
    f"-fsanitize={_CHECKS[0]}", _CHECKS[1], "-fno-sanitize-recover=all",
    # a source must not see that it is watched
    "-U__SANITIZE_ADDRESS__",
)  # fmt: skip
_PROBE = "#include <cstdlib>\nint main(int n, char**) { volatile char* p = (char*)malloc(8); return p[8 + n - 1]; }\n"


async def build(
    device: Device, target: Target, source: str, tunables: Mapping[str, int], plan: LaunchPlan, folder: Path, sets: int
) -> str:
    """Build the program `sanitised` in a folder, for `sets` sets of inputs; returns why not, or nothing."""
    try:
        gxx = find_gxx()
    except EnvironmentFault as error:
        return error.what
    text = read(source)
    chosen = directives.parse_source(text).chosen(dict(tunables))
    (folder / command.SOURCE["cpp"]).write_text(pragmas.filled(text, chosen))
    (folder / command.HEADER).write_text(header.render(target, device))
    (folder / _MAIN).write_text(main_source(target, plan, sets))
    own = [*command.defines(chosen), "-I."]
    return await _compile(gxx, folder, [command.SOURCE["cpp"], _MAIN], own)


async def why_not() -> str:
    """Why CPU kernels cannot be sanitised here; tried on a program that reads out of bounds."""
    try:
        gxx = find_gxx()
    except EnvironmentFault as error:
        return error.what
    async with private_folder() as folder:
        (folder / _MAIN).write_text(_PROBE)
        failure = await _compile(gxx, folder, [_MAIN], [])
        if failure:
            return failure
        done = await run_confined([str(folder / PROGRAM)], folder, {}, 20.0)
        if "heap-buffer-overflow" not in done.stderr:
            return "AddressSanitizer does not work here: it missed a read out of bounds."
    return ""


async def run_confined(argv: list[str], folder: Path, env: dict[str, str], timeout_s: float) -> Finished:
    """Run the program in its folder, confined as compilers are; of memory the sanitizer reserves more than there is.

    Raises:
        OSError: no process can be started.
    """
    # the sanitizer looks at its own mappings, OpenMP at the cores
    read_paths = (*isolation.SYSTEM, str(folder), "/proc/self", "/sys/devices/system/cpu")
    rules, wrapped = Confinement(isolation.detect(), read_paths).wrap(argv, folder)
    limited = command.limited(
        wrapped, memory_bytes=command.UNLIMITED, file_bytes=_FILE_BYTES, cpu_s=int(timeout_s) * 64, confinement=rules
    )
    return await run_in(clean_environment(env), limited, timeout_s=timeout_s, cwd=folder)


async def _compile(gxx: Gxx, folder: Path, sources: list[str], own: list[str]) -> str:
    started = time.monotonic()
    done = await subprocesses.run(
        [gxx.path, *_OWN_FLAGS, *own, *sources, "-o", PROGRAM], folder, timeout_s=_TIMEOUT_S, memory_bytes=_MEMORY,
        confined=await confinement(gxx, ""),
    )  # fmt: skip
    if done.timed_out:
        return f"The build for AddressSanitizer did not end within {time.monotonic() - started:.0f} s."
    if done.code or not (folder / PROGRAM).is_file():
        log = diagnostics.clean(done.output, str(folder))
        if "libasan" in log or "libubsan" in log:
            return "g++ has no AddressSanitizer here: install libasan and libubsan of its version."
        return f"The build for AddressSanitizer failed: {diagnostics.reason(log).rstrip('.')}."
    return ""


def main_source(target: Target, plan: LaunchPlan, sets: int) -> str:
    """The program around the kernel: sizes of buffers are in it, values come from the file that it is given."""
    signature = target.signature
    inputs = [(i.name, _span_bytes(i.spec), i.align) for i in signature.inputs]
    outputs = [(o.name, _span_bytes(o.spec), facts.ALLOCATION_ALIGN) for o in signature.outputs]
    work = ("workspace", plan.workspace_bytes, facts.ALLOCATION_ALIGN)
    rows = ",\n".join(f'    {{"{name}", {size}u, {align}u}}' for name, size, align in [*inputs, *outputs, work])
    count = len(inputs) + len(outputs) + 1
    return _TEMPLATE.format(
        rows=rows, inputs=len(inputs), count=count, sets=sets, zero=int(plan.workspace_zero),
        parameters=", ".join(["void*"] * count), arguments=", ".join(f"at[{i}]" for i in range(count)),
    )  # fmt: skip


def _span_bytes(spec: TensorSpec) -> int:
    return spec.span * ITEMSIZE[spec.dtype]


_TEMPLATE = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>
struct ForgeDims {{ long long reserved; }};
extern "C" int forge_launch({parameters}, ForgeDims);
struct Buffer {{ const char* name; size_t size, align; }};
static const Buffer buffers[] = {{
{rows}
}};
static void none_of(int what) {{
    const rlimit both = {{0, 0}};
    setrlimit((__rlimit_resource)what, &both);
}}
int main(int, char** argv) {{
    FILE* file = fopen(argv[1], "rb");
    if (!file) return 3;
    none_of(RLIMIT_FSIZE);
    none_of(RLIMIT_CORE);
    for (int set = 0; set < {sets}; ++set) {{
        void* at[{count}] = {{}};
        for (int i = 0; i < {count}; ++i) {{
            const Buffer& b = buffers[i];
            if (i == {count} - 1 && !b.size) continue;
            if (posix_memalign(&at[i], b.align < 8 ? 8 : b.align, b.size)) return 3;
            printf("%s %p\\n", b.name, at[i]);
            if (i >= {inputs}) {{ memset(at[i], i == {count} - 1 && {zero} ? 0 : 0x5f, b.size); continue; }}
            if (b.size && fread(at[i], 1, b.size, file) != b.size) return 3;
            fseek(file, (long)((64 - b.size % 64) % 64), SEEK_CUR);
        }}
        fflush(stdout);
        const int returned = forge_launch({arguments}, ForgeDims{{0}});
        if (returned) {{ printf("returned %d\\n", returned); return 4; }}
        for (void* p : at) free(p);
    }}
    puts("done");
    return 0;
}}
"""
