"""The port to a cluster and its adapters. An adapter observes and applies; it decides nothing."""
