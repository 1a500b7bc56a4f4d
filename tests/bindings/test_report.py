"""The reports in the READMEs of the clients are those of the newest run, which tried all there is."""

import pytest

from bindings.languages import languages
from bindings.report import results, shown, table
from gossipq_cli.conformance.trials import LEVELS, TRIALS

TAKEOVERS = 20
LEVEL = {language.name: language.level for language in languages()}


@pytest.mark.parametrize("client", [name for name in LEVEL if name != "minimal"])
def test_the_readme_shows_the_newest_report(client: str) -> None:
    assert shown(client) == table(results()[client])


@pytest.mark.parametrize("client", LEVEL)
def test_everything_was_tried_and_passed(client: str) -> None:
    reach = LEVELS.index(LEVEL[client])
    wanted = {trial.title for trial in TRIALS if LEVELS.index(trial.level) <= reach}
    rows = results()[client]
    assert {row["trial"] for row in rows} == wanted
    assert [row["trial"] for row in rows if not row["passed"]] == []


@pytest.mark.parametrize("client", [name for name, level in LEVEL.items() if level == "columns"])
def test_so_many_leaders_fell(client: str) -> None:
    assert sum(row["takeovers"] for row in results()[client] if row["level"] == "cluster") >= TAKEOVERS
