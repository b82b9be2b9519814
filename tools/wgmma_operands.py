#!/usr/bin/env python3
"""Finds registers of a tensor instruction's operand that are written before the instruction has read them.

    cuobjdump -sass kernel.o | tools/wgmma_operands.py
    tools/wgmma_operands.py FILE.sass...

A wgmma with its first operand in registers reads them while the program goes on. The compiler takes them for free
once it is issued: a load or an addition that comes before the wait may be given the same registers, and the product
then has other values now and then. Exit code 1 when one is found; each is printed with its place.
"""
import re
import sys

TENSOR = re.compile(r"[HQ]GMMA\S* R\d+, R(\d+), gdesc")
WRITE = re.compile(r"(?:@!?U?P\d+ )?(\S+) R(\d+)[,. ]")
NO_WRITE = ("ST", "RED", "BRA", "SYNCS", "R2UR")
OPERAND_REGISTERS = 4


def instructions(lines):
    """(address, text) of every instruction."""
    for line in lines:
        if (found := re.search(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);", line)):
            yield int(found[1], 16), found[2]


def overwritten(lines):
    """(number of groups between first product and wait, descriptions of the writes found)."""
    groups, faults, operand = 0, [], None
    for address, text in instructions(lines):
        if (found := TENSOR.search(text)):
            operand = (operand or set()) | set(range(int(found[1]), int(found[1]) + OPERAND_REGISTERS))
        elif operand is not None and "DEPBAR" in text:
            groups, operand = groups + 1, None
        elif operand and (found := WRITE.match(text)) and not found[1].startswith(NO_WRITE):
            width = 4 if ".128" in found[1] else 2 if ".64" in found[1] else 1
            if operand & set(range(int(found[2]), int(found[2]) + width)):
                faults.append(f"{address:x}: {text.strip()}")
    return groups, faults


def main():
    names = sys.argv[1:] or ["-"]
    failed = False
    for name in names:
        lines = sys.stdin if name == "-" else open(name)
        groups, faults = overwritten(lines)
        for fault in faults:
            print(f"{name}: {fault}")
        print(f"{name}: {groups} groups of tensor instructions, {len(faults)} writes to operands that are being read")
        failed = failed or bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
