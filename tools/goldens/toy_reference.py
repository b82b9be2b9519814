"""The golden toy model from its formulas, in numpy double precision; shares no code with the C++ body.

Parameters are formulas of their names (hash_fill.py). Everything is written so that it can also run on
complex numbers: comparisons look at the real part, and no conjugates are taken. A derivative is then the
imaginary part of the loss at parameter + 1e-40·i, exact to the last digits, because nothing is subtracted.
"""
import math

import numpy as np

import hash_fill

VOCAB, HIDDEN, HEADS, HEAD_DIM, ROTARY, QUERY_RANK, GROUPS, GROUP_RANK, WINDOW = 32, 16, 4, 16, 8, 10, 2, 6, 8
RATIOS = (0, 4, 16, 4)
INDEX_HEADS, INDEX_DIM, INDEX_TOPK = 3, 16, 3
EXPERTS, CHOSEN, EXPERT_WIDTH, ROUTE_SCALE, CLAMP, HASH_LAYERS = 6, 2, 12, 1.5, 0.7, 1
STREAMS, SINKHORN_STEPS, EPS = 4, 20, 1e-6
THETA, COMPRESS_THETA, YARN_FACTOR, YARN_LENGTH, BETA_FAST, BETA_SLOW = 1e4, 16e4, 16, 65536, 32, 1
SCALES = dict(norm=0.25, embedding=1.0, other=0.5)
STEP = 1e-40  # of the complex derivative


