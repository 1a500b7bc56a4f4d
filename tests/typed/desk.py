"""An operator's script: why, dead letters, groups, schemas."""

from datetime import UTC, datetime, timedelta

from gossipq.errors import UnknownTopic, WrongState
from gossipq_client import Client, DeadLetter, connect


def explain(mq: Client, topic: str, group: str) -> list[str]:
    lines = [f"{stand.partition}: {stand.state} {stand.because}" for stand in mq.group(topic, group).why()]
    letters: list[DeadLetter] = list(mq.dead(topic, group).letters())
    lines += [f"{letter.ref} {letter.id or '-'} {letter.error}" for letter in letters]
    for name, value, origin in mq.group(topic, group).describe().policy:
        lines.append(f"{name}={value} ({origin})")
    for partition, span in mq.topic(topic).positions().items():
        lines.append(f"{partition}: {span.end - span.first}")
    return lines


def mend(mq: Client, topic: str, group: str) -> int:
    mq.group(topic, group).pause()
    try:
        mq.group(topic, group).seek(datetime.now(UTC) - timedelta(hours=1), dry_run=True)
    except WrongState as busy:
        print(busy.hint)
    finally:
        mq.group(topic, group).resume()
    mq.group(topic, group).configure(lease=timedelta(seconds=30), backoff="1s")
    return mq.dead(topic, group).replay()


def main() -> None:
    mq = connect(wait=5)
    try:
        print(*explain(mq, "orders", "billing"), sep="\n")
        print(mend(mq, "orders", "billing"))
        schema = mq.topic("orders").schema()
        print(schema.version if schema is not None else "no schema")
        for found in mq.read("orders", start="-1h").where(contains="ada", limit=3):
            print(found.ref, found.publish_time, found.id)
    except UnknownTopic as unknown:
        print(unknown)
    finally:
        mq.close()


if __name__ == "__main__":
    main()
