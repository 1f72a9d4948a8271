"""The steps of a pipeline, each called by its name: python steps.py prepare"""

import json
import os
import sys


def prepare():
    # Your data here.
    points = [[x, 2 * x] for x in range(100)]
    with open(os.environ["FAIRLEAD_OUTPUT_DATA"], "w") as file:
        json.dump(points, file)
    print(f"{len(points)} points")


def train():
    with open(os.environ["FAIRLEAD_INPUT_PREPARE_DATA"]) as file:
        points = json.load(file)
    # Your training here. This one fits a line through zero.
    slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    right = sum(abs(y - slope * x) < 0.5 for x, y in points)
    with open(os.environ["FAIRLEAD_OUTPUT_MODEL"], "w") as file:
        json.dump({"slope": slope}, file)
    with open(os.environ["FAIRLEAD_OUTPUT_ACCURACY"], "w") as file:
        print(right / len(points), file=file)


def publish():
    with open(os.environ["FAIRLEAD_INPUT_TRAIN_MODEL"]) as file:
        print("publishing", file.read())


if __name__ == "__main__":
    {"prepare": prepare, "train": train, "publish": publish}[sys.argv[1]]()
