#!/usr/bin/env python3
"""Runs the tests of a build folder with ctest, leaving out those that passed before on the same inputs.

  tools/run_tests.py build/cpu --jobs 2            what changed since it last passed
  tools/run_tests.py build/cpu --jobs 2 --all      everything

A test's inputs are its command and environment, the content of the program it starts, and the content of
the repository's files that it can read: for a test of C++ code all but C++ sources (they are in the
program), pages and measurements; for a test written in Python all files and every program beside it. What
passed is kept in FOLDER/passed_tests.json by digest; a failed, skipped or interrupted test is never kept.
Exits with ctest's status.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = (".cpp", ".h", ".cu", ".cuh")
READ_BY_PYTHON_ALONE = ("docs/", "bench/", "tests/e2e/", "tests/soak/", "tools/", "src/")
PASSED = re.compile(rb"Test\s+#(\d+): \S+ \.*\s+Passed")


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Inputs:
    """Digests of what tests read, each file looked at once."""

    def __init__(self, root):
        names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, check=True,
                               capture_output=True).stdout.decode().split("\0")
        self.files = {n: digest_of(root / n) for n in sorted(set(names)) if n and (root / n).is_file()}
        self.programs = {}
        everything = [f"{n} {d}" for n, d in self.files.items()]
        data = [f"{n} {d}" for n, d in self.files.items()
                if not n.endswith(CODE + (".md",)) and not n.startswith(READ_BY_PYTHON_ALONE)]
        self.everything, self.data = self._join(everything), self._join(data)
        # A test that skips itself where there is no GPU passes there: with one it is another test.
        self.machine = "gpu" if Path("/dev/nvidia0").exists() else "no gpu"

    @staticmethod
    def _join(lines):
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def program(self, path):
        if path not in self.programs:
            self.programs[path] = digest_of(path)
        return self.programs[path]

    def of_test(self, test, build):
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        parts = [self.machine, *test["command"], json.dumps(properties.get("ENVIRONMENT", []))]
        first = Path(test["command"][0])
        if build in first.parents:
            parts += [self.program(first), self.data]
        else:
            programs = sorted(p for p in (build / "bin").glob("*") if p.is_file())
            parts += [self.everything, *(f"{p.name} {self.program(p)}" for p in programs)]
        return self._join(parts)


def tests_of(build):
    """Number, as ctest counts, and description of each test that can be started."""
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    return [(i, t) for i, t in enumerate(json.loads(shown.stdout)["tests"], 1)]


def run(build, numbers, jobs, on_passed):
    chosen = ",".join(str(n) for n in numbers)
    command = ["ctest", "--test-dir", str(build), "-j", str(jobs), "--output-on-failure", "--no-tests=error", "-I",
               f"0,0,0,{chosen}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        for line in child.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if found := PASSED.search(line):
                on_passed(int(found[1]))
    return child.returncode


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true", help="also what passed before on the same inputs")
    options = parser.parse_args(arguments)
    build = options.build.resolve()
    kept = build / "passed_tests.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}

    tests = tests_of(build)
    inputs = Inputs(root)
    now = {n: (t["name"], inputs.of_test(t, build) if "command" in t else None) for n, t in tests}
    unchanged = {n for n, (name, digest) in now.items() if digest and before.get(name) == digest}
    chosen = [n for n in now if options.all or n not in unchanged]
    passed = {now[n][0]: now[n][1] for n in unchanged if n not in chosen}

    def keep(number):
        passed[now[number][0]] = now[number][1]
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(passed, indent=0, sort_keys=True))
        part.replace(kept)

    if len(chosen) < len(now):
        print(f"{len(now) - len(chosen)} of {len(now)} tests passed before on the same programs and files: "
              "not run again (ALL=1 runs them)", flush=True)
    if not chosen:
        print(f"100% tests passed, 0 tests failed out of {len(now)}")
        return 0
    return run(build, chosen, options.jobs, keep)


if __name__ == "__main__":
    sys.exit(main())
