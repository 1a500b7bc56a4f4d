"""A web application that publishes. Needs flask, gunicorn, and a node:

gunicorn -w 2 --preload flask_orders:app
"""

from flask import Flask

import gossipq

app = Flask(__name__)
mq = gossipq.connect()


@app.post("/orders/<item>")
def order(item: str) -> dict[str, str]:
    return {"ref": mq.publish("orders", {"item": item}).ref}


@app.get("/livez")
def livez() -> str:
    return "alive"
