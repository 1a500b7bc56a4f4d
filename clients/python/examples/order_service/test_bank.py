"""Tests bank.py without a server, on a clock that is moved: pytest test_bank.py"""

import json

import pytest
from bank import mq as application
from order import Order


@pytest.fixture
def bank(mq):
    """A broker with both topics, and the handlers of bank.py."""
    mq.create_topic("orders")
    mq.create_topic("receipts", beside="orders")
    mq.include(application.handlers)
    return mq


def receipts(mq):
    return [json.loads(msg.value)["number"] for msg in mq.read("receipts")]


def test_an_order_is_paid_once(bank):
    for _ in range(2):
        bank.publish("orders", Order("o-1", "ada", 250), key="ada", id="o-1")
    bank.run(stop_at_end=True)
    assert receipts(bank) == ["o-1"]


def test_an_order_waits_for_the_bank(bank, monkeypatch):
    bank.publish("orders", Order("o-1", "ada", 250), key="ada")
    monkeypatch.setenv("BANK", "closed")
    bank.run(stop_at_end=True)
    assert receipts(bank) == []
    monkeypatch.delenv("BANK")
    bank.advance("1s")
    bank.run(stop_at_end=True)
    assert receipts(bank) == ["o-1"]


def test_an_empty_order_becomes_a_dead_letter(bank):
    bank.publish("orders", Order("o-2", "bob", 0), key="bob")
    bank.run(stop_at_end=True)
    (letter,) = bank.dead("orders", "bank").letters()
    assert letter.error == "nothing to pay"
