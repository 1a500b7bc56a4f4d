"""docs/reference/http.md and the OpenAPI document are true: each example is run, each operation is asked."""

import re
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from conftest import HOME
from gateway.conftest import RunningGateway
from gossipq_gateway.v1 import openapi
from gossipq_gateway.v1.table import OPERATIONS

pytestmark = pytest.mark.e2e
DOCUMENT = HOME / "docs" / "reference" / "http.md"
ADDRESS = "http://127.0.0.1:7781"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Commands, and what they print, where "..." stands for anything."""
    blocks = BLOCK.findall(DOCUMENT.read_text("utf-8"))
    found = []
    for (kind, text), (after, said) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "sh":
            assert after in ("json", "text"), f"what does this print?\n{text}"
            found.append((text, said))
    return found


def matches(said: str, expected: str) -> bool:
    """Spaces and line ends do not count."""
    parts = map(re.escape, "".join(expected.split()).split("..."))
    return re.fullmatch(".*".join(parts), "".join(said.split()), re.DOTALL) is not None


def test_every_example_prints_what_the_document_says(gateway: RunningGateway, tmp_path: Path) -> None:
    for command, expected in examples():
        line = command.replace(ADDRESS, gateway.url).replace("curl ", "curl -sS ")
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, (command, ran.stderr)
        assert matches(ran.stdout, expected), f"{command}\n{ran.stdout}\n{expected}"


def test_a_document_that_lies_is_caught() -> None:
    assert matches('{"a":17, "b":[1]}\n', '{"a":17,"b":[...]}')
    assert not matches('{"a":18}', '{"a":17}')


def test_the_description_is_made_when_it_is_asked_for(gateway: RunningGateway) -> None:
    served = httpx.get(f"{gateway.url}/v1/openapi.json", timeout=30)
    assert served.json() == msgspec.json.decode(openapi.document(OPERATIONS))
    assert "/v1/topics/{topic}/records" in served.json()["paths"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_operation_does_as_described(gateway: RunningGateway, mode: GenerationMode) -> None:
    """With right and with wrong inputs that schemathesis makes of the description: no fault, and no answer
    that is not described."""
    schema = schemathesis.openapi.from_url(f"{gateway.url}/v1/openapi.json")
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    asked = 0
    for operation in (found.ok() for found in schema.get_all_operations()):
        if operation.path.endswith("/stream"):
            continue  # it never ends

        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            answer = case.call(base_url=gateway.url, timeout=30)
            case.validate_response(answer, checks=checks)

        try:
            ask()
            asked += 1
        except Unsatisfiable:
            # this operation has no wrong input
            assert mode is GenerationMode.NEGATIVE, operation.label
    assert asked > 20
