#!/usr/bin/env python3
"""Draws the kernel benchmark rows of a CSV as an SVG: percent of the ceiling per row, grouped by kernel.

  tools/plot_kernels.py bench/results/h200/2026-11-30-kernels.csv
writes the SVG beside the CSV, with the same stem.
"""
import csv
import html
import pathlib
import sys

BAR, ROW, LEFT, WIDTH, HEAD = 10, 14, 430, 420, 46
COLOURS = {"read": "#2b6cb0", "copy": "#2f855a", "gather": "#6b46c1", "bf16": "#c05621", "fp8": "#b83280",
           "pcie": "#4a5568"}


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"] != "ceiling"]
    # One bar per row and mode of our fastest implementation; plain streams and peers are text only.
    return [row for row in rows if row["implementation"] == "sm90" and float(row["percent_of_ceiling"]) > 0]


def draw(rows: list[dict[str, str]], title: str) -> str:
    parts, y, kernel = [], HEAD, None
    for row in rows:
        if row["kernel"] != kernel:
            kernel = row["kernel"]
            y += ROW
            parts.append(f'<text x="8" y="{y}" font-weight="bold">{html.escape(kernel)}</text>')
            y += ROW
        share = float(row["percent_of_ceiling"])
        label = row["row"] + ("" if row["mode"] == "-" else f' ({row["mode"]})')
        parts.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{html.escape(label)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y - BAR + 1}" width="{min(share, 100) / 100 * WIDTH:.1f}" '
                     f'height="{BAR}" fill="{COLOURS.get(row["ceiling"], "#718096")}"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 6}" y="{y}">{share:.0f} % of {row["ceiling"]}, '
                     f'{float(row["median_us"]):.1f} µs</text>')
        y += ROW
    grid = "".join(
        f'<line x1="{LEFT + WIDTH * p / 100:.1f}" x2="{LEFT + WIDTH * p / 100:.1f}" y1="{HEAD}" y2="{y}" '
        f'stroke="#cbd5e0"/><text x="{LEFT + WIDTH * p / 100:.1f}" y="{HEAD - 6}" '
        f'text-anchor="middle">{p} %</text>' for p in (0, 25, 50, 75, 100))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 170}" height="{y + 12}" '
            f'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="8" y="18" font-size="14">{html.escape(title)}</text>{grid}{"".join(parts)}</svg>\n')


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1])
    rows = rows_of(path)
    path.with_suffix(".svg").write_text(draw(rows, f"Percent of the attainable peak, {path.stem}"))
    print(f"{path.with_suffix('.svg')}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
