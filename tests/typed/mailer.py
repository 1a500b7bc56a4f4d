"""Handlers with their own types, middleware, and a request."""

from typing import Any

import msgspec

from gossipq_client import Message, Middleware, NoReply, Reject, connect
from gossipq_client.middleware import MessageLog


class Mail(msgspec.Struct):
    to: str
    text: str


class Counting(Middleware):
    done = 0

    def after(self, message: Any, result: Any) -> None:
        self.done += 1


mq = connect(name="mailer", spool=None)
counting = Counting()
mq.add_middleware(counting)
mq.add_middleware(MessageLog())


@mq.consumer("mails", group="smtp", workers=4, time_limit="30s")
def send(mail: Mail, msg: Message) -> str:
    if "@" not in mail.to:
        raise Reject(f"{msg.ref}: no address")
    return f"sent to {mail.to}"


@mq.consumer(["bounces", "complaints"], group="smtp")
async def note(value: dict[str, int]) -> None:
    print(value.get("code", 0))


def ask(to: str) -> str:
    try:
        return mq.request("mails", Mail(to, "hello"), timeout="5s").value.decode()
    except NoReply as none:
        return none.message


if __name__ == "__main__":
    mq.run(stop_at_end=True)
    print(counting.done, send(Mail("ada@x", ""), next(iter(mq.consume("mails", group="senders")))))