class Parameters:
    """Looks tensors up by name; one element of one tensor may be moved along the imaginary axis."""

    def __init__(self):
        self.made = {}
        self.moved = None

    def move(self, name, index):
        self.moved = None
        value = self.made[name].astype(complex)
        value[tuple(index)] += STEP * 1j
        self.moved = (name, value)

    def __call__(self, name, *shape):
        if self.moved and self.moved[0] == name:
            return self.moved[1]
        if name not in self.made:
            self.made[name] = hash_fill.tensor(name, shape, SCALES)
        return self.made[name]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, weight=1.0):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def frequencies(compressed):
    theta = COMPRESS_THETA if compressed else THETA
    i = np.arange(ROTARY // 2)
    plain = theta ** (-2.0 * i / ROTARY)
    if not compressed:
        return plain

    def border(beta):
        return ROTARY * math.log(YARN_LENGTH / (2 * math.pi * beta)) / (2 * math.log(theta))

    low = max(math.floor(border(BETA_FAST)), 0)
    high = min(math.ceil(border(BETA_SLOW)), ROTARY - 1)
    ramp = np.clip((i - low) / (high - low), 0, 1)
    return plain / YARN_FACTOR * ramp + plain * (1 - ramp)


FREQUENCIES = {False: frequencies(False), True: frequencies(True)}


def rotate(x, positions, compressed, inverse=False):
    """Turns the last ROTARY elements of x [T, ..., width], adjacent pairs, row t at positions[t]."""
    angle = np.outer(positions, FREQUENCIES[compressed]) * (-1 if inverse else 1)
    angle = angle.reshape(len(positions), *[1] * (x.ndim - 2), ROTARY // 2)
    pairs = x[..., -ROTARY:].reshape(*x.shape[:-1], ROTARY // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    turned = np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)
    return np.concatenate([x[..., :-ROTARY], turned.reshape(*x.shape[:-1], ROTARY)], -1)


def hadamard(x):
    width = x.shape[-1]
    signs = np.array([[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)])
    return x @ signs / math.sqrt(width)


def stream_weights(p, x, prefix, count):
    """rho * (fn . x) of one token's streams, with the base and scale that follow."""
    flat = x.reshape(len(x), -1)
    mixed = flat @ p(prefix + "_fn", count, STREAMS * HIDDEN).T
    mixed = mixed / np.sqrt((flat * flat).mean(-1, keepdims=True) + EPS)
    return mixed, p(prefix + "_base", count)


def hyper_enter(p, x, prefix):
    n = STREAMS
    mixed, base = stream_weights(p, x, prefix, n * (n + 2))
    scale = p(prefix + "_scale", 3)
    before = sigmoid(mixed[:, :n] * scale[0] + base[:n]) + EPS
    after = 2 * sigmoid(mixed[:, n:2 * n] * scale[1] + base[n:2 * n])
    logits = (mixed[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)
    comb = np.exp(logits - logits.real.max(-1, keepdims=True))
    comb = comb / comb.sum(-1, keepdims=True) + EPS
    comb = comb / (comb.sum(1, keepdims=True) + EPS)
    for _ in range(SINKHORN_STEPS - 1):
        comb = comb / (comb.sum(2, keepdims=True) + EPS)
        comb = comb / (comb.sum(1, keepdims=True) + EPS)
    return np.einsum("tj,tjh->th", before, x), after, comb


def hyper_leave(y, x, after, comb):
    return after[:, :, None] * y[:, None, :] + np.einsum("tjk,tjh->tkh", comb, x)


def hyper_head(p, x, prefix):
    mixed, base = stream_weights(p, x, prefix, STREAMS)
    weights = sigmoid(mixed * p(prefix + "_scale", 1)[0] + base) + EPS
    return np.einsum("tj,tjh->th", weights, x)


def compress(p, x, prefix, width, ratio):
    halves = 2 if ratio == 4 else 1
    values = x @ p(prefix + ".wkv.weight", halves * width, HIDDEN).T
    ape = p(prefix + ".ape", ratio, halves * width)
    scores = x @ p(prefix + ".wgate.weight", halves * width, HIDDEN).T + ape[np.arange(len(x)) % ratio]
    entries = []
    for begin in range(0, len(x) // ratio * ratio, ratio):
        own = slice(begin, begin + ratio)
        value, score = values[own, -width:], scores[own, -width:]
        if halves == 2 and begin > 0:
            carry = slice(begin - ratio, begin)
            value = np.concatenate([values[carry, :width], value])
            score = np.concatenate([scores[carry, :width], score])
        weight = np.exp(score - score.real.max(0))
        entries.append((weight * value).sum(0) / weight.sum(0))
    if not entries:
        return np.zeros((0, width))
    normed = norm(np.array(entries), p(prefix + ".norm.weight", width))
    return rotate(normed, ratio * np.arange(len(entries)), True)


def index_scores(p, x, latent, prefix, points):
    positions = np.arange(len(x))
    query = latent @ p(prefix + ".wq_b.weight", INDEX_HEADS * INDEX_DIM, QUERY_RANK).T
    query = hadamard(rotate(query.reshape(len(x), INDEX_HEADS, INDEX_DIM), positions, True))
    keys = hadamard(compress(p, x, prefix + ".compressor", INDEX_DIM, 4))
    weights = x @ p(prefix + ".weights_proj.weight", INDEX_HEADS, HIDDEN).T
    weights = weights / math.sqrt(INDEX_DIM * INDEX_HEADS)
    products = np.einsum("thd,wd->thw", query, keys)
    scores = np.einsum("th,thw->tw", weights, np.where(products.real > 0, products, 0))
    points["attn.index_keys"], points["attn.index_scores"] = keys, scores
    return scores


def attention(p, x, prefix, ratio, points):
    positions, compressed = np.arange(len(x)), ratio > 0
    latent = norm(x @ p(prefix + ".wq_a.weight", QUERY_RANK, HIDDEN).T, p(prefix + ".q_norm.weight", QUERY_RANK))
    query = latent @ p(prefix + ".wq_b.weight", HEADS * HEAD_DIM, QUERY_RANK).T
    query = rotate(norm(query.reshape(len(x), HEADS, HEAD_DIM)), positions, compressed)
    rows = norm(x @ p(prefix + ".wkv.weight", HEAD_DIM, HIDDEN).T, p(prefix + ".kv_norm.weight", HEAD_DIM))
    rows = rotate(rows, positions, compressed)
    if ratio > 0:
        entries = compress(p, x, prefix + ".compressor", HEAD_DIM, ratio)
        points["attn.entries"] = entries
    if ratio == 4:
        scores = index_scores(p, x, latent, prefix + ".indexer", points)
    sink = p(prefix + ".attn_sink", HEADS)
    context = []
    for t in positions:
        visible = rows[max(0, t - WINDOW + 1):t + 1]
        if ratio > 0:
            picks = np.arange((t + 1) // ratio)
            if ratio == 4:
                picks = np.argsort(-scores[t, picks].real, kind="stable")[:INDEX_TOPK]
            visible = np.concatenate([visible, entries[picks]])
        logits = query[t] @ visible.T / math.sqrt(HEAD_DIM)
        top = logits.real.max(-1, keepdims=True)
        weight = np.exp(logits - top)
        context.append(weight @ visible / (weight.sum(-1, keepdims=True) + np.exp(sink[:, None] - top)))
    context = rotate(np.array(context), positions, compressed, inverse=True)
    groups = context.reshape(len(x), GROUPS, -1)
    wo_a = p(prefix + ".wo_a.weight", GROUPS * GROUP_RANK, HEADS * HEAD_DIM // GROUPS)
    inner = np.einsum("tgi,gri->tgr", groups, wo_a.reshape(GROUPS, GROUP_RANK, -1)).reshape(len(x), -1)
    points["attn.output"] = inner @ p(prefix + ".wo_b.weight", HIDDEN, GROUPS * GROUP_RANK).T
    return points["attn.output"]


def expert(p, x, prefix, weight):
    gate = p(prefix + ".w1.weight", EXPERT_WIDTH, HIDDEN) @ x
    up = p(prefix + ".w3.weight", EXPERT_WIDTH, HIDDEN) @ x
    gate = np.where(gate.real > CLAMP, CLAMP, gate)
    up = np.where(np.abs(up.real) > CLAMP, np.sign(up.real) * CLAMP, up)
    return p(prefix + ".w2.weight", HIDDEN, EXPERT_WIDTH) @ (weight * gate * sigmoid(gate) * up)


def experts(p, x, prefix, hashed_ids):
    score = np.sqrt(np.log1p(np.exp(x @ p(prefix + ".gate.weight", EXPERTS, HIDDEN).T)))
    table = hash_fill.hash_table(VOCAB, CHOSEN, EXPERTS)
    out = []
    for t in range(len(x)):
        if hashed_ids is not None:
            chosen = table[hashed_ids[t]]
        else:
            ranked = score[t].real + p(prefix + ".gate.bias", EXPERTS).real
            chosen = np.argsort(-ranked, kind="stable")[:CHOSEN]
        total = score[t, chosen].sum()
        y = expert(p, x[t], prefix + ".shared_experts", 1.0)
        for e in chosen:
            y = y + expert(p, x[t], f"{prefix}.experts.{e}", ROUTE_SCALE * score[t, e] / total)
        out.append(y)
    return np.array(out)


def block(p, x, prefix, ratio, hashed_ids, points):
    own = {}
    y, after, comb = hyper_enter(p, x, prefix + ".hc_attn")
    own["hc_attn.post"], own["hc_attn.comb"] = after, comb
    y = attention(p, norm(y, p(prefix + ".attn_norm.weight", HIDDEN)), prefix + ".attn", ratio, own)
    x = hyper_leave(y, x, after, comb)
    y, after, comb = hyper_enter(p, x, prefix + ".hc_ffn")
    y = experts(p, norm(y, p(prefix + ".ffn_norm.weight", HIDDEN)), prefix + ".ffn", hashed_ids)
    own["streams"] = hyper_leave(y, x, after, comb)
    points.update({f"{prefix}.{name}": value for name, value in own.items()})
    return own["streams"]


def forward(p, ids, with_mtp=True):
    """Logits and every intermediate value that the golden file holds."""
    points = {}
    embed = p("embed.weight", VOCAB, HIDDEN)
    head = p("head.weight", VOCAB, HIDDEN)
    x = np.repeat(embed[ids][:, None, :], STREAMS, axis=1)
    for layer, ratio in enumerate(RATIOS):
        x = block(p, x, f"layers.{layer}", ratio, ids if layer < HASH_LAYERS else None, points)
    points["logits"] = norm(hyper_head(p, x, "hc_head"), p("norm.weight", HIDDEN)) @ head.T
    if with_mtp:
        a = norm(embed[ids[1:]], p("mtp.0.enorm.weight", HIDDEN)) @ p("mtp.0.e_proj.weight", HIDDEN, HIDDEN).T
        b = norm(x[:-1], p("mtp.0.hnorm.weight", HIDDEN)) @ p("mtp.0.h_proj.weight", HIDDEN, HIDDEN).T
        y = block(p, a[:, None, :] + b, "mtp.0", 0, None, points)
        y = norm(hyper_head(p, y, "mtp.0.hc_head"), p("mtp.0.norm.weight", HIDDEN))
        points["mtp.0.logits"] = y @ head.T
    return points


def loss(logits, ids):
    """Mean cross-entropy of every row but the last against the next id."""
    rows = logits[:-1]
    top = rows.real.max(-1, keepdims=True)
    log_sum = np.log(np.exp(rows - top).sum(-1)) + top[:, 0]
    return (log_sum - rows[np.arange(len(rows)), ids[1:]]).mean()


def gradient(p, ids, name, index):
    p.move(name, index)
    value = loss(forward(p, ids, with_mtp=False)["logits"], ids)
    p.moved = None
    return value.imag / STEP
