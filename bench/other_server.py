#!/usr/bin/env python3
"""`baleen bench serve` against other OpenAI-compatible servers of PyPI, with the same flags as against ours.

  bench/other_server.py [--transformers VENV] [--guidellm VENV] [--bin build/cpu/bin] [--csv FILE]

VENV: a Python environment where that package is installed (pip install 'transformers[serving]' torch; pip install
guidellm). `transformers serve` runs a tiny Llama with random weights that is made here; the mock server of guidellm
answers after delays that are chosen here, and they must be found within 5 % (they are its own sleeps on this
machine). A row each: what was measured, and what could not be. Ends with 1 when a request failed.
"""
import argparse
import csv
import datetime
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[1]
TOKENIZER = TOP / "models" / "abacus" / "tokenizer.json"
FIRST_MS, GAP_MS, ANSWER, MOST = 300, 100, 16, 0.05
START_S = 180
COLUMNS = ["date", "commit", "server", "version", "requests", "failed", "first_token_p50_ms", "gap_p50_ms", "end_to_end_p50_ms",
           "answer_tokens", "prompt_tokens_p50", "not_measured"]
MAKE_MODEL = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, tokenizer = sys.argv[1:]
words = PreTrainedTokenizerFast(tokenizer_file=tokenizer, bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>")
words.chat_template = ("{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}"
                       "{% if add_generation_prompt %}assistant: {% endif %}")
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                                     bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id))
model.save_pretrained(folder)
words.save_pretrained(folder)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def version(venv, package):
    done = subprocess.run([venv / "bin" / "python", "-c", f"from importlib.metadata import version; print(version('{package}'))"],
                          capture_output=True, text=True, check=True)
    return done.stdout.strip()


def transformers_command(venv, port, folder):
    subprocess.run([venv / "bin" / "python", "-c", MAKE_MODEL, folder / "tiny", TOKENIZER], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [venv / "bin" / "transformers", "serve", folder / "tiny", "--device", "cpu", "--host", "127.0.0.1", "--port", port]


def guidellm_command(venv, port, _):
    return [venv / "bin" / "guidellm", "mock-server", "--host", "127.0.0.1", "--port", port, "--workers", 1, "--model", "mock",
            "--ttft-ms", FIRST_MS, "--itl-ms", GAP_MS, "--output-tokens", ANSWER]


def wait_for(url, process):
    end = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=2).read()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, f"{url} did not start"
            time.sleep(0.2)


def measure(program, name, package, venv, make_command):
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        port = free_port()
        command = [str(part) for part in make_command(venv, port, folder)]
        with open(folder / "log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder,
                                       env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": text})
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process)
            done = subprocess.run([program, "bench", "serve", "--url", url, "--requests", "12", "--concurrency", "2",
                                   "--prompt-tokens", "60", "--answer-tokens", str(ANSWER), "--json", folder / "run.json"],
                                  capture_output=True, text=True)
            print(done.stdout + done.stderr)
            if done.returncode != 0:
                return None, None
            result = json.loads((folder / "run.json").read_text())
        finally:
            process.terminate()
            process.wait(30)
    run = result["runs"][0]
    prompts = sorted(record["prompt_tokens"] for record in run["requests"])
    notes = [note for server in result["servers"] for note in server["not_measured"]]
    return run, [name, version(venv, package), run["num_requests"], run["num_failed"], f"{run['first_token_ms']['p50']:.1f}",
                 f"{run['gap_ms']['p50']:.1f}", f"{run['end_to_end_ms']['p50']:.1f}", run["answer_tokens"],
                 prompts[len(prompts) // 2], "; ".join(notes)]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--transformers", type=pathlib.Path)
    options.add_argument("--guidellm", type=pathlib.Path)
    options.add_argument("--bin", type=pathlib.Path, default=TOP / "build" / "cpu" / "bin")
    options.add_argument("--csv", type=pathlib.Path)
    options = options.parse_args()
    program = options.bin.absolute() / "baleen"
    rows, good = [], True
    if options.transformers:
        run, row = measure(program, "transformers serve", "transformers", options.transformers.absolute(), transformers_command)
        good = good and run is not None and run["num_failed"] == 0 and run["num_requests"] == 12
        rows += [row] if run else []
    if options.guidellm:
        run, row = measure(program, "guidellm mock-server", "guidellm", options.guidellm.absolute(), guidellm_command)
        good = good and run is not None and run["num_failed"] == 0 and run["num_requests"] == 12
        if run:
            rows.append(row)
            for wished, found in ((FIRST_MS, run["first_token_ms"]["p50"]), (GAP_MS, run["gap_ms"]["p50"])):
                print(f"delay of the mock {wished} ms, found {found:.1f} ms")
                good = good and abs(found / wished - 1) <= MOST
    if options.csv:
        commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                                capture_output=True, text=True, check=True).stdout.strip()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(COLUMNS)
            writer.writerows([[datetime.date.today().isoformat(), commit, *row] for row in rows])
    return 0 if good and rows else 1


if __name__ == "__main__":
    sys.exit(main())
