"""Numbers in texts where others may have written anything: headers of records, addresses of pages."""

DIGITS_MAX = 20


def whole(text: str | bytes | None, otherwise: int = 0) -> int:
    """`otherwise` for what is no whole number, or a longer one than a dialect writes."""
    fits = isinstance(text, str) and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fits and text else otherwise
