#!/usr/bin/env python3
"""Many clients that behave badly, for minutes, against the real program; then idle streams by the thousand.

    tests/soak/soak.py [--seconds 600] [--clients 200] [--streams 4000] [--csv FILE]
    tests/soak/soak.py --model FOLDER --context 16384 --cache-mib 1024 --streams 0 --device cuda [--serve-flags "..."]

Clients ask whole and streamed questions in several dialects, leave in the middle of answers or of their own
requests, abort each other, send bad bodies, prompts that are too long and prompts that nearly fill the context.
Beside them one client streams without end, in a process of its own, and notes when its tokens come. Held against
bounds: no crash and no answer that is not documented; requests, pages, connections and threads return to what
they were; memory does not grow, the device's neither; the stream's tokens keep coming while giant prompts are run.
Exit code 1 when one is broken; one CSV row says what was measured. The second form is for a GPU: any model folder
whose tokenizer has 200 ids or more, and no idle streams. BALEEN_COMMIT names the commit where there is no git.
"""
import argparse
import asyncio
import collections
import csv
import datetime
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from raw_client import Left, call, close, open_request, stream

TOP = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BALEEN_BIN", TOP / "build" / "cpu" / "bin"))
RUNNING = 16
DECODE_INTERVAL_MS = 100
# Bounds. A giant prompt alone takes seconds; a token beside it may take a few steps of the wished length.
MOST_GAP_P99_S = 10 * DECODE_INTERVAL_MS / 1000
MOST_RSS_GROWTH = 0.05
MOST_RSS_GROWTH_MB = 8
MOST_DEVICE_GROWTH_MB = 64
COLUMNS = ["commit", "date", "model", "device", "seconds", "clients", "requests", "answered", "left", "aborted",
           "refused", "queue_full", "giant_prompts", "giant_first_token_s", "gap_p50_ms", "gap_p99_ms",
           "gap_p99_beside_giant_ms", "gaps_beside_giant", "rss_early_mb", "rss_late_mb", "device_early_mb", "device_late_mb", "pages_left",
           "threads_left", "files_left",
           "idle_streams", "idle_rss_mb", "idle_health_ms", "result"]


