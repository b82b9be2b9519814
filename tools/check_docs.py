#!/usr/bin/env python3
"""Names that pages give must exist: links between pages, files of the tree, C++ test suites and tests, functions of pytest.

    tools/check_docs.py            prints FILE:LINE: what is not there; ends with 1 when there is any
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`([A-Za-z_]\w*/[\w./-]*\.(?:h|cpp|cu|cuh|py|md|csv|svg|txt|toml))`")
CPP_TEST = re.compile(r"`([A-Z]\w*(?:Test|Gpu|GpuSmall))(?:\.(\w+))?(…)?[`/]")
PY_TEST = re.compile(r"`(?:[\w/]*/)?(test_\w+)(\.py)?(?:::(test_\w+))?(…)?`")
CPP_NAME = re.compile(r"\b(?:TYPED_|RC_GTEST_|FRIEND_)?(?:TEST|TEST_F|TEST_P|PROP|FIXTURE_PROP|TYPED_TEST)\(\s*(\w+),\s*(\w+)")
PY_NAME = re.compile(r"^(?:async )?def (test_\w+)", re.M)
ROOTS = ("", "src", "src/kernels")


class Tree:
    """What the names are looked for in: file names, tests by suite, functions of pytest."""

    def __init__(self, texts):
        self.files = set(texts)
        self.known = self.files | {str(parent) for file in texts for parent in pathlib.PurePosixPath(file).parents}
        self.suites, self.functions = {}, set()
        for path, text in texts.items():
            if path.endswith((".cpp", ".cu")):
                for suite, test in CPP_NAME.findall(text):
                    self.suites.setdefault(suite, set()).add(test)
            elif path.endswith(".py"):
                self.functions.update(PY_NAME.findall(text))

    def has_file(self, path):
        return any(str(pathlib.PurePosixPath(root, path)) in self.known for root in ROOTS)

    def has_test(self, suite, test, beginning):
        tests = self.suites.get(suite, set())
        if not test:
            return bool(tests)
        return any(name.startswith(test) if beginning else name == test for name in tests)

    def has_function(self, name, beginning):
        return any(one.startswith(name) if beginning else one == name for one in self.functions)


def missing_names(page, text, tree):
    """(line, what) for every name of the page that is not there."""
    folder = pathlib.PurePosixPath(page).parent
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if "://" not in target:
                parts = []
                for part in (folder / target).parts:
                    parts = parts[:-1] if part == ".." else [*parts, part]
                if not tree.has_file("/".join(parts)):
                    yield number, f"no page or file {target}"
        for path in PATH.findall(line):
            if not path.startswith("out/") and "NNNN" not in path and not tree.has_file(path):
                yield number, f"no file {path}"
        for suite, test, beginning in CPP_TEST.findall(line):
            if not tree.has_test(suite, test, beginning):
                yield number, f"no test {suite}{'.' + test if test else ''}"
        for name, is_file, function, beginning in PY_TEST.findall(line):
            if is_file and not any(file.endswith(f"/{name}.py") for file in tree.files):
                yield number, f"no file {name}.py"
            wanted = function if is_file else name
            if wanted and not tree.has_function(wanted, beginning):
                yield number, f"no test {wanted}"


def main():
    top = pathlib.Path(__file__).resolve().parents[1]
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=top, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if (top / name).is_file()]
    texts = {name: (top / name).read_text(errors="replace") if name.endswith((".cpp", ".cu", ".py", ".md")) else "" for name in names}
    tree, faults = Tree(texts), 0
    for page, text in texts.items():
        if page.endswith(".md"):
            for number, what in missing_names(page, text, tree):
                print(f"{page}:{number}: {what}")
                faults += 1
    print("docs: fine" if faults == 0 else f"docs: {faults} names that are not there")
    return 0 if faults == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
