"""Notifications: messages about runs to people, by webhook, e-mail or a command.

``topics`` and ``messages`` are pure; ``destinations`` reads the file of destinations; ``queue`` decides what is sent
when, with bounded retries and rates; ``transports`` alone has I/O to the outside. Nothing here decides about runs.
"""
