"""The console script.

Until the command line is imported, which takes a third of a second, Ctrl-C ends the process
silently, without a traceback.
"""

import signal
import sys
from typing import NoReturn

from gossipq.errors import missing_extra


def run() -> NoReturn:
    # otherwise it is ignored, as with nohup, and stays ignored
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from gossipq_cli import main
    except ModuleNotFoundError as missing:
        error = missing_extra(missing.name, "server")
        sys.exit(f"error: {error.message}\n hint: {error.hint}")
    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main.run()
