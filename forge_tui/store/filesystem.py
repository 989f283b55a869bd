"""Which filesystem a folder is on; SQLite's write-ahead log needs shared memory, which network ones do not give."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

#: magic numbers of statfs(2), by the name people know
_NETWORK = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0x65735546: "FUSE",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x01021997: "9p",
    0x00C36400: "CephFS",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x5346414F: "AFS",
    0x73757245: "Coda",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x20030528: "OrangeFS",
    0x786F4256: "vboxsf",
}
_LOCAL = {
    0xEF53: "ext4",
    0x58465342: "XFS",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0x2FC12FC1: "ZFS",
    0xF2F52010: "F2FS",
}
#: larger than struct statfs on every Linux; the type is its first word
_STATFS_BYTES = 512


def magic(folder: Path) -> int | None:
    """The filesystem's magic number, or None where the system does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        failed = libc.statfs(os.fsencode(folder), buffer)
    except AttributeError:
        return None
    if failed:
        return None
    # 32-bit magic numbers are sign-extended on some machines
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF


def describe(folder: Path) -> str:
    """The filesystem's name, or its magic number in hexadecimal, or `unknown`."""
    number = magic(folder)
    if number is None:
        return "unknown"
    return _NETWORK.get(number) or _LOCAL.get(number) or f"0x{number:x}"


def network_kind(folder: Path) -> str | None:
    """The name of the network (or user-space) filesystem that the folder is on, None for a local one."""
    number = magic(folder)
    return None if number is None else _NETWORK.get(number)
