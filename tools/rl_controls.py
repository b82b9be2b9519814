#!/usr/bin/env python3
"""Variants of the nano job behind one warm-up, held against what each of them must show; and one kill of the whole job.

    tools/rl_controls.py --bin build/cpu/bin/baleen --work out/controls --csv bench/results/cpu/DATE-rl-controls.csv

`baseline` runs first, in full; the others take over its warm-up (OUT/sft), but for those with another optimizer. A run that ended goes on
where it was. Ends with 1 when a statement does not hold. --only NAME... for some of them.
"""
import argparse
import csv
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

# What of a record tells of the moment and not of the run.
OF_THE_MOMENT = ("perf/", "rollout/aborted_tokens", "rollout/resumed_tokens", "rollout/dropped_pending_len_mean", "reward/time_ms")
FP8_ROWS = ["--exactness", "off", "--rollout-quant", "fp8kv", "--replay", "both", "--use-tis"]
VARIANTS = {
    "random": ["--rm-type", "random", "--eval-rm-type", "exact"],
    "flipped": ["--advantage-scale", "-1"],
    "one_step": ["--num-steps-per-rollout", "1", "--use-tis"],
    "four_steps": ["--num-steps-per-rollout", "4", "--use-tis"],
    "fp8_rows_replayed": FP8_ROWS,
    "muon": ["--optimizer", "muon"],
}
WITH_A_WARM_UP_OF_ITS_OWN = {"muon"}  # whose moments are others


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_the_run(path):
    return [{key: value for key, value in record.items() if not key.startswith(OF_THE_MOMENT)} for record in records(path)]


def mean(values):
    return sum(values) / len(values)


def figures(folder):
    metrics, evals = records(folder / "metrics.jsonl"), records(folder / "eval.jsonl")
    reward = [record["rollout/raw_reward"] for record in metrics]
    out = {"rollouts": len(metrics), "reward_first3": mean(reward[:3]), "reward_last5": mean(reward[-5:]),
           "greedy_start": evals[0]["eval/sort"], "greedy_end": evals[-1]["eval/sort"],
           "pass1_start": evals[0].get("eval/sort-pass@1", ""), "pass1_end": evals[-1].get("eval/sort-pass@1", ""),
           "entropy_end": metrics[-1].get("rollout/entropy", ""),
           # A rollout that kept nothing trains nothing and measures nothing.
           "drift_mean": mean([r["drift/mean_abs"] for r in metrics if "drift/max" in r]),
           "drift_max": max(r["drift/max"] for r in metrics if "drift/max" in r)}
    for name in ("replay/route_agreement", "replay/pick_jaccard", "replay/fetched_ratio", "train/tis"):
        seen = [record[name] for record in metrics if name in record]
        out[name.split("/")[1]] = mean(seen) if seen else ""
    return out


def bounds(run):
    return [("reward of rollouts 0-2 in [0.35, 0.65]", 0.35 <= run["reward_first3"] <= 0.65),
            ("reward of the last five >= 0.75", run["reward_last5"] >= 0.75),
            ("gain >= 0.2", run["reward_last5"] - run["reward_first3"] >= 0.2),
            ("greedy at the end >= 0.92", run["greedy_end"] >= 0.92)]


def statements(name, run):
    if name == "random":
        return [("greedy accuracy does not rise", run["greedy_end"] <= run["greedy_start"]), ("drift 0", run["drift_max"] == 0)]
    if name == "flipped":
        return [("reward falls by 0.2", run["reward_last5"] <= run["reward_first3"] - 0.2), ("drift 0", run["drift_max"] == 0)]
    if name == "muon":  # at AdamW's rates, which are low for it
        return [("gain >= 0.15", run["reward_last5"] - run["reward_first3"] >= 0.15),
                ("greedy accuracy rises", run["greedy_end"] > run["greedy_start"]), ("drift 0", run["drift_max"] == 0)]
    if name == "fp8_rows_replayed":
        return bounds(run) + [("there is drift", run["drift_mean"] > 0)]
    return bounds(run) + [("drift 0", run["drift_max"] == 0)]


def rl(program, folder, options):
    done = subprocess.run([program, "rl", "--out", folder, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr.splitlines()[-1]}")


def finished(folder):
    path = folder / "metrics.jsonl"
    return path.exists() and len(records(path)) == 40


def killed(program, folder, seed):
    """Kills the job once behind a random rollout, a random time into the next, and lets it end. Returns the rollouts it had made."""
    draw = random.Random(seed)
    wanted, path = draw.randrange(5, 35), folder / "metrics.jsonl"
    job = subprocess.Popen([program, "rl", "--out", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while job.poll() is None and (not path.exists() or len(path.read_text().splitlines()) < wanted):
        time.sleep(0.05)
    time.sleep(draw.random() * 1.5)
    job.send_signal(signal.SIGKILL)
    job.wait()
    made = len(path.read_text().splitlines())
    rl(program, folder, [])
    return made


def same_end(first, second):
    last = sorted(path.name for path in (first / "checkpoints").iterdir() if path.name.startswith("iter_"))[-1]
    saved = all((first / "checkpoints" / last / name).read_bytes() == (second / "checkpoints" / last / name).read_bytes()
                for name in ("model.safetensors", "optim.safetensors", "data.bin"))
    return saved and all(of_the_run(first / name) == of_the_run(second / name) for name in ("metrics.jsonl", "eval.jsonl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin/baleen")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=["killed", *VARIANTS], default=["killed", *VARIANTS])
    options = parser.parse_args()
    baseline = options.work / "baseline"
    if not finished(baseline):
        rl(options.bin, baseline, [])
    rows, held = [{"run": "baseline", **figures(baseline)}], True
    for statement, holds in statements("baseline", rows[0]):
        print(f"baseline: {statement}: {holds}")
        held = held and holds
    for name in options.only:
        folder = options.work / name
        if name == "killed":
            if not finished(folder):
                print(f"killed: with {killed(options.bin, folder, 7)} rollouts made")
            equal = same_end(baseline, folder)
            print(f"killed: curve, evaluations, weights, moments and data state are the baseline's: {equal}")
            held = held and equal
            rows.append({"run": name, **figures(folder)})
            continue
        if not finished(folder):
            if not folder.exists() and name not in WITH_A_WARM_UP_OF_ITS_OWN:
                shutil.copytree(baseline / "sft", folder / "sft")
            rl(options.bin, folder, VARIANTS[name])
        rows.append({"run": name, **figures(folder)})
        for statement, holds in statements(name, rows[-1]):
            print(f"{name}: {statement}: {holds}")
            held = held and holds
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
