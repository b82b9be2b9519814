#!/usr/bin/env python3
"""Runs the fuzz targets one after the other, each for some seconds from its seeds, and says what they did.

    tests/fuzz/run.py [--seconds 60] [--csv FILE] [TARGET ...]

The programs are those of the preset `fuzz` (make fuzz builds them first). An input that makes a target fail is
left in build/fuzz/artifacts and named. Exit code 1 when one failed.
"""
import argparse
import csv
import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
HERE = TOP / "tests" / "fuzz"
ARTIFACTS = TOP / "build" / "fuzz" / "artifacts"
TARGETS = ["dsml", "json_schema", "chat_messages", "http_body", "verifier"]
COLUMNS = ["target", "commit", "date", "seconds", "inputs", "inputs_per_s", "edges_covered", "corpus", "peak_mb", "result"]


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=TOP,
                          capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def run(target, seconds):
    with tempfile.TemporaryDirectory() as corpus:
        command = [TOP / "build" / "fuzz" / "bin" / f"fuzz_{target}", corpus, HERE / "seeds" / target,
                   f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1",
                   f"-artifact_prefix={ARTIFACTS}/{target}-"]
        words = HERE / f"{target}.dict"
        if words.exists():
            command.append(f"-dict={words}")
        done = subprocess.run([str(part) for part in command], cwd=TOP, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"})
        size = len(os.listdir(corpus))

    def stat(name):
        found = re.findall(rf"^stat::{name}:\s+(\d+)", done.stderr, re.M)
        return int(found[-1]) if found else 0
    edges = re.findall(r"cov: (\d+)", done.stderr)
    row = [target, commit(), datetime.date.today().isoformat(), seconds, stat("number_of_executed_units"),
           stat("average_exec_per_sec"), edges[-1] if edges else 0, size, stat("peak_rss_mb"),
           "clean" if done.returncode == 0 else "failed"]
    if done.returncode != 0:
        print(done.stderr[-6000:], file=sys.stderr)
    elif row[4] < 100:
        print(f"{target}: {row[4]} inputs are too few to say anything", file=sys.stderr)
        row[-1] = "failed"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--csv", type=pathlib.Path, help="file to append the rows to")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    rows = []
    for target in options.targets or TARGETS:
        rows.append(run(target, options.seconds))
        print(", ".join(f"{name} {value}" for name, value in zip(COLUMNS, rows[-1])), flush=True)
    if options.csv:
        fresh = not options.csv.exists()
        with open(options.csv, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows(rows)
    return 1 if any(row[-1] != "clean" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
