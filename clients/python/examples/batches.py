"""Handles many records in one call, for a database that loads many rows at once.

Needs a node: gossipq node
"""

from dataclasses import dataclass

import gossipq

mq = gossipq.connect()


@dataclass
class Click:
    page: str
    ms: int


# -- in the guide
@mq.consumer("clicks", group="warehouse", batch_size=500, batch_wait="1s")
def load(clicks: list[Click], messages: list[gossipq.Message]) -> None:
    bad = [msg for click, msg in zip(clicks, messages, strict=True) if click.ms < 0]
    for msg in bad:
        msg.reject("time before the page was shown")  # the others of the list are acked
    # --
    print(f"{len(clicks) - len(bad)} of {len(clicks)} clicks loaded")


if __name__ == "__main__":
    mq.publish_many("clicks", [b'{"page": "/", "ms": %d}' % ms for ms in range(-1, 99)])
    mq.run(stop_at_end=True)
    for letter in mq.dead("clicks", "warehouse").letters():
        print(letter.reason, letter.error)
    mq.close()
