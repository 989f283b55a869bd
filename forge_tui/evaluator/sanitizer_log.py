"""What compute-sanitizer writes, taken apart: its reports, its count of errors, and one sentence of the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"^=========(?: (.*))?$")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)")
_PLACE = re.compile(r"at (?:0x[0-9a-f]+ in )?(?P<name>[\w$]+)[^+]*?(?:\([^()]*\))?(?:\+(?P<offset>0x[0-9a-f]+))?"
                    r"(?: in (?P<file>\S+):(?P<line>\d+))?$")  # fmt: skip
_FILE_FIRST = re.compile(r"at 0x[0-9a-f]+ in (?P<file>\S+?):(?P<line>\d+):(?P<name>[\w$]+)")
_THREAD = re.compile(r"by thread \((\d+,\d+,\d+)\) in block \((\d+,\d+,\d+)\)")
_ADDRESS = re.compile(r"(?:Address|Access at|Access to) (0x[0-9a-f]+)(.*)")
_NEAREST = re.compile(
    r"and is ([\d,]+)(?: bytes)? (after|before) the nearest allocation at (0x[0-9a-f]+) of size ([\d,]+) bytes"
)
_INSIDE = re.compile(r"and is inside the nearest allocation at (0x[0-9a-f]+) of size ([\d,]+) bytes")
_ACCESS = re.compile(r"(Write|Read|Atomic) access at (.+)", re.IGNORECASE)
_HAZARDS = re.compile(r" \[(\d+) hazards?\]$")


@dataclass(slots=True)
class Report:
    """One finding: its first line, and the lines below it."""

    head: str
    details: list[str] = field(default_factory=list)

    @property
    def of_device(self) -> bool:
        """Whether a kernel did it, and not a call of the API."""
        return bool(re.match(r"(Invalid |Uninitialized __|(Error: )?Race reported|(Error: )?Potential \w+ hazard|"
                             r"(Error: )?Barrier error|Stack overflow|Warp illegal)", self.head))  # fmt: skip


@dataclass(slots=True)
class Log:
    """All findings; `errors` is the tool's own count, None where it did not get to its summary."""

    reports: list[Report]
    errors: int | None

    @property
    def found(self) -> Report | None:
        """The first finding in a kernel."""
        return next((report for report in self.reports if report.of_device), None)


def parse(text: str) -> Log:
    """Take a log apart; lines that are not the tool's own are left out."""
    reports: list[Report] = []
    errors: int | None = None
    current: Report | None = None
    for line in text.splitlines():
        match = _LINE.match(line.rstrip())
        if match is None:
            continue
        said = match[1] or ""
        counted = _SUMMARY.search(said)
        if counted:
            errors = int(counted[1] or counted[2])
        elif not said.strip():
            current = None
        elif said.startswith(" ") and current is not None:
            current.details.append(said.strip())
        elif not said.startswith(("COMPUTE-SANITIZER", " ")):
            current = Report(said)
            reports.append(current)
    return Log(reports, errors)


def sentence(report: Report, buffers: Mapping[str, int]) -> str:
    """A finding for people and prompts: what, in which kernel, where, by which thread, at which buffer.

    `buffers` are addresses by name.
    """
    if "Race reported" in report.head or "hazard" in report.head:
        return _race(report)
    parts = [_kind(report.head)]
    by_thread = nearest = ""
    for line in report.details:
        if place := _place(line):
            parts.append(place)
        elif match := _THREAD.search(line):
            by_thread = f"by thread ({match[1]}) of block ({match[2]})"
        elif match := _NEAREST.search(line):
            nearest = f"{match[1]} bytes {match[2]} {_buffer(match[3], match[4], buffers)}"
        elif match := _INSIDE.search(line):
            nearest = f"inside {_buffer(match[1], match[2], buffers)}"
        elif not nearest and (match := _ADDRESS.search(line)):
            nearest = _at(int(match[1], 16), match[2].strip(" ."), buffers)
    return " ".join(filter(None, [*parts[:2], by_thread])) + (f", {nearest}" if nearest else "") + "."


def _kind(head: str) -> str:
    text = head.removeprefix("Error: ").rstrip(". ")
    text = re.sub(r"__(\w+)__", r"\1", text).replace(" of size ", " of ")
    return text[:1].lower() + text[1:]


def _place(line: str) -> str:
    match = _FILE_FIRST.match(line) or _PLACE.match(line)
    if match is None:
        return ""
    fields = match.groupdict()
    line_number = f", line {fields['line']}" if fields.get("line") else ""
    offset = f" at {fields['offset']}" if fields.get("offset") and not line_number else ""
    return f"in {fields['name']}{offset}{line_number}"


def _buffer(address: str, size: str, buffers: Mapping[str, int]) -> str:
    start = int(address, 16)
    name = next((name for name, at in buffers.items() if at == start), "")
    return f"{name} ({size} bytes)" if name else f"an allocation of {size} bytes"


def _at(address: int, what: str, buffers: Mapping[str, int]) -> str:
    """An address that the tool itself relates to nothing: by the buffer that begins before it."""
    before = max(((at, name) for name, at in buffers.items() if at <= address), default=None)
    where = f"{address - before[0]} bytes into {before[1]}" if before else f"address {address:#x}"
    return f"{where}, which {what}" if what else where


def _race(report: Report) -> str:
    text = " ".join([report.head, *report.details])
    sides = []
    for part in re.split(r"Race reported between | and (?=Read|Write|Atomic)", text)[1:3]:
        match = _ACCESS.match(part.strip())
        if match:
            where = _HAZARDS.sub("", match[2].strip())
            sides.append(f"a {match[1].lower()} {_place(f'at {where}') or where}".strip())
    count = re.search(r"\[(\d+) hazards?\]", text)
    times = f", {count[1]} times" if count else ""
    if len(sides) == 2:
        return f"a race in shared memory between {sides[0]} and {sides[1]}{times}: is a barrier missing?"
    return f"a race in shared memory: {report.head.removeprefix('Error: ')}."
