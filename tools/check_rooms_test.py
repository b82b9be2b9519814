"""The room check must complain about each kind of forbidden include, and about nothing else."""
import pathlib
import tempfile
import unittest

import check_rooms

TABLE = """
[base]
uses = []
libraries = ["fmt"]
files = { "log.cpp" = ["spdlog"] }

[text]
uses = ["base"]
libraries = []

[engine]
uses = ["text"]
libraries = []
"""


class RoomCheckTest(unittest.TestCase):
    def complaints(self, path, include, table=TABLE):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "src").mkdir()
            (top / "src" / "rooms.toml").write_text(table)
            file = top / "src" / path
            file.parent.mkdir(parents=True)
            file.write_text(f"#include {include}\n")
            return check_rooms.check(top)[0]

    def test_allows_own_room_used_rooms_and_what_those_use(self):
        self.assertEqual(self.complaints("text/a.cpp", '"text/b.h"'), [])
        self.assertEqual(self.complaints("text/a.cpp", '"base/b.h"'), [])
        self.assertEqual(self.complaints("engine/a.cpp", '"base/b.h"'), [])

    def test_refuses_an_arrow_against_the_table(self):
        self.assertRegex(self.complaints("base/a.h", '"text/b.h"')[0], "base may not include room text")

    def test_refuses_a_link_against_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "src" / "text").mkdir(parents=True)
            (top / "src" / "rooms.toml").write_text(TABLE)
            build_file = top / "src" / "text" / "CMakeLists.txt"
            build_file.write_text("baleen_room(text\n  SOURCES a.cpp\n  USES base engine\n  THIRD_PARTY fmt)\n")
            self.assertEqual(check_rooms.check(top)[0], ["src/text/CMakeLists.txt: room text may not link room engine"])

    def test_libraries_are_not_inherited(self):
        self.assertEqual(self.complaints("base/a.cpp", "<fmt/format.h>"), [])
        self.assertRegex(self.complaints("text/a.cpp", "<fmt/format.h>")[0], "library fmt")

    def test_a_library_may_be_bound_to_one_file(self):
        self.assertEqual(self.complaints("base/log.cpp", "<spdlog/spdlog.h>"), [])
        self.assertRegex(self.complaints("base/a.cpp", "<spdlog/spdlog.h>")[0], "library spdlog")

    def test_torch_never_slips_in(self):
        for header in ("<ATen/ATen.h>", "<torch/torch.h>", "<c10/core/Device.h>"):
            self.assertRegex(self.complaints("engine/a.cpp", header)[0], "library torch")

    def test_test_libraries_belong_in_tests(self):
        self.assertEqual(self.complaints("text/a_test.cpp", "<gtest/gtest.h>"), [])
        self.assertRegex(self.complaints("text/a.cpp", "<gtest/gtest.h>")[0], "tests and benchmarks only")

    def test_refuses_unknown_rooms_libraries_and_relative_includes(self):
        self.assertRegex(self.complaints("misc/a.h", "<vector>")[0], "no such room")
        self.assertRegex(self.complaints("text/a.h", '"misc/b.h"')[0], "names no room")
        self.assertRegex(self.complaints("text/a.h", "<nlohmann/json.hpp>")[0], "no library known")
        self.assertRegex(self.complaints("text/a.h", '"b.h"')[0], "rooted at src/")

    def test_allows_the_standard_library_and_the_system(self):
        for header in ("<vector>", "<cstdint>", "<unistd.h>", "<sys/mman.h>"):
            self.assertEqual(self.complaints("text/a.h", header), [])

    def test_a_table_that_uses_a_missing_room_is_refused(self):
        self.assertRegex(
            self.complaints("base/a.h", "<vector>", '[base]\nuses = ["gone"]\nlibraries = []\n')[0], "gone"
        )


if __name__ == "__main__":
    unittest.main()
