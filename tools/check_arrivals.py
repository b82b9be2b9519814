#!/usr/bin/env python3
"""Finds arrivals that may overtake loads: reads the machine code of kernels (`cuobjdump -sass`) and
reports every arrival on a barrier in shared memory that is issued while a load from shared memory
before it may still be under way.

    cuobjdump -sass build/cuda-kernels/bin/kernel_bench | tools/check_arrivals.py

Such an arrival gives memory back to the copy engine before it was read, if the load was from what it
gives back (scales that nobody overwrites are harmless): see docs/kernels/experts.md. A load names
the scoreboard that tells its end, or none: then the next load's tells both, loads end in order. A
load is over when an instruction has waited for its scoreboard. The code is read in the order of
addresses, which is the order of execution within a loop body; branches are not followed. Exit
status 1 when something was found."""

import re
import sys

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);?\s*/\* 0x[0-9a-f]{16} \*/")
CONTROL = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
FUNCTION = re.compile(r"Function : (\S+)")
NO_SCOREBOARD = 7


def instructions(lines):
    """(function, address, text, scoreboard that it sets, mask of those that it waits for)."""
    function, current = "", None
    for line in lines:
        named = FUNCTION.search(line)
        if named:
            function, current = named.group(1), None
            continue
        first = INSTRUCTION.match(line)
        if first:
            current = first.group(1), first.group(2)
            continue
        second = CONTROL.match(line)
        if second and current:
            control = int(second.group(1), 16) >> 41
            yield function, *current, control >> 5 & 7, control >> 11 & 63
            current = None


def is_load(text):
    return re.search(r"\bLDS\b", text) is not None and "RZ, [RZ]" not in text


def is_arrival(text):
    return "SYNCS.ARRIVE" in text and "A1T0" in text


def early_arrivals(lines):
    """(function, address, text of the arrival, loads under way)."""
    of, under_way, unnamed = None, {}, []
    for function, address, text, sets, waits in instructions(lines):
        if function != of or re.match(r"(EXIT|RET)\b", text):
            of, under_way, unnamed = function, {}, []
        for scoreboard in range(6):
            if waits >> scoreboard & 1:
                under_way.pop(scoreboard, None)
        if is_load(text):
            unnamed.append(f"{address} {text}")
            if sets != NO_SCOREBOARD:
                under_way.setdefault(sets, []).extend(unnamed)
                unnamed = []
        elif is_arrival(text):
            loads = [load for group in under_way.values() for load in group] + unnamed
            if loads:
                yield function, address, text, loads


def main():
    found = 0
    for function, address, text, loads in early_arrivals(sys.stdin):
        found += 1
        print(f"{function}\n  {address} {text}")
        for load in loads[-4:]:
            print(f"    may still load: {load}")
    print(f"{found} arrivals with loads under way", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
