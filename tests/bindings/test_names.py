"""Names of hosts: while a name server is silent, a client sends to its other servers.

A library in front of libc looks up names that end with `.dead` for longer than the test may take.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bindings.languages import Language, languages
from conftest import RunningNode
from gossipq_cli.conformance.driver import Driver

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: make bindings"),
]
SILENT_S, WITHIN_S = 120, 60
SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
typedef const struct addrinfo *hint;
int getaddrinfo(const char *name, const char *service, hint hints, struct addrinfo **found) {{
    static int (*next)(const char *, const char *, hint, struct addrinfo **);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    size_t length = name ? strlen(name) : 0;
    if (length > 5 && !strcmp(name + length - 5, ".dead")) {{
        sleep({SILENT_S});
        return EAI_AGAIN;
    }}
    return next(name, service, hints, found);
}}
"""


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("silent")
    (home / "silent.c").write_text(SOURCE)
    line = ["cc", "-shared", "-fPIC", "-o", str(home / "silent.so"), str(home / "silent.c"), "-ldl"]
    subprocess.run(line, check=True)
    return home / "silent.so"


@pytest.mark.slow
@pytest.mark.parametrize("language", languages(), ids=lambda each: each.name)
def test_a_dead_name_stops_no_other_connection(
    language: Language, shared_node: RunningNode, silent: Path
) -> None:
    if language.missing:
        pytest.skip(language.missing)
    servers = ["tcp://first.dead:7700", "tcp://second.dead:7700", shared_node.endpoint]
    with Driver(f"env LD_PRELOAD={silent} {language.command}") as driver:
        driver.say("connect", servers=servers)
        driver.hear(WITHIN_S)
        driver.say(
            "publish",
            topic=f"named-{language.name}",
            records=[{"value": "eA=="}],
            timeout_ms=WITHIN_S * 1_000,
        )
        assert driver.hear(WITHIN_S)["places"], os.fspath(silent)
