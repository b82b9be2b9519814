#!/usr/bin/env python3
"""Writes tests/golden/hf_port.safetensors: logits of the Hugging Face port on small configurations.

Per case the file holds `NAME.ids` (int64 [T]) and `NAME.logits` (float32 [T, V]) of one sequence; its
metadata holds `NAME.config` (config.json as the port saves it) and the arguments of the weight formula
(hash_fill.py), `NAME.scales` and `NAME.salt`, so no weights are stored. The port runs in double precision with eager attention and experts; a case whose
float32 run differs (a routing or top-k decision too close to call) gets the next salt instead.

    ~/.cache/baleen/goldens/bin/python tools/goldens/make_hf_goldens.py
"""
import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import hash_fill
import port_names

BASE = dict(
    vocab_size=48, hidden_size=32, num_attention_heads=4, head_dim=16, q_lora_rank=12, o_groups=2,
    o_lora_rank=6, sliding_window=8, index_n_heads=3, index_head_dim=16, index_topk=4,
    n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, routed_scaling_factor=1.5,
    swiglu_limit=1.0, hc_mult=4, hc_sinkhorn_iters=20, num_nextn_predict_layers=0, rotary=8,
    ratios=[0, 4, 128, 4], hash_layers=1, rates=(4, 128), original=65536, factor=16.0,
    theta=10000.0, compress_theta=160000.0, other=0.3,
)
# name, tokens, differences from BASE
CASES = [
    ("window_only", 40, dict(ratios=[0, 0], hash_layers=0)),
    ("window_of_two", 24, dict(ratios=[0, 0, 4], sliding_window=2, hash_layers=0)),
    ("c4_alone", 37, dict(ratios=[4], hash_layers=0)),
    ("c4_few_picks", 70, dict(ratios=[4, 4], hash_layers=0, index_topk=2)),
    ("c4_one_pick", 45, dict(ratios=[0, 4], index_topk=1, index_n_heads=1)),
    ("c128_alone", 262, dict(ratios=[128], hash_layers=0, sliding_window=128)),
    ("c128_short_window", 300, dict(ratios=[128, 128], hash_layers=0, sliding_window=4)),
    ("published_pattern", 300, dict(ratios=[0, 0, 4, 128, 4], hash_layers=3, sliding_window=128,
                                    index_topk=24)),
    ("pro_pattern", 140, dict(ratios=[128, 128, 4, 128, 4], hash_layers=3, sliding_window=16)),
    ("ratio_sixteen", 90, dict(ratios=[0, 4, 16, 4], rates=(4, 16))),
    ("hash_everywhere", 33, dict(ratios=[0, 4, 16], rates=(4, 16), hash_layers=3)),
    ("one_group", 40, dict(ratios=[0, 4, 16], rates=(4, 16), o_groups=1)),
    ("groups_of_one_head", 40, dict(ratios=[0, 4, 16], rates=(4, 16), o_groups=4)),
    ("eight_heads", 40, dict(ratios=[4, 16], rates=(4, 16), num_attention_heads=8, o_groups=4,
                             o_lora_rank=5)),
    ("all_rotated", 40, dict(ratios=[0, 4, 16], rates=(4, 16), rotary=16)),
    ("two_streams", 40, dict(ratios=[0, 4, 16], rates=(4, 16), hc_mult=2, hc_sinkhorn_iters=3)),
    ("one_expert", 40, dict(ratios=[0, 4], n_routed_experts=5, num_experts_per_tok=1)),
    ("all_experts", 40, dict(ratios=[0, 4], n_routed_experts=3, num_experts_per_tok=3,
                             hash_layers=0)),
    ("short_yarn", 280, dict(ratios=[0, 4, 128], original=64, factor=4.0, theta=500.0,
                             compress_theta=2000.0, sliding_window=32)),
    ("open_clamp", 40, dict(ratios=[0, 4, 16], rates=(4, 16), swiglu_limit=50.0, other=0.4)),
]
LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention"}
MAX_DIFFERENCE = 2e-5  # float32 against double, relative to the largest logit
MAX_SALTS = 20


