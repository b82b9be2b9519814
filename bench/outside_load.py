#!/usr/bin/env python3
"""`baleen bench serve` against an outside load generator, aiperf, on the same server.

  bench/outside_load.py --aiperf PATH [--bin build/cpu/bin] [--csv FILE]     (pip install aiperf; needs no network)

The server is the scripted one with steps of 200 ms, so both see the same delays; the two generators take turns and
the medians over the rounds are compared. Ends with 1 when they differ by more than 5 %.
"""
import argparse
import csv
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[1]
MODEL = TOP / "models" / "abacus"
ROUNDS, REQUESTS, CONCURRENCY, ANSWER, STEP_MS, MOST = 2, 24, 4, 16, 200, 0.05
# Name here, in our JSON, in aiperf's.
FIGURES = [("first token p50 ms", ("first_token_ms", "p50"), ("time_to_first_token", "p50")),
           ("time per token p50 ms", ("per_token_ms", "p50"), ("inter_token_latency", "p50")),
           ("end to end p50 ms", ("end_to_end_ms", "p50"), ("request_latency", "p50")),
           ("end to end p90 ms", ("end_to_end_ms", "p90"), ("request_latency", "p90")),
           ("answer tokens/s", ("answer_tokens_per_s",), ("output_token_throughput", "avg"))]


def value(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def ours(program, url, folder):
    file = folder / "ours.json"
    subprocess.run([program, "bench", "serve", "--url", url, "--requests", str(REQUESTS), "--concurrency",
                    str(CONCURRENCY), "--warm-up", "2", "--prompt-tokens", "60", "--answer-tokens", str(ANSWER),
                    "--json", file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(file.read_text())["runs"][0]


def theirs(aiperf, url, folder):
    subprocess.run([aiperf, "profile", "-m", "scripted", "-u", url, "--endpoint-type", "chat", "--streaming",
                    "--tokenizer", MODEL, "--request-count", str(REQUESTS), "--concurrency", str(CONCURRENCY),
                    "--warmup-request-count", "2", "--synthetic-input-tokens-mean", "60", "--output-tokens-mean",
                    str(ANSWER), "--extra-inputs", "ignore_eos:true", "--use-legacy-max-tokens",
                    "--use-server-token-count", "--artifact-dir", folder, "--ui", "none"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--aiperf", required=True)
    options.add_argument("--bin", type=pathlib.Path, default=TOP / "build" / "cpu" / "bin")
    options.add_argument("--csv", type=pathlib.Path)
    options = options.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "scripts.json").write_text(json.dumps({
            "tokenizer": str(MODEL / "tokenizer.json"), "model": "scripted", "step_delay_us": STEP_MS * 1000,
            "scripts": [{"prompt_contains": "", "text": "12 + 30 = 42 ", "end": "repeat"}]}))
        server = subprocess.Popen([options.bin / "scripted_server", folder / "scripts.json", "0"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = server.stdout.readline().split()[1]
            for number in range(ROUNDS):
                rounds.append((ours(options.bin / "baleen", url, folder),
                               theirs(options.aiperf, url, folder / f"aiperf{number}")))
                print(f"round {number + 1} of {ROUNDS} done", flush=True)
        finally:
            server.terminate()
            server.wait()
    rows, good = [], True
    for name, mine, other in FIGURES:
        a = statistics.median(value(run, mine) for run, _ in rounds)
        b = statistics.median(value(run, other) for _, run in rounds)
        difference = a / b - 1
        good = good and abs(difference) <= MOST
        rows.append((name, a, b, difference))
        print(f"{name:<24} ours {a:9.2f}   aiperf {b:9.2f}   {100 * difference:+.2f} %")
    if options.csv:
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(["date", "commit", "figure", "ours", "aiperf", "difference"])
            commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True,
                                    text=True, check=True).stdout.strip()
            for name, a, b, difference in rows:
                writer.writerow([datetime.date.today().isoformat(), commit, name, f"{a:.2f}", f"{b:.2f}",
                                 f"{difference:.4f}"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
