import json

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.data import DataMode
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.training import Training


def read(data: object) -> Training:
    (spec,) = parse(json.dumps({"name": "t", "run": "python train.py", "data": data}))
    assert isinstance(spec, Training)
    return spec


def test_a_text_alone_is_the_place_and_its_scheme_decides_the_mode() -> None:
    spec = read({"train": "s3://bucket/a", "val": "files", "raw": {"from": "pvc://claim/below", "write": True}})
    assert [source.way for source in spec.data.values()] == [DataMode.CACHE, DataMode.MOUNT, DataMode.MOUNT]
    assert spec.data["raw"].claim == "claim"
    assert spec.data["raw"].mount_path("raw") == "/data/raw"
    assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": "s4://bucket"}, "unknown scheme; give a path, or one of s3://"),
        ({"a": "nfs://host/path"}, "mount it and give its path, or make a PersistentVolume"),
        ({"a": "s3://"}, "names nothing; give s3://NAME/PATH"),
        ({"a": "pvc://"}, "names no claim; give pvc://CLAIM"),
        ({"a": "pvc://claim/../x"}, "leads out of the claim"),
        ({"a": "s3://key:secret@bucket/x"}, "it holds credentials, which specs never do"),
        ({"a": "https://h/x?X-Amz-Signature=abc"}, "it holds credentials, which specs never do"),
        ({"a": {"from": "s3://b", "mode": "mount"}}, "is not mounted; give `cache`"),
        ({"a": {"from": "s3://b", "at": "/data"}}, "only a claim, pvc://, is mounted at a path"),
        ({"a": {"from": "s3://b", "write": True}}, "write to `checkpoint.to`"),
        ({"a": {"from": "pvc://c", "at": "/etc/x"}}, "is the system's own"),
        ({"a": {"from": "./files", "credentials": "me"}}, "takes none; leave it out"),
        ({"a": {"from": "files", "version": "latest"}}, "is not a version; it has sixteen digits"),
        ({"a": {"from": "pvc://c", "at": "/d"}, "b": {"from": "pvc://e", "at": "/d"}}, "are both at /d"),
        ({"Train": "files"}, "is not a name of data"),
        ({"a": {"url": "files"}}, "did you mean `from`?"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_give(data: object, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message.replace("?", r"\?")):
        read(data)
