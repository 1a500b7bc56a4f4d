"""Numbers that dialects write into headers of records, where others may have written anything."""

DIGITS_MAX = 20


def whole(text: str | bytes | None) -> int:
    """Of a header; 0 for what is no whole number, or a longer one than a dialect writes."""
    fits = isinstance(text, str) and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fits and text else 0
