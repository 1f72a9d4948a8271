"""Conversion of specs from and to YAML and JSON, and their JSON Schema; every mistake is reported with its line."""
