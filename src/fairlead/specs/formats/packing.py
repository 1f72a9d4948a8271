"""Packs a pipeline into the value of one variable, for a driver that is a pod."""

import base64
import gzip
import zlib

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.workload import PIPELINE_VARIABLE

PLAIN_MOST = 16 * 1024
"""Maximum characters of a pipeline that is stored readably in the object of its run; longer ones are compressed."""
MOST_BYTES = 32 * 2**20
"""Maximum bytes of a pipeline: few compressed bytes of a hostile run could fill the memory of whoever shows it."""


def packed(pipeline: Pipeline) -> str:
    """Pack a pipeline into the value of its driver's variable."""
    text = to_json(pipeline)
    if len(text) <= PLAIN_MOST:
        return text
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)).decode()


def unpacked(value: str) -> Pipeline:
    """Unpack the pipeline from the value of a driver's variable.

    Raises:
        InvalidSpec: The value is not a packed pipeline.
    """
    try:
        if not value.startswith("{"):
            value = _unzipped(base64.b64decode(value)).decode("utf-8", "surrogatepass")
        spec = from_json(value)
        if isinstance(spec, Pipeline):
            return spec
        problem = f"it is a {type(spec).__name__}"
    except (InvalidSpec, ValueError, zlib.error) as error:
        problem = str(error)
    raise InvalidSpec(
        (f"env: {PIPELINE_VARIABLE}: it holds no pipeline: {problem}; leave it out, as Fairlead sets it",)
    )


def _unzipped(content: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    text = unpacking.decompress(content, MOST_BYTES)
    if unpacking.unconsumed_tail:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    if not unpacking.eof:
        raise ValueError("its end is missing")
    return text