class Server:
    """A server process that printed `ready URL`."""

    def __init__(self, *command):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(part) for part in command], cwd=TOP, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"{command} did not start: {line}")
        self.url = line.split()[1]
        self.proc = pathlib.Path("/proc") / str(self.process.pid)

    def alive(self):
        return self.process.poll() is None

    def rss_mb(self):
        fields = dict(line.split(":", 1) for line in (self.proc / "status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024

    def threads(self):
        return len(list((self.proc / "task").iterdir()))

    def files(self):
        return len(list((self.proc / "fd").iterdir()))

    def stop(self):
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def last_lines(self):
        self.log.seek(0)
        return self.log.read()[-3000:].decode(errors="replace")


def device_mb(process):
    """Memory in use on the first GPU by a process; of every process where the driver names none."""
    def ask(what):
        return subprocess.run(["nvidia-smi", "--id=0", f"--query-{what}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout.splitlines()
    for line in ask("compute-apps=pid,used_memory"):
        pid, used = (field.strip() for field in line.split(","))
        if pid == str(process) and used.isdigit():
            return float(used)
    return float(ask("gpu=memory.used")[0])


def early_and_late(samples):
    """Medians of the second third's middle and of the last third."""
    third = max(1, len(samples) // 3)
    early, late = sorted(samples[third // 2:third + third // 2 + 1]), sorted(samples[-third:])
    return early[len(early) // 2], late[len(late) // 2]


def watch_gaps(url, model, stop, pipe):
    """Process: streams without end and sends the times of its events."""
    async def run():
        while not stop.is_set():
            body = {"model": model, "messages": [{"role": "user", "content": "1 + 1 ="}], "stream": True,
                    "ignore_eos": True, "max_tokens": 1500, "temperature": 1.0}
            try:
                status, times, _ = await stream(url, "/v1/chat/completions", body, enough=stop.is_set)
            except (OSError, asyncio.IncompleteReadError, IndexError, ValueError):
                return
            if status == 200:
                pipe.send(times)
            else:
                await asyncio.sleep(0.2)
    try:
        asyncio.run(run())
    finally:
        pipe.send(None)


class Soak:
    def __init__(self, server, options):
        self.server = server
        self.url = server.url
        self.model = options.model.name
        self.context = options.context
        self.on_device = options.device != "cpu"
        self.end = 0.0  # when clients stop
        self.seconds = options.seconds
        self.num_clients = options.clients
        self.random = random.Random(options.seed)
        self.counts = collections.Counter()
        self.faults = []
        self.giants = []  # (from, to) of prompts that nearly fill the context
        self.rss = []
        self.device = []

    def fault(self, text):
        self.counts["faults"] += 1
        if len(self.faults) < 20:
            self.faults.append(text)

    def note(self, status, what, expected=(200, 429)):
        self.counts["requests"] += 1
        if status == 429:
            self.counts["queue_full"] += 1
        elif status == 200:
            self.counts["answered"] += 1
        elif 400 <= status < 500:
            self.counts["refused"] += 1
        if status not in expected:
            self.fault(f"{what}: status {status}")

    def question(self, draw, **more):
        sum_text = f"{draw.randrange(99)} + {draw.randrange(99)} ="
        body = {"model": self.model, "messages": [{"role": "user", "content": sum_text}],
                "max_tokens": draw.randint(1, 24), "temperature": draw.choice([0, 0.8])}
        if draw.random() < 0.3:
            body["thinking"] = {"type": "enabled", "budget_tokens": 8}
        return {**body, **more}

    async def whole(self, draw):
        status, _, body = await call(self.url, "/v1/chat/completions", self.question(draw))
        self.note(status, "whole")
        if status == 200 and json.loads(body)["choices"][0]["finish_reason"] not in ("stop", "length", "abort"):
            self.fault(f"whole: {body[:200]}")

    async def streamed(self, draw):
        path, body = draw.choice([
            ("/v1/chat/completions", self.question(draw, stream=True)),
            ("/v1/completions", {"model": self.model, "prompt": "2 + 2 =", "max_tokens": 9, "stream": True, "n": 2}),
            ("/v1/messages", {"model": self.model, "messages": [{"role": "user", "content": "7 - 4 ="}],
                              "max_tokens": 12, "stream": True}),
            ("/generate", {"text": "5 + 5 =", "stream": True, "sampling_params": {"max_new_tokens": 8}})])
        status, _, done = await stream(self.url, path, body)
        self.note(status, path)
        if status == 200 and not done:
            self.fault(f"{path}: the stream has no end")

    async def forced(self, draw):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
            "additionalProperties": False}}}]
        status, _, body = await call(self.url, "/v1/chat/completions",
                                     self.question(draw, tools=tools, tool_choice="required", max_tokens=300))
        self.note(status, "forced")
        if status == 200:
            choice = json.loads(body)["choices"][0]
            if choice["finish_reason"] not in ("tool_calls", "length", "abort"):
                self.fault(f"forced: {choice}")

    async def leaves(self, draw):
        self.counts["left"] += 1
        try:
            await stream(self.url, "/v1/chat/completions", self.question(draw, stream=True, ignore_eos=True, max_tokens=400),
                         leave_after=draw.randint(0, 12))
        except Left:
            pass

    async def leaves_at_once(self, draw):
        self.counts["left"] += 1
        body = json.dumps(self.question(draw, max_tokens=300, ignore_eos=True)).encode()
        _, writer = await open_request(self.url, "POST", "/v1/chat/completions", body)
        await writer.drain()
        await asyncio.sleep(draw.choice([0, 0, 0.05, 0.5]))
        await close(writer)

    async def breaks_off(self, draw):
        """A request that never becomes whole."""
        self.counts["left"] += 1
        body = json.dumps(self.question(draw)).encode()
        whole = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body
        host, port = self.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(whole[:draw.randrange(1, len(whole))])
        await writer.drain()
        await asyncio.sleep(draw.random())
        await close(writer)

    async def aborted(self, draw):
        """Asks for much and is ended by another request."""
        rid = f"soak-{draw.getrandbits(60):x}"
        asked = asyncio.create_task(call(self.url, "/v1/chat/completions",
                                         self.question(draw, rid=rid, max_tokens=1000, ignore_eos=True)))
        await asyncio.sleep(draw.random())
        status, _, _ = await call(self.url, "/abort_request", {"rid": rid})
        self.note(status, "abort", (200,))
        while not asked.done():  # it may not have been there yet
            await asyncio.wait([asked], timeout=1)
            await call(self.url, "/abort_request", {"rid": rid})
        status, _, body = asked.result()
        self.note(status, "aborted")
        if status == 200:
            self.counts["aborted"] += json.loads(body)["choices"][0]["finish_reason"] == "abort"

    async def bad_body(self, draw):
        good = json.dumps(self.question(draw)).encode()
        body = draw.choice([
            b"", b"[]", b"\xff\xfe", good[:-1], good + b"x", b'{"a":' * 500, good.replace(b'"model"', b'"modle"'),
            good.replace(b'"max_tokens": ', b'"max_tokens": -'), good.replace(b'"content"', b'"text"'),
            bytes(draw.randrange(256) for _ in range(draw.randrange(400)))])
        path = draw.choice(["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/generate"])
        status, _, answer = await call(self.url, path, body)
        self.note(status, f"bad body {body[:60]}", (400, 200, 404))
        if status >= 400 and "error" not in json.loads(answer):
            self.fault(f"bad body: {answer[:100]}")

    async def too_large(self, draw):
        try:
            status, _, _ = await call(self.url, "/v1/chat/completions", b'{"model": "' + b"m" * (2 << 20) + b'"}')
            self.note(status, "too large", (413,))
        except (OSError, IndexError, asyncio.IncompleteReadError):
            self.counts["refused"] += 1  # it closes before it has read everything

    async def too_long(self, draw):
        status, _, body = await call(self.url, "/generate", {"input_ids": [5] * (self.context + 1)})
        self.note(status, "too long", (400,))
        if b"context_length_exceeded" not in body:
            self.fault(f"too long: {body[:200]}")

    async def giant(self, draw):
        ids = [draw.randrange(8, 200) for _ in range(self.context - 100)]  # another one each time: nothing is cached
        body = {"input_ids": ids, "stream": True, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        begin = time.monotonic()
        status, times, _ = await stream(self.url, "/generate", body)
        self.note(status, "giant")
        if status == 200:
            self.giants.append((begin, times[0]))

    async def operator(self, draw):
        path = draw.choice(["/metrics", "/server_info", "/get_load", "/health", "/v1/models"])
        status, _, _ = await call(self.url, path, method="GET")
        self.note(status, path, (200,))

    async def client(self, number):
        draw = random.Random(self.random.getrandbits(64))
        kinds = [self.whole, self.streamed, self.streamed, self.forced, self.leaves, self.leaves, self.leaves_at_once,
                 self.breaks_off, self.aborted, self.bad_body, self.bad_body, self.too_large, self.too_long, self.operator]
        if number < max(1, self.num_clients // 100):
            kinds = [self.giant]
        while time.monotonic() < self.end:
            kind = draw.choice(kinds)
            try:
                await asyncio.wait_for(kind(draw), timeout=300)
            except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:
                if not self.server.alive():
                    return
                self.fault(f"{kind.__name__}: {type(error).__name__} {error}")
            except asyncio.TimeoutError:
                self.fault(f"{kind.__name__}: no answer in 300 s")
            await asyncio.sleep(draw.random() * 0.3)

    async def watch_memory(self):
        while time.monotonic() < self.end and self.server.alive():
            self.rss.append(self.server.rss_mb())
            if self.on_device:
                self.device.append(await asyncio.to_thread(device_mb, self.server.process.pid))
            await asyncio.sleep(min(2.0, self.seconds / 40))

    async def state(self):
        _, _, body = await call(self.url, "/server_info", method="GET")
        return json.loads(body)["internal_states"][0]

    async def settle(self):
        """Waits until nothing runs; then nothing may be held any more."""
        for _ in range(300):
            state = await self.state()
            if state["num_running_reqs"] == 0 and state["num_waiting_reqs"] == 0 and state["num_used_tokens"] == 0:
                break
            await asyncio.sleep(0.2)
        else:
            self.fault(f"requests are left: {state}")
        status, _, body = await call(self.url, "/flush_cache")
        if status != 200:
            self.fault(f"flush: {body}")
        await asyncio.sleep(0.5)
        return (await self.state())["pages"]

    async def run(self):
        for _ in range(3):  # whatever is made on first use is made
            await self.whole(self.random)
            await self.streamed(self.random)
            await self.forced(self.random)
        pages = await self.settle()
        threads, files = self.server.threads(), self.server.files()
        # A process, so that its clock does not wait for these clients.
        context = multiprocessing.get_context("spawn")
        stop, (ours, theirs) = context.Event(), context.Pipe(False)
        probe = context.Process(target=watch_gaps, args=(self.url, self.model, stop, theirs), daemon=True)
        probe.start()
        self.end = time.monotonic() + self.seconds
        await asyncio.gather(self.watch_memory(), *(self.client(number) for number in range(self.num_clients)))
        stop.set()
        times = []
        while await asyncio.to_thread(ours.poll, 120) and (part := ours.recv()) is not None:
            times.append(part)
        probe.join(timeout=30)
        after = await self.settle() if self.server.alive() else {}
        left = {"pages": pages["free_full"] - after.get("free_full", 0) + pages["free_swa"] - after.get("free_swa", 0),
                "threads": self.server.threads() - threads, "files": self.server.files() - files}
        for what, count in left.items():
            if count > 0:
                self.fault(f"{count} {what} are left")
        return times, left


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))] if values else float("nan")


def run_clients(options):
    server = Server(BIN / "baleen", "serve", options.model, "--port", "0", "--cache-mib", options.cache_mib,
                    "--device", options.device, "--context-length", options.context, "--max-running-requests",
                    str(RUNNING), "--max-queued-requests", str(options.clients),
                    "--decode-interval-ms", str(DECODE_INTERVAL_MS), "--max-body-mib", "1", "--log-level", "error",
                    "--drain-timeout", "5", *shlex.split(options.serve_flags))
    soak = Soak(server, options)
    times, left = asyncio.run(soak.run())
    gaps = [(a, b - a) for run in times for a, b in zip(run, run[1:])]
    beside = [gap for at, gap in gaps if any(begin <= at <= end for begin, end in soak.giants)]
    early_mb, late_mb = early_and_late(soak.rss)
    code = server.stop()
    if code != 0:
        soak.fault(f"exit code {code}: {server.last_lines()}")
    if not options.short and late_mb > early_mb * (1 + MOST_RSS_GROWTH) + MOST_RSS_GROWTH_MB:
        soak.fault(f"memory grew from {early_mb:.0f} MB to {late_mb:.0f} MB")
    device = {"device_early_mb": "", "device_late_mb": ""}
    if soak.on_device:
        early_device, late_device = early_and_late(soak.device)
        device = {"device_early_mb": f"{early_device:.0f}", "device_late_mb": f"{late_device:.0f}"}
        if late_device > early_device + MOST_DEVICE_GROWTH_MB:
            soak.fault(f"memory of the device grew from {early_device:.0f} MB to {late_device:.0f} MB")
    if not beside:
        soak.fault("no token came beside a giant prompt")
    elif not options.short and quantile(beside, 0.99) > MOST_GAP_P99_S:
        soak.fault(f"p99 of {len(beside)} gaps beside giant prompts is {quantile(beside, 0.99):.2f} s")
    for kind in ("answered", "left", "aborted", "refused"):
        if soak.counts[kind] == 0:
            soak.fault(f"nobody was {kind}")
    row = {name: soak.counts[name] for name in ("requests", "answered", "left", "aborted", "refused", "queue_full")}
    row |= {"giant_prompts": len(soak.giants), "gaps_beside_giant": len(beside),
            "giant_first_token_s": f"{quantile([end - begin for begin, end in soak.giants], 0.5):.2f}",
            "gap_p50_ms": f"{1e3 * quantile([gap for _, gap in gaps], 0.5):.0f}",
            "gap_p99_ms": f"{1e3 * quantile([gap for _, gap in gaps], 0.99):.0f}",
            "gap_p99_beside_giant_ms": f"{1e3 * quantile(beside, 0.99):.0f}",
            "rss_early_mb": f"{early_mb:.0f}", "rss_late_mb": f"{late_mb:.0f}", "pages_left": left["pages"],
            "threads_left": left["threads"], "files_left": left["files"]} | device
    return row, soak.faults


async def next_event(reader):
    while not (await asyncio.wait_for(reader.readline(), timeout=180)).startswith(b"data: "):
        pass


async def running(url):
    _, _, body = await call(url, "/server_info", method="GET")
    return json.loads(body)["internal_states"][0]["num_running_reqs"]


async def hold_streams(server, count):
    """Opens streams whose model says a token now and then, and holds them; (what was measured, faults)."""
    url, faults = server.url, []
    body = json.dumps({"model": "idle", "prompt": "go on", "max_tokens": 4000, "stream": True}).encode()
    gate = asyncio.Semaphore(100)

    async def begin():
        async with gate:
            return await open_request(url, "POST", "/v1/completions", body)
    held = await asyncio.gather(*(begin() for _ in range(count)))
    for _ in range(3):  # the first event, and two more: they are alive
        await asyncio.gather(*(next_event(reader) for reader, _ in held))
    rss_mb = server.rss_mb()
    begun = time.monotonic()
    status, _, _ = await call(url, "/health", method="GET")
    health_ms = 1e3 * (time.monotonic() - begun)
    if status != 200:
        faults.append(f"/health with {count} streams: {status}")
    if (num_running := await running(url)) != count:
        faults.append(f"{num_running} of {count} streams run")
    for _, writer in held:
        writer.close()
    for _ in range(100):
        if await running(url) == 0:
            break
        await asyncio.sleep(0.5)
    else:
        faults.append("streams run though their clients left")
    return {"idle_streams": count, "idle_rss_mb": f"{rss_mb:.0f}", "idle_health_ms": f"{health_ms:.1f}"}, faults


def run_idle_streams(count):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "scripts.json"
        file.write_text(json.dumps({"model": "idle", "step_delay_us": 2_000_000, "num_slots": count + 8,
                                    "max_connections": count + 64, "max_context": 8192,
                                    "scripts": [{"prompt_contains": "", "text": "and on ", "end": "repeat"}]}))
        server = Server(BIN / "scripted_server", file, "0")
        row, faults = asyncio.run(hold_streams(server, count))
        if (code := server.stop()) != 0:
            faults.append(f"exit code {code} after idle streams: {server.last_lines()}")
        return row, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--streams", type=int, default=4000)
    parser.add_argument("--model", type=pathlib.Path, default=TOP / "models" / "abacus", help="folder of the checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=4096, help="tokens of a sequence")
    parser.add_argument("--cache-mib", type=int, default=64)
    parser.add_argument("--serve-flags", default="", help="more flags of baleen serve")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="bounds on time and memory growth are not held: too little "
                        "was measured, on a machine that does other things")
    parser.add_argument("--csv", type=pathlib.Path, help="file to append the row to")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    row, faults = run_clients(options)
    idle = dict.fromkeys(("idle_streams", "idle_rss_mb", "idle_health_ms"), "")
    if options.streams > 0:
        idle, idle_faults = run_idle_streams(options.streams)
        faults += idle_faults
    commit = os.environ.get("BALEEN_COMMIT") or subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=TOP, capture_output=True,
        text=True).stdout.strip() or "unknown"
    row |= idle | {"commit": commit, "date": datetime.date.today().isoformat(), "model": options.model.name,
                   "device": options.device, "seconds": int(options.seconds), "clients": options.clients,
                   "result": "broken" if faults else "held"}
    for name in COLUMNS:
        print(f"{name}: {row[name]}")
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    if options.csv:
        fresh = not options.csv.exists()
        with open(options.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
