"""The lease of a device between users, between folders, and by every way a GPU or an instance of one can be named."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from targets_fixture import cpu_device, cuda_device

from forge_tui.core.errors import EnvironmentFault
from forge_tui.evaluator import lease as lease_module
from forge_tui.evaluator.lease import lease, lease_path
from forge_tui.profiler import uuids

MIG = "MIG-1f0c8b2e-0d3c-5a2b-9c1d-000000000001"
NOBODY = 65534
REPO = Path(__file__).parents[2]

TAKE = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from forge_tui.core.records import Device
from forge_tui.evaluator.lease import lease
os.umask(0o077)
if len(sys.argv) > 3:  # after the imports: another user may not reach this Python
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
async def main():
    async with lease(Device(name="cpu", model="x", arch="x"), 0.3, Path(sys.argv[2])):
        print("held", flush=True)
        sys.stdin.readline()
try:
    asyncio.run(main())
except Exception as error:
    print(error, flush=True)
"""


def taker(folder: Path, user: int | None = None) -> subprocess.Popen:
    """A process that takes the lease with a strict umask, as another user if one is named; its first line says how."""
    argv = [sys.executable, "-c", textwrap.dedent(TAKE), str(REPO), str(folder), *([str(user)] if user else [])]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def sticky(tmp_path):
    """A folder such as /tmp, which everybody can reach."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for parent in folder.parents:
        if parent == Path("/"):
            break
        if not parent.stat().st_mode & 0o001:
            if parent.stat().st_uid != os.getuid():
                pytest.skip("other users cannot reach the folder of the tests")
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("first", ["root", "nobody"])
def test_two_users_share_one_lease_whoever_comes_first(sticky, first):
    """The file of the first, made under umask 077 in a sticky folder, serves the second, and excludes it."""
    users = [None, NOBODY] if first == "root" else [NOBODY, None]
    holder = taker(sticky, users[0])
    assert holder.stdout.readline() == "held\n"
    waiting = taker(sticky, users[1])
    assert "is in use by process" in waiting.communicate()[0]
    holder.communicate("\n")
    after = taker(sticky, users[1])
    assert after.stdout.readline() == "held\n"
    after.communicate("\n")
    assert lease_path(cpu_device(), sticky).stat().st_mode & 0o777 == 0o666


async def test_a_file_that_can_only_be_read_is_locked_all_the_same(tmp_path, monkeypatch):
    """A lease that another user made without letting others write still excludes."""
    path = lease_path(cpu_device(), tmp_path)
    path.write_text("")
    real = os.open

    def as_another_user(place, flags, *mode):
        if str(place) == str(path) and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied")
        return real(place, flags, *mode)

    monkeypatch.setattr(lease_module.os, "open", as_another_user)
    async with lease(cpu_device(), 1.0, tmp_path):
        with pytest.raises(EnvironmentFault, match="cpu is in use"):
            async with lease(cpu_device(), 0.1, tmp_path):
                pytest.fail("two holders")


async def test_a_file_removed_under_a_holder_does_not_make_two(tmp_path):
    """A cleaner of /tmp takes the file away: the name in the network namespace still holds."""
    if sys.platform != "linux":
        pytest.skip("no abstract names")
    async with lease(cpu_device(), 1.0, tmp_path):
        lease_path(cpu_device(), tmp_path).unlink()
        with pytest.raises(EnvironmentFault, match="in use"):
            async with lease(cpu_device(), 0.1, tmp_path):
                pytest.fail("two holders")
    async with lease(cpu_device(), 1.0, tmp_path):
        pass


async def test_a_link_is_not_followed(tmp_path):
    """Somebody's link in the shared folder does not make us open, and empty, a file of ours."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    lease_path(cpu_device(), tmp_path).symlink_to(mine)
    with pytest.raises(EnvironmentFault, match="cannot be opened"):
        async with lease(cpu_device(), 0.1, tmp_path):
            pass
    assert mine.read_text() == "precious"


async def test_a_holder_that_is_killed_lets_go_of_both(tmp_path):
    """Neither the lock nor the name outlives a process."""
    holder = taker(tmp_path)
    assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
    holder.kill()
    holder.communicate()
    async with lease(cpu_device(), 2.0, tmp_path):
        pass


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ({"uuid": MIG}, "0", f"forge-tui-{MIG}.lease"),
        ({"uuid": "GPU-0"}, MIG, "forge-tui-GPU-0.lease"),
        ({"uuid": "MIG-GPU-1/7/0"}, "", "forge-tui-MIG-GPU-1-7-0.lease"),
        ({"uuid": "", "name": "cuda:1"}, f"0,{MIG}", f"forge-tui-{MIG}.lease"),
        ({"uuid": "", "name": "cuda:0"}, "GPU-8c6f1c1a-1111-2222-3333-444444444444",
         "forge-tui-GPU-8c6f1c1a-1111-2222-3333-444444444444.lease"),
        ({"uuid": "", "name": "cuda:0"}, "GPU-8c6f1c1a", "forge-tui-cuda.lease"),
        ({"uuid": "", "name": "cuda:0"}, "1", "forge-tui-cuda.lease"),
        ({"uuid": "", "name": "cuda:1"}, "", "forge-tui-cuda.lease"),
    ],
)  # fmt: skip
def test_how_a_gpu_is_known(device, visible, name, monkeypatch):
    """By the UUID of GPU or instance; without one, by a full UUID in CUDA_VISIBLE_DEVICES, else as any GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv(lease_module.VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", "/somewhere/else")
    found = lease_path(cuda_device(**device))
    assert found.name == name
    assert found.parent == Path("/tmp"), "users with other TMPDIRs must meet"


def test_containers_can_share_a_folder(monkeypatch):
    """The folder can be named."""
    monkeypatch.setenv(lease_module.VARIABLE, "/mnt/leases")
    assert lease_path(cpu_device()) == Path("/mnt/leases/forge-tui-cpu.lease")


WHOLE, PART = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("whole", "part", "torch_says", "found"),
    [
        (WHOLE, WHOLE, "x", f"GPU-{WHOLE}"), (WHOLE, PART, "x", f"MIG-{PART}"), (WHOLE, None, "x", f"GPU-{WHOLE}"),
        (None, None, str(PART), f"GPU-{PART}"), (None, None, f"MIG-{PART}", f"MIG-{PART}"), (None, None, "", ""),
    ],
)  # fmt: skip
def test_an_instance_is_told_from_its_gpu(whole, part, torch_says, found, monkeypatch):
    """Where the driver's two answers differ, the process was given a MIG instance."""

    class Library:
        def cuDeviceGet(self, device, index):
            return 0

    def answer(value):
        def ask(self, raw, device):
            ctypes.memmove(raw, value.bytes, 16)
            return 0

        return ask

    for name, value in (("cuDeviceGetUuid", whole), ("cuDeviceGetUuid_v2", part)):
        if value is not None:
            setattr(Library, name, answer(value))
    monkeypatch.setattr(uuids.ctypes, "CDLL", lambda name: Library())
    assert uuids.device_uuid(0, torch_says) == found
