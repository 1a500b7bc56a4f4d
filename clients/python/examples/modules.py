"""Handlers of several modules in one application, with functions for its start and end. Needs a node:
gossipq node

In an application each part is a file of its own: shop.py, mails.py, and app.py with the client.
"""

import gossipq

shop = gossipq.Handlers()


@shop.on_startup
def open_database() -> None:
    print("opened")


@shop.on_shutdown
def close_database() -> None:
    print("closed")


@shop.consumer("parcels", group="packers")
def pack(parcel: str) -> None:
    print(f"{parcel} packed")
    mq.publish("mails", "ada")


mails = gossipq.Handlers()


@mails.consumer("mails", group="senders")
def send(address: str) -> None:
    print(f"mail to {address}")


mq = gossipq.connect()
# -- in the guide
mq.include(shop, mails)  # their handlers and hooks, also those that they register later
# --

if __name__ == "__main__":
    mq.publish("parcels", "17 apples")
    mq.run(max_records=2)  # without it: until SIGTERM or Ctrl-C
    mq.close()
