"""Numbers in sentences."""


def count(number: int, noun: str, several: str = "") -> str:
    """`1 evaluation`, `2 evaluations`; `several` where an s does not make the plural."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"
