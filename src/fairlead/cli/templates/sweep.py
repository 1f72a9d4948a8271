"""Evaluates one set of parameters. Also runs standalone: python train.py --rate 0.1 --depth 2 --activation relu"""

import argparse
import math


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--activation", choices=["relu", "tanh"], required=True)
    options = parser.parse_args()
    # Your training here. This one stands for a loss that falls with the steps, best at a rate of 0.01 and a depth of 3.
    best = (math.log10(options.rate) + 2) ** 2 + (options.depth - 3) ** 2 / 4 + (options.activation == "relu") / 10
    for step in range(1, 21):
        print(f"step={step} loss={best + 1 / step:.4f}", flush=True)


if __name__ == "__main__":
    main()