def make_config(options):
    options = dict(options)
    ratios = options.pop("ratios")
    hash_layers = options.pop("hash_layers")
    rates = options.pop("rates")
    part = options.pop("rotary") / options["head_dim"]
    yarn = dict(rope_type="yarn", factor=options.pop("factor"), beta_fast=32, beta_slow=1,
                original_max_position_embeddings=options.pop("original"), attention_factor=1.0,
                rope_theta=options.pop("compress_theta"), partial_rotary_factor=part)
    main = dict(rope_type="default", rope_theta=options.pop("theta"), partial_rotary_factor=part)
    return DeepseekV4Config(
        **options,
        num_hidden_layers=len(ratios),
        layer_types=[LAYER_TYPES.get(r, "heavily_compressed_attention") for r in ratios],
        compress_rates=dict(compressed_sparse_attention=rates[0],
                            heavily_compressed_attention=rates[1]),
        mlp_layer_types=["hash_moe" if i < hash_layers else "moe" for i in range(len(ratios))],
        partial_rotary_factor=part,
        rope_parameters=dict(main=main, compress=yarn),
        attn_implementation="eager",
        experts_implementation="eager",
    )


def port_config(config):
    """config.json as save_pretrained writes it."""
    return json.loads(config.to_json_string(use_diff=True))


def fill(model, config, scales, salt):
    """Gives every tensor of the port the values of its published names."""
    def value(name, shape):
        return torch.from_numpy(hash_fill.tensor(name, tuple(shape), scales, salt))

    tensors = dict(model.named_parameters())
    tensors.update((n, b) for n, b in model.named_buffers() if not n.endswith("inv_freq"))
    with torch.no_grad():
        for name, tensor in tensors.items():
            stack = port_names.stacked_experts(name)
            if stack:
                prefix, kind = stack
                for e in range(config.n_routed_experts):
                    if kind == "down_proj":
                        tensor[e] = value(f"{prefix}{e}.w2.weight", tensor.shape[1:])
                    else:
                        half = (tensor.shape[1] // 2, tensor.shape[2])
                        gate = value(f"{prefix}{e}.w1.weight", half)
                        up = value(f"{prefix}{e}.w3.weight", half)
                        tensor[e] = torch.cat([gate, up])
            elif name.endswith("tid2eid"):
                table = hash_fill.hash_table(config.vocab_size, config.num_experts_per_tok,
                                             config.n_routed_experts)
                tensor.copy_(torch.from_numpy(table))
            else:
                tensor.copy_(value(port_names.published(name), tensor.shape))


def stable_topk(self, k, dim=-1):
    """topk with ties to the lower index, which the port leaves open. Index scores are exactly 0 where
    every head's product is negative, so ties are frequent."""
    values, indices = torch.sort(self, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


def run(config, scales, salt, ids, dtype):
    torch.set_default_dtype(dtype)
    model = DeepseekV4ForCausalLM(config).to(dtype).eval()
    # Frequencies stay what the port computes: float32.
    fill(model, config, scales, salt)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0]
    torch.set_default_dtype(torch.float32)
    return logits.double().numpy()


def make_case(name, tokens, changes):
    options = {**BASE, **changes}
    scales = dict(norm=0.25, embedding=1.0, other=options.pop("other"))
    config = make_config(options)
    for attempt in range(MAX_SALTS):
        salt = f"{name}/{attempt}/"
        noise = hash_fill.hash_values(salt + "ids", tokens)
        ids = ((noise + 1.0) / 2.0 * config.vocab_size).astype(np.int64)
        exact = run(config, scales, salt, ids, torch.float64)
        single = run(config, scales, salt, ids, torch.float32)
        difference = np.abs(exact - single).max() / np.abs(exact).max()
        if difference < MAX_DIFFERENCE:
            break
        print(f"  {name}: salt {attempt} differs by {difference:.1e}, next")
    else:
        raise RuntimeError(f"case {name}: no salt without a close decision")
    print(f"{name}: T={tokens} max|logit|={np.abs(exact).max():.3f} float32 difference "
          f"{difference:.1e} salt {attempt}", flush=True)
    about = {f"{name}.config": json.dumps(port_config(config), sort_keys=True),
             f"{name}.scales": f"{scales['norm']} {scales['embedding']} {scales['other']}",
             f"{name}.salt": salt}
    return {f"{name}.ids": ids, f"{name}.logits": exact.astype(np.float32)}, about


def sort_header(path):
    """The writer keeps metadata in a hash map; sorted keys give the same bytes in every run."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--output", type=pathlib.Path,
                        default=here.parent.parent / "tests" / "golden" / "hf_port.safetensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.Tensor.topk = stable_topk  # the indexer calls the method, the router the function
    tensors, metadata = {}, {}
    for name, tokens, changes in CASES:
        case, about = make_case(name, tokens, changes)
        tensors.update(case)
        metadata.update(about)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, arguments.output, metadata=metadata)
    sort_header(arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
