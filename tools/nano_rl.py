#!/usr/bin/env python3
"""Runs of the nano job side by side: checks their bounds, writes their rows and a picture.

    tools/nano_rl.py out/seed1 out/seed2 out/seed3 --csv bench/results/cpu/DATE-nano-rl.csv --svg docs/pictures/nano-rl.svg

A folder is the --out of a finished `baleen rl`. Ends with 1 when a bound is missed.
"""
import argparse
import csv
import json
import pathlib
import sys

COLUMNS = ["rollout/raw_reward", "rollout/kept_groups", "rollout/judged_groups", "rollout/entropy", "train/grad_norm",
           "drift/mean_abs", "drift/max", "perf/rollout_time", "perf/train_time"]
COLOURS = ["#1f5fa8", "#b3541e", "#2e7d4f", "#7a4fa3"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 52, 16, 36, 40


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def mean(values):
    return sum(values) / len(values)


def check(run):
    """The bounds of the nano job; a list of (statement, holds)."""
    reward = [record["rollout/raw_reward"] for record in run["metrics"]]
    first, last = mean(reward[:3]), mean(reward[-5:])
    greedy = run["evals"][-1]["eval/" + run["config"]["task"]]
    drift = max(record["drift/max"] for record in run["metrics"])
    return [(f"reward of rollouts 0-2 {first:.3f} in [0.35, 0.65]", 0.35 <= first <= 0.65),
            (f"reward of the last five {last:.3f} >= 0.75", last >= 0.75),
            (f"gain {last - first:.3f} >= 0.2", last - first >= 0.2),
            (f"greedy at the end {greedy:.3f} >= 0.92", greedy >= 0.92),
            (f"largest drift {drift} == 0", drift == 0)]


def picture(runs):
    steps = max(len(run["metrics"]) for run in runs)

    def x(step):
        return LEFT + step / max(steps - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return TOP + (1 - value) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', '<rect width="100%" height="100%" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="20" font-size="14">share of right answers by rollout; the teacher is right half of '
           'the time</text>']
    for tenth in range(0, 11, 2):
        level = tenth / 10
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.1f}</text>')
    for step in range(0, steps, 5):
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    for colour, run in zip(COLOURS, runs):
        points = " ".join(f"{x(i):.1f},{y(record['rollout/raw_reward']):.1f}" for i, record in enumerate(run["metrics"]))
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        for record in run["evals"]:
            at = min(max(record["train/step"] - 1, 0), steps - 1)
            out.append(f'<circle cx="{x(at):.1f}" cy="{y(record["eval/" + run["config"]["task"]]):.1f}" r="3" '
                       f'fill="{colour}"/>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">rollout; dots: greedy answers to unseen '
               'prompts</text></svg>')
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    arguments = parser.parse_args()
    runs = [{"config": json.loads((folder / "rl.json").read_text()), "metrics": records(folder / "metrics.jsonl"),
             "evals": records(folder / "eval.jsonl")} for folder in arguments.folders]
    failed = False
    for run in runs:
        for statement, holds in check(run):
            print(f"seed {run['config']['seed']}: {statement}{'' if holds else '   MISSED'}")
            failed = failed or not holds
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["seed", "rollout", *COLUMNS, "eval/greedy", "eval/pass@1"])
            for run in runs:
                task = run["config"]["task"]
                by_version = {record["train/step"]: record for record in run["evals"]}
                for record in [{"train/step": -1}, *run["metrics"]]:
                    eval_record = by_version.get(record["train/step"] + 1, {})
                    values = [record.get(name, "") for name in COLUMNS]
                    values += [eval_record.get(f"eval/{task}", ""), eval_record.get(f"eval/{task}-pass@1", "")]
                    writer.writerow([run["config"]["seed"], record["train/step"],
                                     *(f"{v:.6g}" if isinstance(v, float) else v for v in values)])
    if arguments.svg:
        arguments.svg.write_text(picture(runs))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
