#!/usr/bin/env python3
"""Writes tests/golden/toy.safetensors: what toy_reference.py computes for 20 tokens, in double precision.

The names are those of the trace (src/model/trace.h), and `loss`; `gradient NAME` holds derivatives of the
loss at the flat positions `position NAME` of parameter NAME: all of a small tensor, a sample of a large one.

    ~/.cache/baleen/goldens/bin/python tools/goldens/make_toy_goldens.py
"""
import argparse
import pathlib

import numpy as np
from safetensors.numpy import save_file

import toy_reference

TOKENS = 20
SAMPLES = 4  # per parameter


def golden_values():
    ids = (7 * np.arange(TOKENS) + 3) % toy_reference.VOCAB
    parameters = toy_reference.Parameters()
    tensors = toy_reference.forward(parameters, ids)
    tensors["loss"] = np.array([toy_reference.loss(tensors["logits"], ids)])
    for name, value in sorted(parameters.made.items()):
        # The indexer and the router bias only choose, and MTP is not part of this loss.
        if ".indexer." in name or name.endswith("gate.bias") or name.startswith("mtp."):
            continue
        positions = np.unique(np.linspace(0, value.size - 1, SAMPLES).astype(np.int64))
        if name == "embed.weight":  # rows of the tokens that occur
            positions = ids[:SAMPLES] * toy_reference.HIDDEN + np.arange(SAMPLES)
        gradients = [toy_reference.gradient(parameters, ids, name, np.unravel_index(i, value.shape))
                     for i in positions]
        tensors["position " + name] = positions.astype(np.int64)
        tensors["gradient " + name] = np.array(gradients)
    return {name: np.ascontiguousarray(value) for name, value in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--output", type=pathlib.Path, default=top / "tests" / "golden" / "toy.safetensors")
    arguments = parser.parse_args()
    save_file(golden_values(), arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
