"""Reads records again from any position. Reading changes no group. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    for start in ("first", 2, "-10m"):  # or "new", or an aware datetime
        offsets = [msg.offset for msg in mq.read("orders", start=start)]
        print(f"from {start}: {len(offsets)} records, the first at {offsets[0]}")
