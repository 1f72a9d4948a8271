"""Lists of runs with their times, read from files: what a simulation replays. Files in, frozen values out."""
