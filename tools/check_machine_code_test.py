#!/usr/bin/env python3
"""check_machine_code.py with a disassembler made for the purpose, which prints the file it is given."""
import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import check_machine_code
from check_arrivals_test import ARRIVE, LOAD, line
from wgmma_operands_test import PRODUCT, WAIT, listing

KNOWN = '[[harmless]]\ncheck = "arrival"\nkernel = "kernel"\nfindings = {}\nreason = "read and judged"\n'


def arrivals(*instructions, function="kernel"):
    lines = [f"\t\tFunction : {function}"]
    for number, instruction in enumerate(instructions):
        lines += line(16 * number, *instruction)
    return "\n".join(lines) + "\n"


class CheckMachineCode(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for tool in ("cuobjdump", "nvdisasm"):
            program = self.folder / tool
            program.write_text(f"#!/bin/sh\necho x >>{self.folder}/runs\ncat \"$2\"\n")
            program.chmod(0o755)
        path = mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}")
        path.start()
        self.addCleanup(path.stop)

    def file(self, name, text):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def run_on(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_machine_code.main([*arguments, "--jobs", "1"])
        return status, out.getvalue()

    def test_a_planted_arrival_fails_by_kernel_and_place(self):
        status, said = self.run_on(self.file("a.o", arrivals((LOAD, 1), (ARRIVE,))))
        self.assertEqual(status, 1)
        self.assertIn("kernel: 1 findings of kind arrival, 0 known:", said)
        self.assertIn("0010 @!P0 SYNCS.ARRIVE", said)

    def test_a_planted_operand_fails(self):
        code = "\t\tFunction : product\n" + "\n".join(listing(PRODUCT, "LDS.128 R40, [R1]", WAIT)) + "\n"
        status, said = self.run_on(self.file("a.o", code))
        self.assertEqual(status, 1)
        self.assertIn("product: 1 findings of kind operand", said)

    def test_sound_code_passes_and_says_what_was_read(self):
        status, said = self.run_on(self.file("a.o", arrivals((LOAD, 1), ("IADD3 R3, R4, R4, RZ", 7, 2), (ARRIVE,))))
        self.assertEqual(status, 0)
        self.assertIn("1 files (1 disassembled now, the others unchanged): 1 kernels", said)

    def test_a_listed_finding_passes_and_a_second_one_fails(self):
        known = ["--known", self.file("known.toml", KNOWN.format(1))]
        once, twice = arrivals((LOAD, 1), (ARRIVE,)), arrivals((LOAD, 1), (ARRIVE,), (ARRIVE,))
        self.assertEqual(self.run_on(self.file("a.o", once), *known)[0], 0)
        self.assertEqual(self.run_on(self.file("a.o", twice), *known)[0], 1)

    def test_an_entry_that_no_longer_fits_fails(self):
        known = ["--known", self.file("known.toml", KNOWN.format(2))]
        status, said = self.run_on(self.file("a.o", arrivals((LOAD, 1), (ARRIVE,))), *known)
        self.assertEqual(status, 1)
        self.assertIn("correct the list", said)

    def test_an_entry_without_reason_is_refused(self):
        known = self.file("known.toml", KNOWN.format(1).replace("read and judged", " "))
        with self.assertRaises(SystemExit) as refused:
            self.run_on(self.file("a.o", arrivals((LOAD, 1), (ARRIVE,))), "--known", known)
        self.assertIn("a reason", str(refused.exception))

    def test_files_without_kernels_fail(self):
        self.assertEqual(self.run_on(self.file("a.o", ""))[0], 1)

    def test_unchanged_files_are_not_disassembled_again(self):
        cache = ["--cache", str(self.folder / "cache")]
        path = self.file("a.o", arrivals((LOAD, 1), (ARRIVE,)))
        first, second = self.run_on(path, *cache), self.run_on(path, *cache)
        self.assertEqual((first[0], second[0]), (1, 1))
        self.assertIn("(0 disassembled now", second[1])
        self.assertEqual((self.folder / "runs").read_text().count("x"), 1)
        self.run_on(self.file("a.o", arrivals((LOAD, 1))), *cache)
        self.assertEqual((self.folder / "runs").read_text().count("x"), 2)

    def test_names_are_without_namespaces_and_parameters(self):
        self.assertEqual(check_machine_code.short_name(
            "void baleen::kernels::(anonymous namespace)::topk_kernel<8, true>(baleen::kernels::TopkTask)"),
            "topk_kernel<8, true>")
        self.assertEqual(check_machine_code.short_name("void a::k<a::ptx::E4m3, (a::Kind)1>(int)"), "k<E4m3, (Kind)1>")


if __name__ == "__main__":
    unittest.main()
