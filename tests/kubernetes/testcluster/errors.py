"""What can go wrong with the test cluster."""


class Unavailable(Exception):
    """This machine cannot have a test cluster; the message says in one line what is missing."""


class Broken(Exception):
    """A part of the test cluster did not start or ended; the message holds the end of its log."""
