#!/usr/bin/env python3
"""Records what PyTorch computes, for the specs that compare the engine with it.

    pip install torch safetensors numpy
    python tests/golden/record_torch.py            # rewrites tests/golden/torch_*.txt

Every input is fixed, so a rerun gives the same cases; the last digits of results may differ
between versions and machines, within the tolerances of the specs. golden_format.py says how
the files read. Dimensions in the Lua lines count from 1, as everywhere in Lua; integers
inside tensors count from 0.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch

import golden_nn
import golden_tensor
from golden_format import Recorder

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    torch.set_num_threads(1)
    files = [
        ("elementwise", "Elementwise maths, comparison and selection", golden_tensor.elementwise),
        ("reduce", "Reductions, softmax, sorting", golden_tensor.reductions),
        ("linalg", "Products of vectors, matrices and batches", golden_tensor.products),
        ("shape", "Views, joining, indexing, in-place forms", golden_tensor.shapes),
        ("nn", "Layers, functions and losses", golden_nn.layers),
        ("distributions", "Distributions", golden_nn.distributions),
    ]
    for name, title, record in files:
        recorder = Recorder(title)
        record(recorder)
        recorder.write(os.path.join(HERE, "torch_%s.txt" % name))
    golden_nn.optimizers(os.path.join(HERE, "torch_optim.txt"))
    golden_nn.safetensors_files(HERE)


if __name__ == "__main__":
    main()
