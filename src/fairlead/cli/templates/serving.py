"""A predictor: `fairlead run serve.yaml` serves it. Needs pip install 'fairlead[serve]' numpy"""

import numpy as np


class Doubler:
    def __init__(self) -> None:
        self.inputs = {"x": ("FP32", (-1, 2))}  # datatype and shape; -1 is the batch
        self.outputs = {"y": ("FP32", (-1, 2))}

    def load(self, model: str) -> None:
        # Your model here, from the directory `model`; "" if serve.yaml has none.
        self.factor = np.float32(2)

    def predict(self, inputs):
        return {"y": inputs["x"] * self.factor}
