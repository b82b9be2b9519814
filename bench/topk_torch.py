"""Times torch.topk on the rows of kernels/indexer_topk, for comparison: graph periods in microseconds.

Its picks come in order of scores, not of entries, and which of equal scores it takes is not fixed. One row
is read again and again (from the L2, as its producer leaves it there), more rows rotate over 120 MB.

    python3 bench/topk_torch.py [--commit C] [--date D] [--out FILE.csv]
"""

import argparse

import torch

DEVICE = "cuda"
HEADER = "kernel,row,implementation,mode,median_us,p95_us,bytes,flop,percent_of_ceiling,ceiling,commit,date"
LAUNCHES = 8  # in one graph, or as many as there are sets


def measure(entries, rows, k, replays=40):
    bytes_of_set = rows * entries * 4
    sets = 1 if rows == 1 else max(2, min(64, 120_000_000 // bytes_of_set + 1))
    scores = torch.randn(sets, rows, entries, device=DEVICE)
    values = torch.empty(rows, k, device=DEVICE)
    indices = torch.empty(rows, k, device=DEVICE, dtype=torch.int64)
    launches = max(LAUNCHES, sets)

    def work(number):
        torch.topk(scores[number % sets], k, dim=-1, sorted=False, out=(values, indices))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number in range(3):
            work(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(launches):
            work(number)
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.95)], bytes_of_set


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--commit", default="unknown")
    arguments.add_argument("--date", default="unknown")
    arguments.add_argument("--out")
    options = arguments.parse_args()
    name = f"torch.topk-{torch.__version__.split('+')[0]}"
    lines = [HEADER]
    for entries in (8192, 65536, 262144):
        for rows in (1, 8, 64):
            for k in (512, 1024):
                median, p95, count = measure(entries, rows, k)
                row = f"topk/n:{entries}/rows:{rows}/k:{k}"
                print(f"{row:40s} {name} {median:9.2f} us")
                lines.append(
                    f"indexer_topk,{row},{name},-,{median:.3f},{p95:.3f},{count},0,0.0,latency,"
                    f"{options.commit},{options.date}"
                )
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
