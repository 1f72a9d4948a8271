"""Searches parameters: chooses the values of the next trial, and the trials that end early."""
