"""Files that a person names are read at once or refused at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from forge_tui.core.files import UnreadableError, as_text, read_bytes, read_text


def refused(path: Path | str, most: int = 1 << 20) -> str:
    """What is said of it."""
    with pytest.raises(UnreadableError) as caught:
        read_text(path, most)
    return str(caught.value)


def test_what_is_no_regular_file_is_named(tmp_path: Path) -> None:
    """Nothing is waited for: a pipe without a writer, an endless device, a folder, a socket, a circle of links."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "to-pipe").symlink_to("pipe")
    assert refused(tmp_path / "pipe") == refused(tmp_path / "to-pipe") == "is a pipe, not a file"
    assert refused("/dev/zero") == refused("/dev/null") == "is a device, not a file"
    assert refused(tmp_path) == "is a folder, not a file"
    assert refused(tmp_path / "none") == "cannot be read: No such file or directory"
    assert refused(tmp_path / "ring") == "cannot be read: Too many levels of symbolic links"
    assert refused("a\0b") == "cannot be the name of a file"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        assert refused(tmp_path / "s") == "is a socket, not a file"


def test_size_and_text(tmp_path: Path) -> None:
    """A file is read up to its limit, the last byte included; what holds NULs or hardly any UTF-8 is no text."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 2048)
    assert read_bytes(path, 2048) == b"x" * 2048
    assert refused(path, 2047) == "has more than 1 KiB"
    # files of the kernel say that they are empty
    assert read_bytes("/proc/self/status", 1 << 20).startswith(b"Name:")
    with pytest.raises(UnreadableError, match="has more than 0 KiB"):
        read_bytes("/proc/self/status", 10)
    path.write_bytes(b"\x7fELF\0\0")
    assert refused(path) == "is not text"
    path.write_bytes(bytes(range(128, 256)) * 8)
    assert refused(path) == "is not text"


def test_texts_of_other_encodings() -> None:
    """UTF-16 with its mark is what some clipboards write; a few bytes of another encoding do not spoil a text."""
    assert as_text("größe\n".encode("utf-16")) == as_text("größe\n".encode()) == "größe\n"
    assert as_text(b"gr\xf6\xdfe of a row, " * 4) == "gr\ufffd\ufffde of a row, " * 4
