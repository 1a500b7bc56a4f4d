"""Parts of SQS without anything around them: signatures as botocore makes them, digests, queues, FIFO."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gossipq.errors import ConfigError
from gossipq_gateway.leases import Leases
from gossipq_gateway.sqs import actions, messages, queues, signature
from gossipq_gateway.sqs.access_keys import AccessKeys
from gossipq_gateway.sqs.faults import SqsFault
from gossipq_gateway.sqs.fifo import Order
from gossipq_gateway.sqs.messages import Attribute

SECRET = "wJalrXUtnFEMI"


def signed(url: str, body: bytes, **headers: str) -> signature.Asked:
    """As botocore signs it, now."""
    request = AWSRequest(
        "POST", url, headers={"Content-Type": "application/x-amz-json-1.0", **headers}, data=body
    )
    SigV4Auth(Credentials("AKIA", SECRET), "sqs", "eu-1").add_auth(request)
    sent = request.prepare()
    host, _, path = sent.url.removeprefix("http://").partition("/")
    path, _, query = path.partition("?")
    found = {
        name.lower(): value if isinstance(value, str) else value.decode()
        for name, value in sent.headers.items()
    }
    return signature.Asked("POST", f"/{path}", query, {"host": host, **found}, body)


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1",
        "http://h:1/",
        "http://h:1/sqs/0/q.fifo",
        "http://h:1/sqs?b=2&a=1%2F&a=",
        "http://h:1/a%20b",
    ],
)
def test_what_botocore_signs_is_taken(url: str) -> None:
    asked = signed(url, b'{"a":"\xc3\xa9"}', **{"X-Amz-Target": "AmazonSQS.SendMessage"})
    found = signature.read(asked.headers["authorization"])
    assert (found.key_id, found.service) == ("AKIA", "sqs")
    signature.check(asked, found, SECRET, now_ms())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"body": b"{}"}, "SignatureDoesNotMatch"),
        ({"path": "/other"}, "SignatureDoesNotMatch"),
        ({"query": "x=1"}, "SignatureDoesNotMatch"),
        ({"host": "evil"}, "SignatureDoesNotMatch"),
        ({"now_ms": 16 * 60_000}, "RequestExpired"),
        ({"now_ms": -16 * 60_000}, "RequestExpired"),
        ({"x-amz-date": "20000101T000000Z"}, "IncompleteSignature"),
        ({"secret": "other"}, "SignatureDoesNotMatch"),
    ],
)
def test_what_was_changed_is_not(change: dict[str, Any], code: str) -> None:
    asked = signed("http://h:1/sqs", b'{"a":1}')
    found = signature.read(asked.headers["authorization"])
    headers = {
        **asked.headers,
        **{name: value for name, value in change.items() if name in ("host", "x-amz-date")},
    }
    asked = asked._replace(headers=headers)
    asked = asked._replace(
        **{name: value for name, value in change.items() if name in ("body", "path", "query")}
    )
    with pytest.raises(SqsFault) as refused:
        signature.check(asked, found, change.get("secret", SECRET), now_ms() + change.get("now_ms", 0))
    assert refused.value.code == code


@pytest.mark.parametrize(
    "text", ["", "Bearer x", "AWS4-HMAC-SHA256 Credential=a/b", "AWS4-HMAC-SHA256 " * 1000]
)
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(SqsFault):
        signature.read(text)


def test_digests_are_those_of_amazon() -> None:
    assert messages.digest("This is a test message") == "fafb00f5732ab283681e124bf8747ed1"
    attributes = {"timestamp": Attribute("Number", "1493147359900")}
    assert messages.digest_of(attributes) == "235c5c510d26fb653d073faed50ae77c"
    attributes = {"name": Attribute("Binary", binary_value="AQID"), "n": Attribute("Number", "17")}
    assert messages.digest_of(attributes) == messages.digest_of(dict(reversed(attributes.items())))


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        ("", {}),
        ("\x00", {}),
        ("x" * ((1 << 20) + 1), {}),
        ("x", {"a": Attribute("Strange", "x")}),
        ("x", {"a": Attribute("String", "")}),
        ("x", {"a": Attribute("Binary", binary_value="!")}),
        ("x", {"a": Attribute("Binary", binary_value="\u00e9")}),
        ("x", {str(number): Attribute("String", "x") for number in range(11)}),
    ],
)
def test_what_is_no_message_is_refused(body: str, attributes: dict[str, Attribute]) -> None:
    with pytest.raises(SqsFault):
        messages.check(body, attributes)


@pytest.mark.parametrize("given", [5, "All", [[]], {"a": "b"}])
def test_lists_of_names_are_such(given: object) -> None:
    with pytest.raises(SqsFault):
        actions._names({"TagKeys": given}, "TagKeys")
    assert actions._names({"TagKeys": ["a"]}, "TagKeys") == ["a"]
    assert actions._names({}, "TagKeys") == []


def test_attributes_are_wanted_by_name_and_prefix() -> None:
    known = {"a": 1, "b.c": 2, "b.d": 3}
    assert messages.wanted(["All"], known) == known
    assert messages.wanted(["b.*", "a"], known) == known
    assert messages.wanted(["b.c", "x"], known) == {"b.c": 2}


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "a.b", ".fifo", "x" * 81, "x" * 76 + ".fifo", "a.fifo.fifo", "_audit"]
)
def test_what_is_no_name_of_a_queue_is_refused(name: str) -> None:
    with pytest.raises(SqsFault):
        queues.check_name(name)


@pytest.mark.parametrize(
    "given",
    [
        {"DelaySeconds": "901"},
        {"VisibilityTimeout": "-1"},
        {"VisibilityTimeout": "99999999999999999999"},
        {"VisibilityTimeout": "٣"},
        {"FifoQueue": "true"},
        {"Nonsense": "1"},
        {"RedrivePolicy": "{"},
        {"RedrivePolicy": '{"deadLetterTargetArn":"a:b:q","maxReceiveCount":3}'},
        {"RedrivePolicy": '{"deadLetterTargetArn":"a:b:d","maxReceiveCount":"0"}'},
        {"RedriveAllowPolicy": '{"redrivePermission":"some"}'},
        {"RedriveAllowPolicy": '{"redrivePermission":"byQueue"}'},
        {"RedriveAllowPolicy": '{"redrivePermission":"denyAll","sourceQueueArns":["a"]}'},
        {"DeduplicationScope": "queue"},
        {"Policy": "{}"},
        {"KmsMasterKeyId": "alias/x"},
        {"KmsDataKeyReusePeriodSeconds": "300"},
        {"SqsManagedSseEnabled": "true"},
    ],
)
def test_wrong_attributes_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(SqsFault):
        queues.check_attributes("q", given)


def test_attributes_that_say_what_is_true_are_taken() -> None:
    queues.check_attributes("q", {"Policy": "", "SqsManagedSseEnabled": "false", "RedriveAllowPolicy": ""})
    fifo = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    queues.check_attributes("q.fifo", fifo)
    queues.check_scope(queues.Queue("q.fifo", fifo), [])
    with pytest.raises(SqsFault):
        queues.check_scope(queues.Queue("q.fifo", {**fifo, "DeduplicationScope": "queue"}), [])
    for attribute in ("FifoQueue", *fifo):
        with pytest.raises(SqsFault):
            queues.check_attributes("q.fifo", {attribute: "something"})


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ("", True),
        ('{"redrivePermission":"allowAll"}', True),
        ('{"redrivePermission":"denyAll"}', False),
        ('{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:r:0:q"]}', True),
        ('{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:r:0:p"]}', False),
    ],
)
def test_a_queue_says_whose_dead_letters_it_takes(policy: str, allowed: bool) -> None:
    queues.check_attributes("dead", {"RedriveAllowPolicy": policy})
    dead = queues.Queue("dead", {"RedriveAllowPolicy": policy})
    assert dead.takes_dead_letters_of(queues.Queue("q", {})) is allowed


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "x" * 129, "a\n"])
def test_what_is_no_name_of_a_group_is_refused(name: str) -> None:
    with pytest.raises(SqsFault):
        messages.check_names(MessageGroupId=name)


def test_an_id_of_a_group_shows_what_was_sent() -> None:
    assert messages.deduplication_of(messages.record_id("a/b", "c:d")) == "c:d"
    assert messages.deduplication_of("c:d") == "c:d"
    assert messages.deduplication_of("") == ""


def test_only_the_trace_header_is_a_system_attribute() -> None:
    messages.check_system({"AWSTraceHeader": Attribute("String", "Root=1")})
    for given in {"Other": Attribute("String", "x")}, {"AWSTraceHeader": Attribute("Number", "1")}:
        with pytest.raises(SqsFault):
            messages.check_system(given)


def test_access_keys_are_of_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text('{"AKIA": {"secret": "s"}}')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="may read"):
        AccessKeys(str(path))
    path.chmod(0o600)
    keys = AccessKeys(str(path))
    assert keys.find("AKIA") == ("s", b"")
    with pytest.raises(SqsFault):
        keys.find("other")
    path.write_text('{"AKIA": {"secret": "t", "token": "gq_' + "ab" * 32 + '"}}')
    os.utime(path, ns=(1, 1))
    keys.look()
    assert keys.find("AKIA") == ("t", b"\xab" * 32)
    path.write_text("nonsense")
    with pytest.raises(ConfigError):
        keys.look()
    assert keys.find("AKIA")[0] == "t"


class Item(NamedTuple):
    key: bytes
    ref: str
    lost: bool = False
    attempt: int = 1
    topic_id: int = 3


def test_messages_of_a_group_wait_for_each_other() -> None:
    leases = Leases[Item]("g")
    order = Order(leases)
    came = [Item(b"a", "t/0/0"), Item(b"a", "t/0/1"), Item(b"b", "t/0/2"), Item(b"a", "t/0/3")]
    first = order.take(came, 2)
    assert [item.ref for item in first] == ["t/0/0", "t/0/1"]
    held = [leases.add("sqs", item, 100, None) for item in first]
    order.hand_out(held)
    (other,) = order.take((), 10)
    assert other.key == b"b"
    order.hand_out([leases.add("sqs", other, 100, None)])
    assert order.take([Item(b"b", "t/0/4")], 10) == []
    leases.drop(held[0], acked=True)
    assert order.take((), 10) == []
    leases.due(100)
    assert [item.ref for item in order.take((), 10)] == ["t/0/3", "t/0/4"]


def test_a_group_is_remembered_as_long_as_a_message_of_it_is_in_hand() -> None:
    leases = Leases[Item]("g")
    order = Order(leases)
    (first,) = order.take([Item(b"a", "t/0/0")], 1)
    lease = leases.add("sqs", first, 100, None)
    order.hand_out([lease])
    assert order.give_up() == []
    assert order.in_hand
    leases.drop(lease, acked=True)
    assert not order.in_hand


def test_what_waits_and_went_back_is_not_handed_out() -> None:
    order = Order(Leases[Item]("g"))
    order.take([Item(b"a", "t/0/0"), Item(b"a", "t/0/1", lost=True), Item(b"a", "t/0/2")], 1)
    assert [item.ref for item in order.give_up()] == ["t/0/2"]
    assert len(order) == 0


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        '{"a": {"DataType": "Binary", "BinaryValue": "%"}}',
        '{"a": {"DataType": "Binary", "BinaryValue": "\u00e9"}}',
        '{"a": {"DataType": "String", "x": ' + "[" * 20_000 + "]" * 20_000 + "}}",
    ],
)
def test_attributes_that_somebody_else_wrote_keep_no_message_from_being_received(text: str) -> None:
    found = messages.attributes_of({"sqs.attributes": text.encode()})
    messages.digest_of(found)
    assert found == {}
