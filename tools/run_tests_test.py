"""run_tests.py on a repository and a build folder made for the purpose."""
import contextlib
import io
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import run_tests


class RunTestsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.build = self.root / "build" / "cpu"
        self.ran = self.root / "build" / "ran"
        (self.build / "bin").mkdir(parents=True)
        self.write(".gitignore", "/build/\n")
        self.write("tests/golden/row.json", "1")
        self.write("docs/page.md", "old")
        self.write("src/base/log.cpp", "int a;")
        self.program("base_tests", "base")
        script = self.write("tests/e2e/test_page.py", f"open({str(self.ran)!r}, 'a').write('e2e ')")
        (self.build / "CTestTestfile.cmake").write_text(
            f'add_test(base.LogTest "{self.build}/bin/base_tests")\n'
            f'add_test(e2e.page "/usr/bin/env" "python3" "{script}")\n')
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, says, status=0):
        path = self.build / "bin" / name
        path.write_text(f"#!/bin/sh\nprintf '{says} ' >>{self.ran}\nexit {status}\n")
        os.chmod(path, 0o755)

    def run_once(self, *flags):
        """Exit status and what ran."""
        self.ran.write_text("")
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), write_through=True)):
            status = run_tests.main([str(self.build), "--jobs", "1", *flags], self.root)
        return status, sorted(self.ran.read_text().split())

    def test_what_passed_runs_again_only_when_its_inputs_change(self):
        self.assertEqual(self.run_once(), (0, ["base", "e2e"]))
        self.assertEqual(self.run_once(), (0, []))
        self.assertEqual(self.run_once("--all"), (0, ["base", "e2e"]))
        self.assertEqual(self.run_once(), (0, []))

        self.write("docs/page.md", "new")
        self.assertEqual(self.run_once(), (0, ["e2e"]))
        self.write("tests/golden/row.json", "2")
        self.assertEqual(self.run_once(), (0, ["base", "e2e"]))
        self.write("tests/golden/not_added_yet.json", "3")
        self.assertEqual(self.run_once(), (0, ["base", "e2e"]))
        (self.root / "tests/golden/not_added_yet.json").unlink()
        self.assertEqual(self.run_once(), (0, ["base", "e2e"]))
        self.program("base_tests", "base2")
        self.assertEqual(self.run_once(), (0, ["base2", "e2e"]))
        self.program("another_program", "x")
        self.assertEqual(self.run_once(), (0, ["e2e"]))

    def test_sources_count_through_their_program_alone(self):
        self.run_once()
        self.write("src/base/log.cpp", "int b;")
        self.assertEqual(self.run_once(), (0, ["e2e"]))

    def test_what_failed_runs_again(self):
        self.program("base_tests", "base", status=1)
        self.assertNotEqual(self.run_once()[0], 0)
        status, ran = self.run_once()
        self.assertEqual((status != 0, ran), (True, ["base"]))
        self.program("base_tests", "base")  # a program beside the page's test too
        self.assertEqual(self.run_once(), (0, ["base", "e2e"]))

    def test_another_command_or_environment_is_another_test(self):
        self.run_once()
        listed = self.build / "CTestTestfile.cmake"
        text = listed.read_text()
        listed.write_text(text.replace('bin/base_tests"', 'bin/base_tests" "--more"'))
        self.assertEqual(self.run_once(), (0, ["base"]))
        listed.write_text(text + 'set_tests_properties(base.LogTest PROPERTIES ENVIRONMENT "A=1")\n')
        self.assertEqual(self.run_once(), (0, ["base"]))


if __name__ == "__main__":
    unittest.main()
