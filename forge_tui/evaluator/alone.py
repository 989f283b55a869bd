"""`python -m forge_tui.evaluator.alone JOB [SETS]`: one kernel on its inputs, once a set, and nothing else.

Made to be run under compute-sanitizer and ncu: the driver API without torch, every buffer an allocation of its own and
of its exact size, outputs and workspace as the allocator gives them, so that what is read before it is written shows.
`--probe INDEX` runs a kernel that writes out of bounds, which a working sanitizer must find.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from forge_tui.core.errors import ForgeError
from forge_tui.core.records import Launch, LaunchPlan
from forge_tui.evaluator.job import Job, rounded
from forge_tui.launch.cuda_alone import Alone
from forge_tui.launch.errors import LaunchError

#: exit codes: something is missing here; the kernel failed
MISSING, FAILED = 3, 4
#: what stands before the addresses of the buffers on stdout
BUFFERS = "buffers: "

PROBE_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry forge_probe(.param .u64 out)
{
    .reg .b64 %a<3>;
    .reg .b32 %v;
    ld.param.u64 %a1, [out];
    cvta.to.global.u64 %a2, %a1;
    mov.u32 %v, 1;
    st.global.u32 [%a2], %v;
    st.global.u32 [%a2+64], %v;
    ret;
}
\0"""
PROBE_KERNEL = "forge_probe"


def run(job: Job, sets: int) -> None:
    """Run a job's kernel on its first `sets` sets.

    Raises:
        DriverMissing, LaunchError: something is missing, or the kernel failed.
    """
    machine = Alone(job.device_index)
    module = machine.driver.load_module(Path(job.image).read_bytes())
    workspace_bytes = job.plan.workspace_bytes
    with open(job.inputs_path, "rb") as file:
        for sizes in job.input_bytes[:sets]:
            inputs = [machine.allocate(size) for size in sizes]
            for address, size in zip(inputs, sizes, strict=True):
                machine.upload(address, file.read(rounded(size))[:size])
            outputs = [machine.allocate(size) for size in job.output_bytes]
            workspace = machine.allocate(workspace_bytes)
            if job.plan.workspace_zero:
                machine.fill(workspace, 0, workspace_bytes)
            named = zip([*job.input_names, *job.output_names, "workspace"], [*inputs, *outputs, workspace], strict=True)
            print(BUFFERS + json.dumps({name: address for name, address in named if address}), flush=True)  # noqa: T201
            machine.launch(module, job.plan, [*inputs, *outputs, workspace, 0])
            for address in [*inputs, *outputs, workspace]:
                machine.free(address)
    machine.driver.unload_module(module)


def probe(index: int) -> None:
    """Write 64 bytes beyond the beginning of an allocation of four."""
    machine = Alone(index)
    module = machine.driver.load_module(PROBE_PTX)
    address = machine.allocate(4)
    plan = LaunchPlan(launches=(Launch(kernel=PROBE_KERNEL, grid=(1, 1, 1), block=(1, 1, 1)),))
    machine.launch(module, plan, [address])


def main(argv: list[str]) -> int:
    """Run what the arguments name; returns the exit code."""
    try:
        if argv[1] == "--probe":
            probe(int(argv[2]))
        else:
            job = msgspec.json.decode(Path(argv[1]).read_bytes(), type=Job)
            run(job, int(argv[2]) if len(argv) > 2 else len(job.input_bytes))
    except LaunchError as error:
        sys.stderr.write(f"{error.what}\n")
        return FAILED
    except ForgeError as error:
        sys.stderr.write(f"{error.what}\n")
        return MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
