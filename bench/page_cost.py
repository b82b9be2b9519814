#!/usr/bin/env python3
"""What the live view costs a server under load: processor time with 10 viewers and with none.

  bench/page_cost.py [--bin build/cpu/bin] [--csv FILE]

Serves models/abacus under `baleen bench serve`, whose work is the same in every round, with and without viewers in turns. Work
that differs by a few percent from round to round would hide what is looked for, so it is added up where it is done:
  feed     all of the thread that makes the events, which does nothing else
  sockets  what the threads of the sockets take more with viewers than without, under the load or, where that drowns in the
           load's own answers, without it for as long: the larger of both
  looks    what the engine's thread takes more for its looks at the pools; measured behind the load, with the cache that it
           left, where no step drowns it, and counted for the time of the load
`added_share` is their sum, of the processor time that the whole server takes for the load. Ends with 1 above 1 %.
"""
import argparse
import collections
import csv
import datetime
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[1]
VIEWERS, ROUNDS, IDLE_S, MOST = 10, 3, 15, 0.01
COLUMNS = ["date", "commit", "load_average", "viewers", "load_s", "load_cpu_s", "feed_cpu_s", "sockets_cpu_s_without", "sockets_cpu_s_with",
           "sockets_idle_cpu_s", "looks_cpu_s", "added_share"]


class Viewer:
    def __init__(self, url):
        self.stream = urllib.request.urlopen(f"{url}/live")
        self.events = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            for line in self.stream:
                self.events += line.startswith(b"data:")
        except (OSError, ValueError, AttributeError):
            pass  # closed

    def close(self):
        self.stream.fp.raw._sock.shutdown(2)
        self.stream.close()


def cpu_by_name(pid):
    """Seconds of all threads by their names, to the nanosecond; the server ends none while it runs."""
    out = collections.Counter()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        out[(task / "comm").read_text().strip()] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return out


def measure(server, url, viewers, work):
    """Processor seconds by thread, and wall seconds, of `work` while so many look on."""
    looking = [Viewer(url) for _ in range(viewers)]
    time.sleep(1.5)
    begun, before = time.monotonic(), cpu_by_name(server.pid)
    work()
    wall, after = time.monotonic() - begun, cpu_by_name(server.pid)
    assert all(viewer.events >= wall / 2 for viewer in looking), "a viewer was left out"
    for viewer in looking:
        viewer.close()
    time.sleep(1.5)
    return {name: after[name] - before[name] for name in after}, wall


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bin", type=pathlib.Path, default=TOP / "build" / "cpu" / "bin")
    options.add_argument("--csv", type=pathlib.Path)
    options = options.parse_args()
    program = options.bin / "baleen"
    server = subprocess.Popen([program, "serve", TOP / "models" / "abacus", "--port", "0", "--log-level", "warn"],
                              stdout=subprocess.PIPE, text=True)
    found = collections.defaultdict(list)
    try:
        url = server.stdout.readline().split()[1]

        def load():
            subprocess.run([program, "bench", "serve", "--url", url, "--requests", "48", "--concurrency", "4",
                            "--warm-up", "0", "--prompt-tokens", "200", "--answer-tokens", "64"],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        load()
        for kind, work in (("load", load), ("idle", lambda: time.sleep(IDLE_S))):
            for number in range(ROUNDS):
                for viewers in (0, VIEWERS) if number % 2 == 0 else (VIEWERS, 0):
                    cpu, wall = measure(server, url, viewers, work)
                    for name in ("live", "http-io", "engine"):
                        found[kind, viewers, name].append(cpu[name])
                    found[kind, viewers, "all"].append(sum(cpu.values()))
                    found[kind, viewers, "wall"].append(wall)
                    print(f"{kind} round {number}: {viewers:2} viewers, {sum(cpu.values()):.3f} s of processor in {wall:.2f} s, feed "
                          f"{cpu['live']:.4f}, sockets {cpu['http-io']:.4f}, engine {cpu['engine']:.4f}", flush=True)
    finally:
        server.terminate()
        server.wait()

    def middle(kind, viewers, name):
        return statistics.median(found[kind, viewers, name])

    wall = middle("load", VIEWERS, "wall")
    feed = middle("load", VIEWERS, "live")
    idle_sockets = (middle("idle", VIEWERS, "http-io") - middle("idle", 0, "http-io")) * wall / IDLE_S
    sockets = max(middle("load", VIEWERS, "http-io") - middle("load", 0, "http-io"), idle_sockets)
    looks = (middle("idle", VIEWERS, "engine") - middle("idle", 0, "engine")) * wall / IDLE_S
    share = (feed + sockets + looks) / middle("load", 0, "all")
    print(f"{VIEWERS} viewers for {wall:.1f} s under load: feed {1e3 * feed:.1f} ms, sockets {1e3 * sockets:.1f} ms, looks "
          f"{1e3 * looks:.1f} ms: {100 * share:.2f} % of the {middle('load', 0, 'all'):.2f} s that the server takes")
    if options.csv:
        commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], capture_output=True,
                                text=True, check=True).stdout.strip()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(COLUMNS)
            writer.writerow([datetime.date.today().isoformat(), commit, f"{os.getloadavg()[0]:.1f}", VIEWERS, f"{wall:.2f}",
                             f"{middle('load', 0, 'all'):.3f}", f"{feed:.4f}", f"{middle('load', 0, 'http-io'):.4f}",
                             f"{middle('load', VIEWERS, 'http-io'):.4f}", f"{idle_sockets:.4f}", f"{looks:.4f}", f"{share:.5f}"])
    return 0 if share < MOST else 1


if __name__ == "__main__":
    sys.exit(main())
