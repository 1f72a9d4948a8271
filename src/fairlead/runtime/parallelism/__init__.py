"""The split of a step over the ranks of a run, and its application to a model. Imports torch only when applied."""
