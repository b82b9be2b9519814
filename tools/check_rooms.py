#!/usr/bin/env python3
"""Holds every #include below src/ against the table in src/rooms.toml.

Prints one line per forbidden include and exits 1 if there is any. Also refuses a room that is missing in
the table and a `uses` entry that names no room.
"""
import pathlib
import re
import sys
import tomllib

# First match wins. Headers of the C++ and C libraries have no dot and no slash, or end in .h without one.
LIBRARY_OF_HEADER = [
    (r"boost/(json|system)", "boost_json"),
    (r"boost/(asio|beast|url|core)", "boost_net"),
    (r"boost/lockfree", "boost_lockfree"),
    (r"openssl/", "openssl"),
    (r"(ATen|c10|torch|caffe2)/", "torch"),
    (r"fmt/", "fmt"),
    (r"spdlog/", "spdlog"),
    (r"prometheus/", "prometheus"),
    (r"CLI/", "cli11"),
    (r"toml\+\+/", "tomlplusplus"),
    (r"pcre2", "pcre2"),
    (r"utf8proc", "utf8proc"),
    (r"xxhash", "xxhash"),
    (r"xgrammar/", "xgrammar"),
    (r"nccl", "nccl"),
    (r"numa", "numa"),
    (r"(cuda|cub/|cute/|cutlass/|cublas)", "cuda"),
]
TEST_ONLY = re.compile(r"(gtest|gmock|rapidcheck|benchmark)[/.]")
SYSTEM = re.compile(r"^([a-z0-9_]+|[a-z0-9_]+\.h|(sys|netinet|arpa|linux)/[a-z0-9_]+\.h|immintrin\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def reachable(rooms, room):
    """The room itself and all that its `uses` lead to."""
    seen, queue = set(), [room]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(rooms[name]["uses"])
    return seen


def complaints_about(path, relative, room, rooms):
    allowed_rooms = reachable(rooms, room)
    entry = rooms[room]
    allowed_libraries = set(entry["libraries"]) | set(entry.get("files", {}).get(path.name, []))
    is_test = path.stem.endswith(("_test", "_bench")) or "testing" in path.parts
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        where = f"{relative}:{number}"
        if quote == '"':
            target = header.split("/")[0]
            if "/" not in header:
                yield f'{where}: "{header}" must be rooted at src/, such as "{room}/{header}"'
            elif target not in rooms:
                yield f'{where}: "{header}" names no room of src/rooms.toml'
            elif target not in allowed_rooms:
                yield f"{where}: room {room} may not include room {target} ({header})"
            continue
        if TEST_ONLY.match(header):
            if not is_test:
                yield f"{where}: <{header}> belongs in tests and benchmarks only"
            continue
        library = next((name for pattern, name in LIBRARY_OF_HEADER if re.match(pattern, header)), None)
        if library is None:
            if not SYSTEM.match(header):
                yield f"{where}: <{header}> is of no library known to tools/check_rooms.py"
        elif library not in allowed_libraries:
            yield f"{where}: room {room} may not include library {library} (<{header}>)"


def complaints_about_targets(build_file, top, rooms):
    """The rooms that baleen_room(...) links must be in the table too: a header could come in that way."""
    for name, body in re.findall(r"baleen_room\(\s*(\w+)(.*?)\)", build_file.read_text(), re.DOTALL):
        words = body.split()
        uses = words[words.index("USES") + 1 :] if "USES" in words else []
        for used in uses:
            if used in ("TORCH", "SOURCES", "THIRD_PARTY"):
                break
            if used not in reachable(rooms, name):
                yield f"{build_file.relative_to(top)}: room {name} may not link room {used}"


def check(top):
    """All complaints about the checkout at `top`, and the number of files read."""
    rooms = tomllib.loads((top / "src" / "rooms.toml").read_text())
    bad = [
        f"src/rooms.toml: room {room} uses {used}, which is not in the table"
        for room, entry in rooms.items()
        for used in entry["uses"]
        if used not in rooms
    ]
    if bad:
        return bad, 0
    files = 0
    for folder in sorted(p for p in (top / "src").iterdir() if p.is_dir()):
        if folder.name not in rooms:
            bad.append(f"src/{folder.name}: no such room in src/rooms.toml")
            continue
        build_file = folder / "CMakeLists.txt"
        if build_file.exists():
            bad.extend(complaints_about_targets(build_file, top, rooms))
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                files += 1
                bad.extend(complaints_about(path, path.relative_to(top), folder.name, rooms))
    return bad, files


def main():
    bad, files = check(pathlib.Path(__file__).resolve().parent.parent)
    for line in bad:
        print(line)
    print(f"room check: {files} files, {len(bad)} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
