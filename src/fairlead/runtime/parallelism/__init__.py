"""The split of a step over the ranks of a run, and what applies it to a model. Torch is imported when it is applied."""
