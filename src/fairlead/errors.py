"""Every error that Fairlead raises on purpose.

FairleadError
  InvalidSpec        a spec file or a value in it breaks a rule
  CannotFit          no node, even an empty one, can hold the workload
  InvalidArgument    an argument of the Python API is none of those allowed; also a ValueError
  UnknownModel       a model's description is incomplete, or no formula covers it
  NotFound           no workload of that name
  NameTaken          an unfinished workload has that name already
  Conflict           the workload's state does not allow what was asked
  ClusterError       the cluster itself is in trouble (database, supervisor, control plane)
    NotAllowed       the user's account lacks a right there
    NoRoom           the state cannot be written until there is room on the disk
  RuntimeFault       the in-pod library was misused or cannot do what was asked

Each message is complete in itself: what was given, what is allowed, how to fix it. The command line prints it as it is.
"""

EXTRAS = {
    "aiohttp": "serve",
    "jinja2": "serve",
    "numpy": "cluster",
    "fsspec": "remote",
    "packaging": "environments",
    "psycopg": "postgres",
    "pyarrow": "parquet",
    "river": "drift",
    "scipy": "drift",
    "torch": "torch",
}
"""The extra, as in `pip install 'fairlead[EXTRA]'`, of each package that the core leaves out, by its import name."""


class FairleadError(Exception):
    """Base of all errors of Fairlead."""


class InvalidSpec(FairleadError):
    """A spec is invalid; ``problems`` lists every mistake, one line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotFit(FairleadError):
    """The workload can never run on this cluster as it is."""


class InvalidArgument(FairleadError, ValueError):
    """An argument of a Python function breaks its rule."""


class UnknownModel(FairleadError):
    """The description of a model is incomplete, or no formula covers it."""


class NotFound(FairleadError):
    """Nothing of that name is known."""


class NameTaken(FairleadError):
    """An unfinished workload has this name."""


class Conflict(FairleadError):
    """The workload is in a state that does not allow this."""


class ClusterError(FairleadError):
    """The cluster itself is in trouble: its database, supervisor or control plane."""

    @property
    def concerns_all(self) -> bool:
        """Return whether work on other objects would fail too; False for an answer about one object."""
        return True


class NotAllowed(ClusterError):
    """The user's account may not do this there."""


class NoRoom(ClusterError):
    """The cluster cannot write its state: the disk, the quota or the inodes are used up."""


class RuntimeFault(FairleadError):
    """The in-pod library cannot do what was asked."""
