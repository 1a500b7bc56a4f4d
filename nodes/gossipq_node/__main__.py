"""`python -m gossipq_node`: run a node without the libraries of the command line.

It has the flags of `gossipq node`.
"""

import argparse
import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    # imported late: it takes a while, and Ctrl-C can come in between
    from gossipq.config import find, load
    from gossipq.errors import ConfigError
    from gossipq_node.main import complain, run

    parser = argparse.ArgumentParser(
        prog="gossipq node", description="Runs one node until SIGTERM or Ctrl-C."
    )
    parser.add_argument("--config", metavar="FILE", help="cluster.toml to read")
    parser.add_argument("--name", help="name of this node; default: the host's name")
    parser.add_argument("--data", metavar="DIR", help="data directory; created if it does not exist")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="worker processes of a new directory; 0 = one per core"
    )
    parser.add_argument(
        "--bind",
        metavar="tcp://HOST:PORT",
        help="main address for clients; the node also uses some of the next 139 ports",
    )
    parser.add_argument("--advertise", metavar="HOST", help="host that clients are told to connect to")
    parser.add_argument("--admin", metavar="HOST:PORT", help='address of metrics and health; "" = off')
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster")
    parser.add_argument(
        "--join",
        action="append",
        metavar="HOST[:PORT]|INVITATION",
        help="a node of the cluster to join; repeat for more",
    )
    parser.add_argument(
        "--peer", action="append", metavar="tcp://HOST:PORT", help="another node; repeat for more"
    )
    parser.add_argument("--gossip", metavar="HOST:PORT", help="address of this node's Serf agent")
    parser.add_argument(
        "--secret-file", metavar="FILE", help="file with the secret that all nodes of the cluster share"
    )
    parser.add_argument("--encrypt", choices=("auto", "always", "never"))
    parser.add_argument("--mode", choices=("auto", "standalone", "static", "serf"))
    parser.add_argument("--witness", action="store_true", help="vote, and store no records")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow an unencrypted address that other machines can reach",
    )
    given = vars(parser.parse_args())
    try:
        config, witness = given.pop("config"), given.pop("witness")
        flags = {"cluster.name": given.pop("cluster"), "cluster.join": given.pop("join")}
        flags |= {f"node.{name}": value for name, value in given.items()}
        return run(load(find(config, os.environ), os.environ, flags), witness)
    except ConfigError as error:
        return complain(error, sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
