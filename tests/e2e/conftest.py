"""Servers for the end-to-end tests: the scripted one, and the real program.

BALEEN_BIN names the folder of the built programs. A build without LibTorch has no program and says so
with BALEEN_WITHOUT_PROGRAM=1: only then are the tests that need it skipped.
"""
import csv
import datetime
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BALEEN_BIN", TOP / "build" / "cpu" / "bin"))
ABACUS = TOP / "models" / "abacus"
STOP_TIMEOUT_S = 30


class Server:
    """A server process that printed `ready URL`; its log is kept for the report of a failure."""

    def __init__(self, command, model):
        self.model = model
        self.process = subprocess.Popen(
            [str(part) for part in command], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.kill()
            self.process.wait()
            pytest.fail(f"{command} did not start: {line}{''.join(self.log)}")
        self.url = line.split()[1]

    def client(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60, **options)

    def metric(self, name):
        """The sum of all series of a metric."""
        page = httpx.get(f"{self.url}/metrics").text
        values = [line.rsplit(" ", 1)[1] for line in page.splitlines()
                  if line.split("{")[0].split(" ")[0] == name]
        assert values, f"{name} is not on the page"
        return sum(float(value) for value in values)

    def stop(self):
        """Sends SIGTERM and gives the exit code. A second signal would end the server at once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"the server did not stop: {''.join(self.log)}")


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=TOP, capture_output=True,
                          text=True)
    return done.stdout.strip() or "unknown"


def append_row(file, columns, row):
    """A row of a CSV file, behind its header where the file is new."""
    fresh = not file.exists()
    with open(file, "a", newline="") as rows:
        writer = csv.writer(rows, lineterminator="\n")
        if fresh:
            writer.writerow(columns)
        writer.writerow(row)


def pytest_runtest_logreport(report):
    """With BALEEN_CHECKS, a row of that CSV file for every test that ran."""
    if (checks := os.environ.get("BALEEN_CHECKS")) and (report.when == "call" or report.skipped or report.failed):
        append_row(pathlib.Path(checks), ["test", "result", "seconds", "load_average", "commit", "date"],
                   [report.nodeid.removeprefix("tests/e2e/"), report.outcome, f"{report.duration:.1f}",
                    f"{os.getloadavg()[0]:.1f}", commit(), datetime.date.today().isoformat()])


def kill_and_go_on(command, seconds, kills, draw):
    """Starts a job so many times, each time killing it after up to `seconds` that `draw` picks; then lets it end."""
    for _ in range(kills):
        process = subprocess.Popen(command, cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.0, seconds))
        process.kill()
        process.wait()
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


SCRIPTS = {
    "model": "scripted",
    "step_delay_us": 200,
    "scripts": [
        {"prompt_contains": "greet", "text": "Hello, 世界! 👩‍💻"},
        {"prompt_contains": "ponder", "text": "First add.</think>It is 4."},
        {"prompt_contains": "call the tool",
         "text": "Looking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n"
                 "<｜DSML｜parameter name=\"city\" string=\"true\">São \"Paulo\"</｜DSML｜parameter>\n"
                 "<｜DSML｜parameter name=\"days\" string=\"false\">[1, {\"a\": null}]</｜DSML｜parameter>\n"
                 "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n"
                 "<｜DSML｜parameter name=\"city\" string=\"true\"><b>Rome</b></｜DSML｜parameter>\n"
                 "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
        {"prompt_contains": "go on", "text": "and on ", "end": "repeat"},
        {"prompt_contains": "break", "text": "abcdef", "nan_after": 3},
        {"prompt_contains": "", "text": "fine"},
    ],
}


def start_scripted(tmp_path, **changes):
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps({**SCRIPTS, **changes}, ensure_ascii=False))
    return Server([BIN / "scripted_server", file, "0"], changes.get("model", "scripted"))


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    server = start_scripted(tmp_path_factory.mktemp("scripted"))
    yield server
    assert server.stop() == 0, "".join(server.log)


@pytest.fixture(scope="session")
def program():
    """The program, with models/abacus beside it."""
    if os.environ.get("BALEEN_WITHOUT_PROGRAM"):
        pytest.skip("this build has no program")
    needed = [BIN / "baleen", *(ABACUS / name for name in ("config.json", "tokenizer.json"))]
    missing = [str(path) for path in needed if not path.exists()]
    if not any(ABACUS.glob("*.safetensors")):
        missing.append(f"{ABACUS}/*.safetensors")
    assert not missing, f"missing: {', '.join(missing)}"
    return BIN / "baleen"


@pytest.fixture(scope="session")
def abacus(program):
    server = Server([program, "serve", ABACUS, "--port", "0", "--drain-timeout", "5"], "abacus")
    yield server
    assert server.stop() == 0, "".join(server.log)
