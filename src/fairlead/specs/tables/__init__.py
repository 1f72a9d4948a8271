"""The keys of each kind: parser, rendering, JSON Schema and CRDs follow from these tables."""
