"""Times compressor prefill as a chain of tensor operations, for comparison with kernels/compressor_pool.

The chain is the plain one: add the position bias, overlap, softmax over the window, weighted sum, bf16,
RMSNorm, RoPE, e4m3 in blocks of 64 with power-of-two scales, store. FP32 rows, one CUDA graph.

    python3 bench/compressor_naive.py            # prints microseconds for T = 8192 and 65536
"""

import math

import torch

DEVICE = "cuda"


def overlapped(x, dims):
    """[groups, 4, 2 * dims] -> [groups, 8, dims]: carry of the group before, own of this one."""
    groups = x.shape[0]
    out = x.new_zeros(groups, 8, dims)
    out[:, 4:] = x[:, :, dims:]
    out[1:, :4] = x[:-1, :, :dims]
    return out


def finish(entries, weight, angle, values, rope, scales):
    x = entries.to(torch.bfloat16).float()
    x = (weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))).to(torch.bfloat16)
    pairs = torch.view_as_complex(x[:, 448:].float().reshape(x.shape[0], 32, 2))
    rotated = torch.view_as_real(pairs * angle).reshape(x.shape[0], 64).to(torch.bfloat16)
    blocks = x[:, :448].float().reshape(x.shape[0], 7, 64)
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1.0 / 448.0)
    exponent = torch.ceil(torch.log2(amax))
    values.copy_((blocks / torch.exp2(exponent)).clamp(-448, 448).to(torch.float8_e4m3fn).reshape(-1, 448))
    rope.copy_(rotated)
    scales.copy_((exponent.squeeze(-1) + 127).to(torch.uint8))


def measure(tokens, ratio):
    overlap = ratio == 4
    dims, width = 512, 1024 if overlap else 512
    groups = tokens // ratio
    rows = torch.randn(tokens, 2 * width, device=DEVICE)
    ape = torch.randn(ratio, width, device=DEVICE)
    weight = torch.randn(dims, device=DEVICE)
    position = torch.arange(groups, device=DEVICE, dtype=torch.float32)[:, None] * ratio
    frequency = 160000.0 ** (-torch.arange(0, 64, 2, device=DEVICE) / 64.0)
    angle = torch.polar(torch.ones(groups, 32, device=DEVICE), position * frequency)
    values = torch.empty(groups, 448, device=DEVICE, dtype=torch.float8_e4m3fn)
    rope = torch.empty(groups, 64, device=DEVICE, dtype=torch.bfloat16)
    scales = torch.empty(groups, 7, device=DEVICE, dtype=torch.uint8)

    def pool():
        value = rows[:, :width].reshape(groups, ratio, width)
        score = rows[:, width:].reshape(groups, ratio, width) + ape
        if overlap:
            value, score = overlapped(value, dims), overlapped(score, dims)
            score[0, :4] = -math.inf
        return (value * torch.softmax(score, dim=1)).sum(dim=1)

    def step():
        finish(pool(), weight, angle, values, rope, scales)

    results = []
    for work in (pool, step):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                work()
        times = []
        for _ in range(15):
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / 4)
        results.append(sorted(times)[len(times) // 2])
    return results


if __name__ == "__main__":
    for ratio in (4, 128):
        for tokens in (8192, 65536):
            pooled, whole = measure(tokens, ratio)
            print(f"naive c{ratio} t:{tokens} pool {pooled:.1f} us, with the tail {whole:.1f} us")
