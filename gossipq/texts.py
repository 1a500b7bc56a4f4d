"""Numbers and times as text for people, the same on every surface."""


def many(count: int, noun: str, plural: str = "") -> str:
    """1 record, 1,200 records; 1 copy, 2 copies."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def size(value: int) -> str:
    """Bytes for people: 12 B, 3.4 KiB, 1.2 GiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(span_ms: int) -> str:
    """A time span for people: 40 ms, 1.5 h."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.1f}".removesuffix(".0") + f" {unit}"
    return f"{max(0, span_ms)} ms"


def printable(text: str, keep: str = "") -> str:
    """Replace control, invisible and direction-changing characters by escapes.

    Letters of every language, and the characters in `keep`, stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
