"""Tests handlers.py without a server, on a clock that the test moves: pytest test_shop.py"""

from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def shop(mq, monkeypatch):
    """handlers.py, whose client connects to the broker of the test."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    module = import_module("handlers")
    with module.mq:
        yield module


# -- in the guide
def test_an_order_is_packed_when_it_is_due(mq, shop, capsys):
    mq.publish("shop", '{"item": "figs", "count": 3}', delay="1h")
    mq.advance("1h")
    shop.mq.run(stop_at_end=True)
    assert capsys.readouterr().out == "3 figs packed\n"


# --
def test_nobody_packs_too_early(mq, shop, capsys):
    mq.publish("shop", '{"item": "figs", "count": 3}', delay="1h")
    mq.advance("59m")
    shop.mq.run(stop_at_end=True)
    assert capsys.readouterr().out == ""
