"""Every command of the serving pages, run as it stands there against a server of that name."""
import json
import re
import subprocess

import pytest

from conftest import TOP, start_scripted

PAGES = sorted((TOP / "docs" / "serving").glob("*.md"))
COMMANDS = [(page.name, command) for page in PAGES
            for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S)
            for command in re.split(r"\n(?=curl )", block.strip()) if command.startswith("curl")]


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    server = start_scripted(tmp_path_factory.mktemp("docs"), model="abacus")
    yield server
    assert server.stop() == 0, "".join(server.log)


def test_there_are_commands():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("page, command", COMMANDS, ids=lambda value: str(value)[:60])
def test_command(documented, page, command):
    assert "http://127.0.0.1:30000" in command
    run = subprocess.run(["bash", "-c", command.replace("http://127.0.0.1:30000", documented.url)], cwd=TOP,
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    if run.stdout.lstrip().startswith("{"):
        assert json.loads(run.stdout).get("error") is None, run.stdout
    else:
        assert "data: " in run.stdout and '"error"' not in run.stdout, run.stdout
