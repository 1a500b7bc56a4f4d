"""The contents of a topic in a live cluster."""

from collections import Counter

from gossipq_client import Client


def values(mq: Client, topic: str) -> Counter[bytes]:
    return Counter(msg.value for msg in mq.read(topic))
