"""`baleen rl` whose answers are drawn by servers: the same curve as in one process, also when one of them is killed; weights
over HTTP, whole or not at all."""
import http.server
import json
import signal
import subprocess
import threading
import time

import httpx
import pytest

from conftest import ABACUS, BIN, TOP, Server

pytestmark = pytest.mark.usefixtures("program")
JOB = ["--model", ABACUS, "--task", "abacus", "--filter", "none", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4",
       "--eval-prompts", "8", "--eval-interval", "3", "--lr", "1e-4"]
# What tells of the moment, of the cache or of who draws.
LEFT_OUT = ("perf/", "rollout/aborted_tokens", "rollout/resumed_tokens", "rollout/dropped_pending_len_mean",
            "rollout/moved_samples", "rollout/engines", "rollout/cache", "rollout/prefix", "reward/time_ms")


def serve(port=0):
    return Server([BIN / "baleen", "serve", ABACUS, "--port", port, "--numerics", "reference+invariant", "--cache-mib", "64",
                   "--drain-timeout", "2", "--speculative-algorithm", "none"], "abacus")


def start_rl(folder, num_rollout, *urls):
    parts = [BIN / "baleen", "rl", *JOB, "--num-rollout", num_rollout, "--out", folder]
    if urls:
        parts += ["--rollout-url", *urls]
    return subprocess.Popen([str(part) for part in parts], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


def records(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def curve(folder):
    return [{key: value for key, value in record.items() if not key.startswith(LEFT_OUT)} for record in records(folder)]


def weights_of(folder, step):
    return (folder / "checkpoints" / f"iter_{step:09}" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Eight rollouts in one process."""
    folder = tmp_path_factory.mktemp("reference")
    finish(start_rl(folder, 8))
    return folder


def test_a_server_killed_while_others_draw_changes_no_bit(reference, tmp_path):
    servers = [serve(), serve()]
    port = servers[1].url.rsplit(":", 1)[1]
    process = start_rl(tmp_path, 8, *(server.url for server in servers))
    try:
        def wait_for(rollouts):
            deadline = time.monotonic() + 120
            while len(records(tmp_path)) < rollouts:
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
                time.sleep(0.02)
        wait_for(1)
        servers[1].process.send_signal(signal.SIGKILL)
        servers[1].process.wait()
        wait_for(4)
        servers.append(serve(port))
        output = finish(process)
    finally:
        process.kill()
        for server in servers:
            server.stop()
    assert curve(tmp_path) == curve(reference)
    assert weights_of(tmp_path, 16) == weights_of(reference, 16)
    engines = [record["rollout/engines"] for record in records(tmp_path)]
    assert engines[0] == 2 and 1 in engines and engines[-1] == 2, engines
    assert "is back" in output
    for record in records(tmp_path):
        assert record["drift/max"] == 0 and record["drift/exact_frac"] == 1


class Relay(http.server.BaseHTTPRequestHandler):
    """Passes everything on and keeps what concerns weights."""
    target = ""
    kept = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/weights/"):
            self.kept.append((self.path, body))
        answer = httpx.post(self.target + self.path, content=body, timeout=60,
                            headers={"Content-Type": self.headers.get("Content-Type", "application/json")})
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_):
        pass


def test_a_stream_of_weights_is_taken_whole_or_leaves_a_server_that_serves_nothing(tmp_path):
    """The messages of a run, which numbers its updates 1, 2, 3, are sent to a second server by hand."""
    server = serve()
    relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    Relay.target, Relay.kept = server.url, []
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        finish(start_rl(tmp_path, 2, f"http://127.0.0.1:{relay.server_port}"))
    finally:
        relay.shutdown()
        server.stop()
    paths = ["/weights/begin", "/weights/bucket", "/weights/end"]
    assert [path for path, _ in Relay.kept] == paths * 3, "of the start and behind each rollout"
    updates = [[body for _, body in Relay.kept[first:first + 3]] for first in (0, 3, 6)]

    server = serve()
    question = {"text": "What is 37 + 58?", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}

    def post(path, body):
        return httpx.post(server.url + path, content=body, timeout=60)

    def ask():
        return httpx.post(f"{server.url}/generate", json=question, timeout=60)
    try:
        shipped = ask().json()
        for body in (b"{}", json.dumps(json.loads(updates[0][0]) | {"contract": "another"}).encode()):
            refused = post("/weights/begin", body)
            assert refused.status_code == 400 and "weight stream" in refused.text
        for path, body in zip(paths[1:], updates[0][1:]):
            none_open = post(path, body)
            assert none_open.status_code == 404
            assert none_open.json()["error"]["code"] == "weight_update_not_open"
        assert ask().json()["output_ids"] == shipped["output_ids"], "nothing was touched"
        assert post("/weights/begin", updates[0][0]).json() == {"update": 1}
        damaged = bytearray(updates[0][1])
        damaged[len(damaged) // 2] ^= 1
        refused = post("/weights/bucket", bytes(damaged))
        assert refused.status_code == 400 and "changed on its way" in refused.text
        of_another = post("/weights/bucket", updates[1][1])
        assert of_another.json()["error"]["code"] == "weight_update_not_open"
        assert post("/weights/bucket", updates[0][1]).status_code == 200
        # The sender dies here. The next begin breaks its update off.
        assert post("/weights/begin", updates[1][0]).json() == {"update": 2}
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert ask().status_code == 503
        assert post("/weights/bucket", updates[1][1]).status_code == 200
        assert post("/weights/end", updates[1][2]).json() == {"success": True, "weight_version": "1"}
        assert httpx.get(f"{server.url}/health").status_code == 200
        healed = ask()
        assert healed.status_code == 200 and healed.json()["meta_info"]["weight_version"] == "1"
        # A root that is not that of what came.
        assert post("/weights/begin", updates[2][0]).json() == {"update": 3}
        assert post("/weights/bucket", updates[2][1]).status_code == 200
        wrong = post("/weights/end", json.dumps(json.loads(updates[2][2]) | {"root": "0" * 32}).encode())
        assert wrong.status_code == 503 and "root digest" in wrong.text
        assert ask().status_code == 503
    finally:
        server.stop()


@pytest.mark.parametrize("arguments, message", [
    (["--rollout-url", "http://127.0.0.1:1"], "name the same one with model"),
    (["--model", ABACUS, "--task", "abacus", "--rollout-url", "http://127.0.0.1:1", "--replay", "both"], "leave replay"),
    (["--model", ABACUS, "--task", "abacus", "--rollout-url", "nowhere"], "nowhere"),
    (["--model", ABACUS, "--task", "abacus", "--rollout-url", "http://127.0.0.1:1"], "no server took weights 0"),
])
def test_refusals_are_one_sentence(arguments, message, tmp_path):
    done = subprocess.run([str(part) for part in (BIN / "baleen", "rl", *arguments, "--out", tmp_path)], cwd=TOP,
                          capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if " info " not in line]
    assert done.returncode == 1 and len(said) == 1 and message in said[0], done.stderr
