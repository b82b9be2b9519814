#!/usr/bin/env python3
"""Holds the machine code of kernels against two faults that neither compiler nor sanitizer sees: arrivals that may
overtake loads (check_arrivals.py) and operands of tensor instructions overwritten while they are read
(wgmma_operands.py).

    tools/check_machine_code.py build/cuda-kernels/src/kernels/*/libkernel_*.a [--cache FOLDER] [--jobs N]

FILE is an object, archive or program with CUDA code. Each is disassembled with cuobjdump and nvdisasm, found in PATH,
beside the CUDA compiler, or where tools/bootstrap put them. What was found in a file is kept in the cache folder by
digest of the file and of the checks, so that only changed files are disassembled again.

Findings that were read and judged harmless stand in machine_code_known.toml, by kernel and with the reason; any other
fails, and so does an entry that no longer fits: exit status 1.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import check_arrivals
import wgmma_operands

TOOLS = Path(__file__).resolve().parent
FUNCTION = re.compile(r"Function : (\S+)")


def find_tool(name):
    """Path of a disassembler; exits with what to do when there is none."""
    home = Path(os.environ.get("BALEEN_HOME", Path.home() / ".cache/baleen"))
    places = [shutil.which(name), Path("/usr/local/cuda/bin") / name,
              *sorted(home.glob(f"python/lib/python3*/site-packages/nvidia/cu*/bin/{name}"))]
    for place in places:
        if place and os.access(place, os.X_OK):
            return Path(place)
    sys.exit(f"check_machine_code: no {name} in PATH, /usr/local/cuda/bin or {home}: run tools/bootstrap")


def by_function(lines):
    """(mangled name, its lines) of every kernel in a listing of cuobjdump."""
    name, own = None, []
    for line in lines:
        if found := FUNCTION.search(line):
            if name:
                yield name, own
            name, own = found[1], []
        own.append(line)
    if name:
        yield name, own


def readable(mangled_names):
    """Names as the list has them: without return type, namespaces and parameters."""
    shown = subprocess.run(["c++filt"], input="\n".join(mangled_names), text=True, capture_output=True,
                           check=True).stdout.splitlines()
    return {m: short_name(s) for m, s in zip(mangled_names, shown)}


def short_name(signature):
    """`void a::(anonymous namespace)::kernel<8, true>(a::Params)` is `kernel<8, true>`."""
    text = re.sub(r"\b\w+::", "", signature.replace("(anonymous namespace)::", "")).removeprefix("void ")
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return text[:at]
    return text


def findings_in(listing):
    """{"kernels": number, "products": groups, "findings": [[check, kernel, what]...]} of one listing."""
    kernels, products, found = 0, 0, []
    for name, lines in by_function(listing):
        kernels += 1
        for _, address, text, loads in check_arrivals.early_arrivals(lines):
            found.append(["arrival", name, f"{address} {text}, while {loads[-1]} may be under way"])
        groups, faults = wgmma_operands.overwritten(lines)
        products += groups
        found += [["operand", name, fault] for fault in faults]
    names = readable(sorted({f[1] for f in found})) if found else {}
    return {"kernels": kernels, "products": products, "findings": [[c, names[n], what] for c, n, what in found]}


def disassemble(path, cuobjdump, nvdisasm):
    environment = dict(os.environ, PATH=f"{nvdisasm.parent}:{os.environ['PATH']}")
    done = subprocess.run([cuobjdump, "-sass", path], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "does not contain device code" not in done.stderr + done.stdout:
        sys.exit(f"check_machine_code: cuobjdump {path}: {done.stderr.strip()}")
    return done.stdout.splitlines()


class Checker:
    def __init__(self, cache, tools):
        self.cache, self.tools, self.read = cache, tools, 0
        own = hashlib.sha256()
        for source in ("check_machine_code.py", "check_arrivals.py", "wgmma_operands.py"):
            own.update((TOOLS / source).read_bytes())
        self.own = own.hexdigest()

    def check(self, path):
        digest = hashlib.sha256(self.own.encode() + Path(path).read_bytes()).hexdigest()[:32]
        kept = self.cache / f"{digest}.json" if self.cache else None
        if kept and kept.exists():
            return json.loads(kept.read_text())
        self.read += 1
        result = findings_in(disassemble(path, *self.tools))
        if kept:
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(result))
            part.replace(kept)
        return result


def judge(findings, known):
    """Lines that tell what is not as the list says."""
    wrong = []
    counts = Counter((check, kernel) for check, kernel, _ in findings)
    listed = {(k["check"], k["kernel"]): k["findings"] for k in known}
    for (check, kernel), count in sorted(counts.items()):
        if count > listed.get((check, kernel), 0):
            wrong.append(f"{kernel}: {count} findings of kind {check}, {listed.get((check, kernel), 0)} known:")
            wrong += [f"    {what}" for c, k, what in findings if (c, k) == (check, kernel)]
    for (check, kernel), count in sorted(listed.items()):
        if counts[check, kernel] < count:
            wrong.append(f"{kernel}: the list knows {count} findings of kind {check}, there are "
                         f"{counts[check, kernel]}: correct the list")
    return wrong


def read_known(path):
    entries = tomllib.loads(path.read_text()).get("harmless", [])
    for entry in entries:
        missing = {"check", "kernel", "findings", "reason"} - entry.keys()
        if missing or not entry["reason"].strip():
            sys.exit(f"check_machine_code: {path}: {entry}: wants {', '.join(sorted(missing)) or 'a reason'}")
    return entries


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--known", type=Path, help="list of findings judged harmless; without it none is")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
    checker = Checker(options.cache, (find_tool("cuobjdump"), find_tool("nvdisasm")))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(checker.check, options.files))
    findings = [tuple(f) for r in results for f in r["findings"]]
    known = read_known(options.known) if options.known else []
    wrong = judge(findings, known)
    print(f"{len(options.files)} files ({checker.read} disassembled now, the others unchanged): "
          f"{sum(r['kernels'] for r in results)} kernels, {sum(r['products'] for r in results)} groups of tensor "
          f"instructions")
    for kind, what in (("arrival", "arrivals while a load may be under way"),
                       ("operand", "operands overwritten while they are read")):
        print(f"  {what}: {sum(f[0] == kind for f in findings)}, "
              f"{sum(k['findings'] for k in known if k['check'] == kind)} known to be harmless")
    for line in wrong:
        print(line)
    return 1 if wrong or not sum(r["kernels"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
