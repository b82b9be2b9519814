"""`baleen bench serve` against servers whose delays are known, or that tell less than ours."""
import http.server
import json
import re
import statistics
import subprocess
import threading

import pytest

from conftest import BIN, start_scripted

STEP_MS = 200
pytestmark = pytest.mark.usefixtures("program")


def bench(*arguments):
    return subprocess.run([BIN / "baleen", "bench", "serve", *map(str, arguments)],
                          capture_output=True, text=True, timeout=110)


def test_delays_are_those_of_the_script_and_of_the_servers_log(tmp_path):
    # Steps of 200 ms: what a busy machine adds to a sleep stays far below 2 %.
    server = start_scripted(tmp_path, step_delay_us=STEP_MS * 1000,
                            scripts=[{"prompt_contains": "", "text": "one two three four", "end": "repeat"}])
    file = tmp_path / "run.json"
    done = bench("--url", server.url, "--requests", 15, "--concurrency", 5, "--warm-up", 1,
                 "--answer-tokens", 12, "--prompt-tokens", 40, "--json", file)
    assert server.stop() == 0
    assert done.returncode == 0, done.stderr
    run = json.loads(file.read_text())["runs"][0]
    assert run["num_requests"] == 15 and run["num_failed"] == 0
    assert run["answer_tokens"] == 15 * 12

    logged = [(float(first), float(took)) for first, took in
              re.findall(r"completion_tokens=12 first_ms=([\d.]+) took_ms=([\d.]+)", "".join(server.log))]
    assert len(logged) >= 15
    logged = logged[-15:]  # behind the warm-up
    first = statistics.median(first for first, _ in logged)
    took = statistics.median(took for _, took in logged)
    assert run["first_token_ms"]["p50"] == pytest.approx(first, rel=0.02)
    assert run["end_to_end_ms"]["p50"] == pytest.approx(took, rel=0.02)
    assert run["per_token_ms"]["p50"] == pytest.approx((took - first) / 11, rel=0.02)
    # And of the script itself: a token a step.
    assert run["gap_ms"]["p50"] == pytest.approx(STEP_MS, rel=0.02)
    records = [record for record in run["requests"] if record["ok"]]
    assert statistics.median(len(record["gaps_s"]) for record in records) == 11


def test_rates_turns_prefixes_and_outputs(scripted, tmp_path):
    csv, plot, file = tmp_path / "rows.csv", tmp_path / "plot.svg", tmp_path / "run.json"
    done = bench("--url", scripted.url + "/v1", "--url", scripted.url, "--label", "a", "--label", "b",
                 "--rate", "20,60", "--requests", 24, "--turns", 3, "--groups", 2, "--shared-tokens", 64,
                 "--prompt-tokens", "10-30", "--answer-tokens", "exponential:8", "--warm-up", 2,
                 "--csv", csv, "--plot", plot, "--json", file)
    assert done.returncode == 0, done.stderr
    lines = csv.read_text().splitlines()
    assert len(lines) == 1 + 4 and all(len(line.split(",")) == len(lines[0].split(",")) for line in lines)
    result = json.loads(file.read_text())
    assert [server["server"] for server in result["servers"]] == ["a", "b"]
    assert [run["rate"] for run in result["runs"]] == [20, 60, 20, 60]
    assert all(run["num_requests"] == 24 for run in result["runs"]), done.stdout
    assert all(run["hit_rate"] == 0 for run in result["runs"]), "the script shares nothing, and says so"
    assert plot.read_text().startswith("<svg") and plot.read_text().rstrip().endswith("</svg>")


def test_cached_prompts_and_lengths_of_the_real_engine(abacus, tmp_path):
    file = tmp_path / "run.json"
    done = bench("--url", abacus.url, "--requests", 12, "--concurrency", 3, "--turns", 3, "--warm-up", 1,
                 "--prompt-tokens", 60, "--answer-tokens", 6, "--json", file)
    assert done.returncode == 0, done.stderr
    run = json.loads(file.read_text())["runs"][0]
    assert run["num_requests"] == 12, run["first_error"]
    assert run["hit_rate"] > 0.2, "later turns go on behind the first"
    first_turns = [record["prompt_tokens"] for record in run["requests"][::3]]
    assert statistics.median(first_turns) == pytest.approx(60, rel=0.25)


class Plain(http.server.BaseHTTPRequestHandler):
    """Chat streams as another server may give them: no usage, no metrics, no extra fields."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply(200, b'{"object": "list", "data": [{"id": "other"}]}')
        else:
            self.reply(404, b'{"detail": "Not Found"}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "ignore_eos" in body:
            self.reply(422, b'{"error": {"message": "ignore_eos: extra inputs are not permitted"}}')
            return
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "word "}}]})
        self.reply(200, (f"data: {chunk}\r\n\r\n" * 5 + "data: [DONE]\r\n\r\n").encode(), "text/event-stream")


def test_another_server_runs_without_special_flags():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = bench("--url", f"http://127.0.0.1:{server.server_port}/v1", "--requests", 10, "--concurrency", 2)
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    for word in ("ignore_eos is refused", "token counts", "acceptance"):
        assert word in done.stdout, done.stdout


@pytest.mark.parametrize("arguments, named", [
    (["--prompt-tokens", "many"], "--prompt-tokens"),
    (["--concurrency", "0"], "--concurrency"),
    (["--rate", "-1"], "--rate"),
    (["--label", "a", "--label", "b"], "--label"),
    (["--extra-body", "[]"], "--extra-body"),
    (["--dataset", "nowhere.jsonl"], "nowhere.jsonl"),
    (["--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
    (["--url", "https://localhost:1"], "https"),
])
def test_refusals_name_their_cause(arguments, named):
    done = bench(*arguments)
    assert done.returncode == 1
    assert named in done.stderr, done.stderr
