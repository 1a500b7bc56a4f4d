"""The example that encrypts values: what was changed, or is of another topic or key, does not open."""

import runpy

import pytest
from cryptography.exceptions import InvalidTag

from conftest import HOME

Sealer = runpy.run_path(str(HOME / "clients" / "python" / "examples" / "sealed.py"))["Sealer"]
OLD, NEW = b"o" * 32, b"n" * 32


def test_what_is_sealed_opens_with_its_key_alone() -> None:
    before, now = Sealer({1: OLD}, 1), Sealer({1: OLD, 2: NEW}, 2)
    sealed = before.seal(b"value", "a")
    assert now.open(sealed, "a") == b"value"
    assert before.seal(b"value", "a") != sealed, "another nonce each time"
    with pytest.raises(KeyError):
        before.open(now.seal(b"value", "a"), "a")
    with pytest.raises(InvalidTag):
        now.open(sealed, "b")
    with pytest.raises(InvalidTag):
        now.open(bytes((2,)) + sealed[1:], "a")
    for at in range(1, len(sealed)):
        with pytest.raises(InvalidTag):
            now.open(sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :], "a")


@pytest.mark.parametrize("size", [0, 1, 12, 13, 20])
def test_what_is_too_short_does_not_open(size: int) -> None:
    with pytest.raises((InvalidTag, IndexError, ValueError)):
        Sealer({1: OLD}, 1).open(bytes((1,)) * size, "a")
