"""The code that runs of this machine keep: as of their submission, and where they run it when it was edited since."""
