"""Tests office.py without a server, on a clock that is moved: pytest test_office.py"""

import pytest
from office import mq as application
from order import Order


@pytest.fixture
def office(mq):
    """A broker with the handlers of office.py."""
    for topic in ("parcels", "bills", "reports"):
        mq.create_topic(topic)
    mq.include(application.handlers)
    return mq


def parcels(mq, count):
    orders = [Order(f"o-{number}", "ada", 100) for number in range(count)]
    return [mq.publish("parcels", each, unique=each.number, keep_result="1h") for each in orders]


def test_a_parcel_is_packed_once(office):
    (first,) = parcels(office, 1)
    (again,) = parcels(office, 1)
    assert again.ref == first.ref
    office.run(stop_at_end=True)
    job = office.job(first)
    assert (job.result(), job.text) == ({"number": "o-0", "boxes": 4}, "box 4 of 4")


def test_a_bill_waits_for_all_parcels(office):
    packed, cancelled = parcels(office, 2)
    billed = office.join([packed, cancelled], then=("bills", "ada"), keep_result="1h")
    office.cancel(cancelled)
    office.run(stop_at_end=True)
    office.run(stop_at_end=True)  # the bill was published meanwhile
    assert office.result(billed) == "ada: 1 of 2 parcels, 4 boxes"


def test_a_report_comes_each_weekday(office, capsys):
    office.run(stop_at_end=True)  # declares the schedule
    office.advance("3d")
    office.run(stop_at_end=True)
    assert "report of the morning" in capsys.readouterr().out
