"""The docs check must name what is not there, and nothing else."""
import unittest

import check_docs

TREE = check_docs.Tree({
    "docs/a.md": "", "docs/serving/b.md": "", "src/engine/engine.h": "", "src/kernels/ptx/wgmma.cuh": "",
    "src/engine/engine_test.cpp": "TEST_F(EngineTest, AnswersInOrder) {\nRC_GTEST_PROP(OrderTest, IsTotal, (int n)) {",
    "tests/e2e/test_rl.py": "def test_a_run_goes_on(tmp_path):\n    pass\n",
})


class DocsCheckTest(unittest.TestCase):
    def complaints(self, line, page="docs/a.md"):
        return [what for _, what in check_docs.missing_names(page, line, TREE)]

    def test_names_that_are_there(self):
        for line in ("[b](serving/b.md#part)", "[x](https://example.org/x)", "`engine/engine.h`", "`src/engine/engine.h`",
                     "`ptx/wgmma.cuh`", "`EngineTest`", "`EngineTest.AnswersInOrder`", "`EngineTest.Answers…`", "`OrderTest.IsTotal`",
                     "`test_rl.py`", "`tests/e2e/test_rl.py`", "`test_rl.py::test_a_run_goes_on`", "`test_a_run_goes_on`",
                     "`test_a_run_…`", "`out/run/metrics.csv`", "`docs/decisions/NNNN-title.md`"):
            self.assertEqual(self.complaints(line), [], line)
        self.assertEqual(self.complaints("[a](../a.md)", "docs/serving/b.md"), [])

    def test_names_that_are_not(self):
        for line, what in (("[b](b.md)", "no page or file b.md"), ("`engine/motor.h`", "no file engine/motor.h"),
                           ("`MotorTest`", "no test MotorTest"), ("`EngineTest.Answers`", "no test EngineTest.Answers"),
                           ("`EngineTest.Refuses…`", "no test EngineTest.Refuses"), ("`test_sft.py`", "no file test_sft.py"),
                           ("`test_rl.py::test_a_run`", "no test test_a_run"), ("`test_nothing`", "no test test_nothing")):
            self.assertEqual(self.complaints(line), [what], line)


if __name__ == "__main__":
    unittest.main()
