"""What runs inside a pod. Standard library only at import time; torch and fsspec only where they are really used."""
