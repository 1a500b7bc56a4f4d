"""Binds a book when all of its pages are printed. Needs a node: gossipq node"""

import threading

import gossipq

with gossipq.connect() as mq, gossipq.connect() as worker:
    mq.create_topic("pages", attempts_max=1, if_not_exists=True)
    mq.create_topic("bindings", if_not_exists=True)

    @worker.consumer("pages", group="printers")
    def print_page(text: str) -> int:
        if not text:
            raise ValueError("an empty page")
        return len(text)

    # -- in the guide
    @worker.consumer("bindings", group="binders")
    def bind(title: str, msg: gossipq.Message) -> str:
        printed = [job for job in msg.joined if job.state == "succeeded"]
        letters = sum(mq.result(job.ref) for job in printed)
        return f"{title}: {len(printed)} of {len(msg.joined)} pages, {letters} letters"

    # --
    working = threading.Thread(target=worker.run)
    working.start()
    # -- in the guide
    pages = [mq.publish("pages", text, keep_result="1h") for text in ("It was", "a dark", "")]
    book = mq.join(pages, then=("bindings", "Storm"), timeout="1h", keep_result="1h")
    print(mq.result(book, timeout="30s"))
    # --
    worker.stop()
    working.join()
