"""Numbers in untrusted text, such as headers of records and addresses of pages."""

DIGITS_MAX = 20


def whole(text: str | bytes | None, otherwise: int = 0) -> int:
    """Return a whole number, or `otherwise` for other texts and too long numbers."""
    fits = isinstance(text, str) and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fits and text else otherwise
