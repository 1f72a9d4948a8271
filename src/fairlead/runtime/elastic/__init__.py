"""Lets ranks continue in the same processes after one is killed, and take it in again. No policy here."""
