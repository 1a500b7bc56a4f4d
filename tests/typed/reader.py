"""Reads in bulk, tests with a broker of its own, and without a server."""

from gossipq_client import embedded, testing


def total(directory: str) -> int:
    with embedded.open(directory, timeout="10s") as mq:
        receipt = mq.publish_many("rows", [b"1", "2", {"n": 3}], keys=["a", None, "b"])
        size = sum(len(stretch.values()) for stretch in mq.read("rows", start="first", end=None).batches())
        return size + receipt.count


def rehearse() -> list[bytes]:
    with testing.Broker() as broker, broker.connect() as mq:
        mq.post("reminders", b"tea", delay="5m")
        mq.advance("5m")
        batch = mq.fetch("reminders", "ada", n=1)
        mq.ack_soon(batch)
        return batch.values()


if __name__ == "__main__":
    print(total("data"), rehearse())
