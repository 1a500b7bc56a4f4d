"""Receipt handles of SQS, with boto3: after the visibility timeout, after a later receive, at another
gateway, and after a restart. A call that did nothing is never answered as if it had."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from conftest import RunningNode
from gateway.amazon import bodies, client, code, flags
from gateway.conftest import RunningGateway
from waiting import until

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def gateways(
    shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningGateway, RunningGateway]]:
    """Two of one cluster, with the same access key."""
    home, other = (tmp_path_factory.mktemp("handles") for _ in range(2))
    with (
        RunningGateway(shared_node.endpoint, *flags(home), home=home) as first,
        RunningGateway(shared_node.endpoint, *flags(other), home=other) as second,
    ):
        yield first, second
    assert "Traceback" not in first.said + second.said


@pytest.fixture
def sqs(gateways: tuple[RunningGateway, RunningGateway]) -> Any:
    return client(gateways[0])


@pytest.fixture
def other(gateways: tuple[RunningGateway, RunningGateway]) -> Any:
    return client(gateways[1])


def queue(sqs: Any, name: str, **attributes: str) -> str:
    made = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "1", **attributes})
    return str(made["QueueUrl"])


def received(sqs: Any, url: str, wait_s: int = 5, most: int = 10) -> list[dict[str, Any]]:
    found = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=most, WaitTimeSeconds=wait_s, AttributeNames=["All"]
    )
    return list(found.get("Messages", []))


def delete(sqs: Any, url: str, message: dict[str, Any]) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def await_timeout(sqs: Any, url: str) -> None:
    """Wait until the visibility timeout of what was received is over, and the gateway has noticed."""

    def hidden() -> str:
        shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return str(shown["ApproximateNumberOfMessagesNotVisible"])

    until(lambda: hidden() == "0")


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as refused:
        ask()
    return code(refused)


def test_a_slow_consumer_of_a_batch_gets_no_message_twice(sqs: Any) -> None:
    url = queue(sqs, "slow-batch")
    for body in "abcd":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    messages: list[dict[str, Any]] = []
    while len(messages) < 4:
        messages += received(sqs, url)
    for message in messages:
        time.sleep(0.7)
        delete(sqs, url, message)
    assert received(sqs, url, 2) == []


def test_a_late_batch_of_deletes_says_what_it_did(sqs: Any) -> None:
    url = queue(sqs, "late-batch")
    for body in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    first: dict[str, str] = {}
    while len(first) < 2:
        first |= {message["Body"]: message["ReceiptHandle"] for message in received(sqs, url)}
    await_timeout(sqs, url)
    (again,) = received(sqs, url, most=1)
    entries = [{"Id": body, "ReceiptHandle": handle} for body, handle in first.items()]
    entries.append({"Id": "none", "ReceiptHandle": "nonsense"})
    done = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    stale = again["Body"]
    assert [each["Id"] for each in done["Successful"]] == [body for body in first if body != stale]
    assert sorted((each["Id"], each["Code"]) for each in done["Failed"]) == [
        (stale, "ReceiptHandleIsInvalid"),
        ("none", "ReceiptHandleIsInvalid"),
    ]
    delete(sqs, url, again)
    assert received(sqs, url, 2) == []


def test_a_job_that_takes_longer_than_its_timeout_is_no_dead_letter(sqs: Any) -> None:
    dead = queue(sqs, "slow-dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = queue(sqs, "slow-job", RedrivePolicy=policy)
    sqs.send_message(QueueUrl=url, MessageBody="job")
    (message,) = received(sqs, url)
    await_timeout(sqs, url)
    delete(sqs, url, message)
    delete(sqs, url, message)
    assert received(sqs, url, 2) == []
    assert received(sqs, dead, 1) == []


def test_a_handle_deletes_nothing_that_was_received_again(sqs: Any, other: Any) -> None:
    url = queue(sqs, "stale")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = received(sqs, url)
    await_timeout(sqs, url)
    (second,) = received(other, url)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert refusal(lambda: delete(sqs, url, first)) == "ReceiptHandleIsInvalid"
    assert refusal(lambda: delete(other, url, first)) == "ReceiptHandleIsInvalid"
    await_timeout(sqs, url)
    assert refusal(lambda: delete(sqs, url, first)) == "ReceiptHandleIsInvalid", "nor when that one is late"
    delete(sqs, url, second)
    assert received(sqs, url, 2) == []


def test_a_handle_deletes_at_another_gateway(sqs: Any, other: Any) -> None:
    url = queue(sqs, "balanced", VisibilityTimeout="30")
    for body in "abcdef":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    runs: list[str] = []
    while len(runs) < 6:
        for message in received(sqs, url):
            runs.append(message["Body"])
            delete(other if len(runs) % 2 else sqs, url, message)
            delete(sqs, url, message)
            delete(other, url, message)
    assert sorted(runs) == list("abcdef")
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert shown["ApproximateNumberOfMessages"] == shown["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_what_another_gateway_cannot_do_it_refuses(sqs: Any, other: Any) -> None:
    fifo = queue(sqs, "balanced.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    plain = queue(sqs, "changed-there", VisibilityTimeout="30")
    sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="a")
    sqs.send_message(QueueUrl=plain, MessageBody="x")
    (ordered,), (message,) = received(sqs, fifo), received(sqs, plain)
    assert refusal(lambda: delete(other, fifo, ordered)) == "ReceiptHandleIsInvalid"
    for url, handle in (fifo, ordered["ReceiptHandle"]), (plain, message["ReceiptHandle"]):
        change = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0}
        assert refusal(lambda: other.change_message_visibility(**change)) == "ReceiptHandleIsInvalid"  # noqa: B023
    entry = {"Id": "0", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 9}
    changed = other.change_message_visibility_batch(QueueUrl=plain, Entries=[entry])
    assert [each["Code"] for each in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    delete(sqs, plain, message)


def test_stale_handles_of_a_fifo_queue_have_expired(sqs: Any) -> None:
    url = queue(sqs, "stale.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="a")
    (first,) = received(sqs, url)
    await_timeout(sqs, url)
    handle = first["ReceiptHandle"]
    assert refusal(lambda: delete(sqs, url, first)) == "InvalidParameterValue"
    change = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 9}
    assert refusal(lambda: sqs.change_message_visibility(**change)) == "InvalidParameterValue"
    (again,) = received(sqs, url)
    delete(sqs, url, again)
    delete(sqs, url, again)
    assert received(sqs, url, 2) == []


def test_a_message_is_not_in_flight_after_its_timeout(sqs: Any) -> None:
    url = queue(sqs, "over")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = received(sqs, url)
    await_timeout(sqs, url)
    change = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 9}
    assert "MessageNotInflight" in refusal(lambda: sqs.change_message_visibility(**change))
    delete(sqs, url, message)


def test_a_handle_is_good_after_a_restart_of_the_gateway(
    shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory, sqs: Any
) -> None:
    url, home = queue(sqs, "restarted", VisibilityTimeout="30"), tmp_path_factory.mktemp("restarted")
    for body in "abc":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    with RunningGateway(shared_node.endpoint, *flags(home), home=home) as gateway:
        messages: list[dict[str, Any]] = []
        while len(messages) < 3:
            messages += received(client(gateway), url, most=3 - len(messages))
        gateway.stop()
        gateway.start()
        delete(client(gateway), url, messages[0])
        delete(sqs, url, messages[1])
        assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)) == [messages[2]["Body"]]
        assert refusal(lambda: delete(client(gateway), url, messages[2])) == "ReceiptHandleIsInvalid"


def test_a_queue_that_was_made_anew_is_another_one(sqs: Any) -> None:
    url = queue(sqs, "anew", VisibilityTimeout="30")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (old,) = received(sqs, url)
    sqs.delete_queue(QueueUrl=url)
    queue(sqs, "anew", VisibilityTimeout="30")
    sqs.send_message(QueueUrl=url, MessageBody="y")
    (new,) = received(sqs, url)
    assert refusal(lambda: delete(sqs, url, old)) == "ReceiptHandleIsInvalid"
    delete(sqs, url, new)


def test_nothing_is_in_flight_that_nobody_has(sqs: Any) -> None:
    """A gateway does not fetch ahead. The last receiver could not delete a message that waits there, and its
    count of receives would be too high."""
    url = queue(sqs, "ahead", VisibilityTimeout="30")
    for body in "abcdefgh":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    for count in range(1, 5):
        assert len(received(sqs, url, most=1)) == 1
        shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert shown["ApproximateNumberOfMessagesNotVisible"] == str(count)
