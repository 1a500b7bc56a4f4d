"""An operator's script: why, dead letters, groups, schemas."""

from datetime import UTC, datetime, timedelta

from gossipq.errors import UnknownTopic, WrongState
from gossipq_client import Client, DeadLetter, connect


def explain(mq: Client, topic: str, group: str) -> list[str]:
    lines = [
        f"{stand.partition}: {stand.state} {stand.because}" for stand in mq.admin.why_group(topic, group)
    ]
    letters: list[DeadLetter] = list(mq.admin.dead_letters(topic, group))
    lines += [f"{letter.ref} {letter.id or '-'} {letter.error}" for letter in letters]
    for name, value, origin in mq.admin.group_policy(topic, group).policy:
        lines.append(f"{name}={value} ({origin})")
    for partition, span in mq.admin.positions(topic).items():
        lines.append(f"{partition}: {span.end - span.first}")
    return lines


def mend(mq: Client, topic: str, group: str) -> int:
    mq.admin.pause(topic, group)
    try:
        mq.admin.seek_group(topic, group, datetime.now(UTC) - timedelta(hours=1), dry_run=True)
    except WrongState as busy:
        print(busy.hint)
    finally:
        mq.admin.resume(topic, group)
    mq.admin.set_group(topic, group, lease=timedelta(seconds=30), backoff="1s")
    return mq.admin.replay_dead(topic, group)


def main() -> None:
    mq = connect(wait=5)
    try:
        print(*explain(mq, "orders", "billing"), sep="\n")
        print(mend(mq, "orders", "billing"))
        schema = mq.admin.known_schema("orders")
        print(schema.version if schema is not None else "no schema")
        for found in mq.admin.find("orders", start="-1h", end=None, contains="ada", limit=3):
            print(found.ref, found.publish_time, found.id)
    except UnknownTopic as unknown:
        print(unknown)
    finally:
        mq.close()


if __name__ == "__main__":
    main()
