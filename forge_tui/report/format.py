"""Numbers and foreign text for tables: fixed forms, ASCII units, nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Mapping

from forge_tui.core import words
from forge_tui.core.money import dollars
from forge_tui.core.records import Confirmation, Verdict

count = words.count


def one_line(text: str) -> str:
    """The text in one line; control characters, which could drive a terminal, are shown as `?`."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def time_us(us: float | None) -> str:
    """`412.3 us`, `1.24 ms`, `2.50 s`; `-` where it is not known."""
    if us is None:
        return "-"
    if us < 999.95:
        return f"{us:.1f} us"
    return f"{us / 1e3:.2f} ms" if us < 999_995 else f"{us / 1e6:.2f} s"


def time_ms(ms: float | None) -> str:
    """The same for milliseconds, with three digits more below one."""
    if ms is None:
        return "-"
    return f"{ms:.3f} ms" if ms < 9.9995 else f"{ms:.1f} ms" if ms < 9999.5 else f"{ms / 1e3:.1f} s"


def span(ms: float | None) -> str:
    """Milliseconds in a fitting unit: `3.4 us`, `1.234 ms`."""
    return time_us(1e3 * ms) if ms is not None and abs(ms) < 0.99995 else time_ms(ms)


def times(value: float | None, digits: int = 2) -> str:
    """A speedup: `1.25x`. Whole models get three digits, as a percent there is a lot."""
    return "-" if value is None else f"{value:.{digits}f}x" if value < 99.995 else f"{value:.0f}x"


def interval(pair: tuple[float, float] | None, digits: int = 2) -> str:
    """`1.20-1.30`."""
    return "-" if pair is None else "-".join(times(value, digits).removesuffix("x") for value in pair)


def money(usd: float, *, lower_bound: bool = False) -> str:
    """`$1.23`, or `at least $1.23` where some price is not known."""
    return f"at least {dollars(usd)}" if lower_bound else dollars(usd)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float) -> str:
    """A share from 0 to 1 as `12.3%`."""
    return f"{100 * share:.1f}%"


def resource_lines(resources: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What the compiler gave each kernel: `rows: 32 registers, 0 B spilled, 1024 B shared, 0 B stack`."""
    words = {"registers": "registers", "spill_bytes": "B spilled", "smem_bytes": "B shared", "stack_bytes": "B stack"}
    return [
        f"{one_line(kernel)}: " + ", ".join(f"{found[key]} {word}" for key, word in words.items() if key in found)
        for kernel, found in resources.items() if found
    ]  # fmt: skip


def confirmation_lines(found: Confirmation | None) -> list[str]:
    """What the final confirmation of a winner came to, and which sanitizer's passes it was given."""
    if found is None:
        return []
    if not found.passed:
        return ["not confirmed"] if found.verdict is not Verdict.INFRA else [f"not confirmed: {one_line(found.reason)}"]
    lines = [f"confirmed in fresh processes: {times(found.speedup, 3)}, 95% interval {interval(found.speedup_ci, 3)}"]
    passes = ", ".join(found.sanitised)
    if found.unsanitised:
        lines.append(f"unsanitised{f' (but for {passes})' if passes else ''}: {one_line(found.unsanitised)}")
    elif passes:
        lines.append(f"sanitised: {passes}")
    return lines


def number(value: float) -> str:
    """A weight: `1`, `128`, `0.5`."""
    return f"{value:g}"
