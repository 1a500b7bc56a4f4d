"""`python -m gossipq_node`: a node without the command line's libraries; the flags are those of `gossipq node`."""

import argparse
import os
import sys

from gossipq.config import find, load
from gossipq.errors import ConfigError
from gossipq_node.main import complain, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="gossipq node", description="Runs one node until SIGTERM or Ctrl-C.")
    parser.add_argument("--config", metavar="FILE", help="cluster.toml to read")
    parser.add_argument("--name", help="what people call this node; default: the host's name")
    parser.add_argument("--data", metavar="DIR", help="data directory, made when absent")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes of a new directory; 0 = one per core")
    parser.add_argument("--bind", metavar="tcp://HOST:PORT", help="where clients come first")
    parser.add_argument("--advertise", metavar="HOST", help="what clients are told to connect to")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster")
    parser.add_argument("--mode", choices=("auto", "standalone"))
    parser.add_argument("--insecure", action="store_true", default=None, help="allow a bind that other machines reach")
    given = vars(parser.parse_args())
    try:
        flags = {f"node.{name}": value for name, value in given.items() if name not in ("config", "cluster")}
        return run(load(find(given["config"], os.environ), os.environ, {**flags, "cluster.name": given["cluster"]}))
    except ConfigError as error:
        return complain(error, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
