"""Images for tests: a base of one small layer, and packages that are quickly there."""

from pathlib import Path

from fairlead.control.image.building import push
from fairlead.control.image.content import Image, config_blob
from fairlead.control.image.layers import LayerFile, make_layer
from fairlead.control.image.references import Reference, read_reference
from fairlead.control.image.registry import Registry

PACKAGES = {
    "click/__init__.py": LayerFile(content=b"name = 'click'\n"),
    "numpy/core.so": LayerFile(content=bytes(range(256))),
}


def base_image(directory: Path, *, python: str = "3.12.4", architecture: str = "amd64") -> Image:
    """An image as the official ones are described, with one file."""
    directory.mkdir(parents=True, exist_ok=True)
    layer = make_layer({"/etc/os-release": LayerFile(content=b"ID=debian\n")}, "/etc", directory)
    settings = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin", f"PYTHON_VERSION={python}"], "Cmd": ["python3"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
    }
    return Image(config=config_blob(settings, directory), settings=settings, layers=(layer.blob,), annotations={})


def put_base(host: str, directory: Path, name: str = "python:3.12-slim", **described: str) -> Reference:
    """Push `base_image` to a registry."""
    reference = read_reference(f"{host}/{name}")
    with Registry(reference) as registry:
        push(base_image(directory, **described), registry, reference, lambda _: None)
    return reference
