"""Reports how far a handler is, and follows that from another program. Needs a node: gossipq node"""

import threading

import gossipq

with gossipq.connect() as mq, gossipq.connect() as worker:
    # -- in the guide
    @worker.consumer("books", group="printers")
    def print_pages(pages: list[str], msg: gossipq.Message) -> int:
        for number, _page in enumerate(pages, 1):
            msg.progress(number / len(pages), f"page {number} of {len(pages)}")
        return len(pages)

    # --
    working = threading.Thread(target=worker.run)
    working.start()
    receipt = mq.publish("books", ["one", "two", "three"], keep_result="1h")
    # -- in the guide
    for job in mq.follow(receipt):
        print(job.state, job.progress, job.text)
    # --
    print("printed", mq.result(receipt, timeout="30s"))
    worker.stop()
    working.join()
