"""Reading files that a person names: only regular ones, only so much, and never waiting for anybody."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
          stat.S_IFBLK: "a device"}  # fmt: skip
_MARKS = (b"\xff\xfe", b"\xfe\xff")
#: of the characters of a text, how many may be undecodable: a name or a comment in another encoding
_FOREIGN, _FEW = 0.02, 8


class UnreadableError(Exception):
    """Why a file is not read, as what is said of it: `is a folder, not a file`."""


def read_bytes(path: Path | str, most: int) -> bytes:
    """What a regular file holds.

    Raises:
        UnreadableError: it cannot be opened, is no regular file, or has more than `most` bytes.
    """
    try:
        # opening a device or a pipe may do something already
        _check(Path(path).stat(), most)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _check(os.fstat(fd), most)
            parts, left = [], most + 1
            while left and (part := os.read(fd, min(left, 1 << 20))):
                parts.append(part)
                left -= len(part)
        finally:
            os.close(fd)
    except ValueError:
        raise UnreadableError("cannot be the name of a file") from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from error
    data = b"".join(parts)
    check_size(len(data), most)
    return data


def read_text(path: Path | str, most: int) -> str:
    """The same as text.

    Raises:
        UnreadableError: as `read_bytes`, or it is no text.
    """
    return as_text(read_bytes(path, most))


def as_text(data: bytes) -> str:
    """UTF-8, or UTF-16 with its mark; a few characters that are neither are replaced.

    Raises:
        UnreadableError: it is no text.
    """
    text = data.decode("utf-16" if data.startswith(_MARKS) else "utf-8", "replace")
    if "\0" in text or text.count("\ufffd") > max(_FEW, _FOREIGN * len(text)):
        raise UnreadableError("is not text")
    return text


def check_size(size: int, most: int) -> None:
    """Raise UnreadableError for more than `most` bytes."""
    if size > most:
        raise UnreadableError(f"has more than {f'{most >> 20} MiB' if most >= 1 << 20 else f'{most >> 10} KiB'}")


def _check(state: os.stat_result, most: int) -> None:
    if (kind := _KINDS.get(stat.S_IFMT(state.st_mode))) is not None:
        raise UnreadableError(f"is {kind}, not a file")
    check_size(state.st_size, most)
