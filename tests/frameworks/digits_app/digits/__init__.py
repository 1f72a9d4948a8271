"""A Flower app in the form of Flower's own examples: a softmax regression on the digits of scikit-learn, in NumPy."""
