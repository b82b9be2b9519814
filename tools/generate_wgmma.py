#!/usr/bin/env python3
"""Writes src/kernels/ptx/wgmma_shapes.cuh: one wrapper per tensor instruction of the shapes in use.

The register lists of wgmma.mma_async are too long to keep right by hand. `--check` fails when the
file differs from what this script writes.
"""
import pathlib
import sys

SHAPES = (8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256)
TARGET = pathlib.Path(__file__).resolve().parent.parent / "src/kernels/ptx/wgmma_shapes.cuh"

HEAD = """#pragma once
// Tensor instructions of one warp group, D[64, N] += A[64, K] * B[N, K]^T with FP32 accumulators:
// K = 16 for bf16, K = 32 for e4m3. Written by tools/generate_wgmma.py, which is why it is
// one long file; use through wgmma.cuh.
// clang-format off

#include <cstdint>

namespace baleen::kernels::ptx {

struct Bf16;
struct E4m3;

template <class Format, int N> struct Wgmma;
"""


def operands(first: int, count: int) -> str:
    return ", ".join(f"%{first + i}" for i in range(count))


def wrapped(text: str, indent: str) -> str:
    """Breaks a long operand list into string literals of at most 100 columns."""
    pieces, line = [], ""
    for part in text.split(", "):
        if len(line) + len(part) + 2 > 84:
            pieces.append(line)
            line = ""
        line += part + ", "
    pieces.append(line[:-2])
    return ("\"\n" + indent + "\"").join(pieces)


def outputs(count: int) -> str:
    lines, line = [], ""
    for i in range(count):
        part = f'"+f"(d[{i}])'
        if len(line) + len(part) > 88:
            lines.append(line.rstrip())
            line = ""
        line += part + (", " if i + 1 < count else "")
    lines.append(line)
    return "\n          ".join(lines)


def wrapper(kind: str, n: int, from_registers: bool) -> str:
    count = n // 2
    k, name = (16, "bf16") if kind == "Bf16" else (32, "e4m3")
    transposes = kind == "Bf16"
    a_operands = 4 if from_registers else 1
    next_index = count
    a = ("{" + operands(next_index, 4) + "}") if from_registers else f"%{next_index}"
    next_index += a_operands
    b = f"%{next_index}"
    accumulate = f"%{next_index + 1}"
    text = []
    if transposes:
        text.append("  template <int TransposeB = 0>\n" if from_registers
                    else "  template <int TransposeA = 0, int TransposeB = 0>\n")
    a_argument = "const uint32_t (&a)[4]" if from_registers else "uint64_t a"
    function = "registers" if from_registers else "shared"
    text.append(f"  static __device__ __forceinline__ void {function}(float (&d)[{count}], {a_argument}, "
                "uint64_t b, int accumulate) {\n")
    text.append('    asm volatile("{\\n.reg .pred p;\\n"\n')
    text.append(f'        "setp.ne.b32 p, {accumulate}, 0;\\n"\n')
    text.append(f'        "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{name}.{name} "\n')
    indent = "        "
    text.append(f'{indent}"{{{wrapped(operands(0, count), indent)}}}, "\n')
    tail = f"{a}, {b}, p, 1, 1"
    if transposes:
        tail += f", %{next_index + 2}" + ("" if from_registers else f", %{next_index + 3}")
    text.append(f'        "{tail};\\n}}"\n')
    text.append(f"        : {outputs(count)}\n")
    a_in = ", ".join(f'"r"(a[{i}])' for i in range(4)) if from_registers else '"l"(a)'
    text.append(f'        : {a_in}, "l"(b), "r"(accumulate)')
    if transposes:
        text.append(', "n"(TransposeB)' if from_registers else ', "n"(TransposeA), "n"(TransposeB)')
    text.append(");\n  }\n")
    return "".join(text)


def generate() -> str:
    text = [HEAD]
    for kind in ("Bf16", "E4m3"):
        for n in SHAPES:
            text.append(f"\ntemplate <> struct Wgmma<{kind}, {n}> {{\n")
            text.append(f"  static constexpr int kAccumulators = {n // 2};\n")
            text.append(wrapper(kind, n, from_registers=False))
            text.append(wrapper(kind, n, from_registers=True))
            text.append("};\n")
    text.append("\n}  // namespace baleen::kernels::ptx\n")
    return "".join(text)


def main() -> int:
    text = generate()
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text() != text:
            print(f"{TARGET} is not what tools/generate_wgmma.py writes: run it", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
