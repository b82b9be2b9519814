#!/usr/bin/env python3
"""What the live view costs a server: processor time with 10 viewers and with none.

  bench/page_cost.py [--bin build/cpu/bin] [--csv FILE]

Serves models/abacus and measures the processor time of the server's process in alternating rounds, idle and under
`baleen bench serve`, whose work is the same in every round. `added_share` is the time that the viewers add, of the
time that the load takes: idle it is told apart from the noise of the load.
"""
import argparse
import csv
import datetime
import pathlib
import statistics
import subprocess
import threading
import time
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[1]
VIEWERS, ROUNDS, IDLE_S = 10, 2, 15


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


def cpu_s(pid):
    """Of all threads that live, to the nanosecond; the server ends none while it runs."""
    return sum(int(file.read_text().split()[0]) for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure(server, url, viewers, work):
    """Processor seconds and wall seconds of `work` while so many look on."""
    looking = [Viewer(url) for _ in range(viewers)]
    time.sleep(1.5)
    begun, cpu = time.monotonic(), cpu_s(server.pid)
    work()
    wall, cpu = time.monotonic() - begun, cpu_s(server.pid) - cpu
    assert all(viewer.events >= wall / 2 for viewer in looking), "a viewer was left out"
    for viewer in looking:
        viewer.close()
    time.sleep(1.5)
    return cpu, wall


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bin", type=pathlib.Path, default=TOP / "build" / "cpu" / "bin")
    options.add_argument("--csv", type=pathlib.Path)
    options = options.parse_args()
    program = options.bin / "baleen"
    server = subprocess.Popen([program, "serve", TOP / "models" / "abacus", "--port", "0", "--log-level", "warn"],
                              stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[1]

        def load():
            subprocess.run([program, "bench", "serve", "--url", url, "--requests", "48", "--concurrency", "4",
                            "--warm-up", "0", "--prompt-tokens", "200", "--answer-tokens", "64"],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        load()
        rows = []
        for kind, work in (("idle", lambda: time.sleep(IDLE_S)), ("load", load)):
            for number in range(ROUNDS):
                for viewers in (0, VIEWERS) if number % 2 == 0 else (VIEWERS, 0):
                    cpu, wall = measure(server, url, viewers, work)
                    rows.append({"kind": kind, "round": number, "viewers": viewers, "cpu_s": cpu, "wall_s": wall})
                    print(f"{kind} round {number}: {viewers:2} viewers, {cpu:.2f} s of processor in {wall:.2f} s", flush=True)
    finally:
        server.terminate()
        server.wait()

    def per_second(kind, viewers):
        return statistics.median(row["cpu_s"] / row["wall_s"] for row in rows
                                 if row["kind"] == kind and row["viewers"] == viewers)

    def whole(viewers):
        return statistics.median(row["cpu_s"] for row in rows if row["kind"] == "load" and row["viewers"] == viewers)

    added = per_second("idle", VIEWERS) - per_second("idle", 0)
    share = added / per_second("load", 0)
    print(f"{VIEWERS} viewers: {1e3 * added:.2f} ms of processor a second, {100 * share:.2f} % of what the load takes; "
          f"the load itself took {whole(0):.2f} s without and {whole(VIEWERS):.2f} s with them")
    if options.csv:
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(["date", "commit", "viewers", "idle_cpu_share_without", "idle_cpu_share_with",
                                 "load_cpu_s_without", "load_cpu_s_with", "added_share"])
            commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True,
                                    text=True, check=True).stdout.strip()
            writer.writerow([datetime.date.today().isoformat(), commit, VIEWERS,
                             f"{per_second('idle', 0):.5f}", f"{per_second('idle', VIEWERS):.5f}",
                             f"{whole(0):.2f}", f"{whole(VIEWERS):.2f}", f"{share:.5f}"])


if __name__ == "__main__":
    main()
