"""Files that gzip has packed."""

from extender.untrusted.limits import STATE_DUMP


def unpacked(data: bytes) -> bytes:
    """The bytes, unpacked if they are those of gzip. Raises ``OSError`` if they are damaged or too many."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    import gzip
    import zlib
    from io import BytesIO

    try:
        text = gzip.GzipFile(fileobj=BytesIO(data)).read(STATE_DUMP + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(0, f"gzip: {error}") from None
    if len(text) > STATE_DUMP:
        raise OSError(0, f"it unpacks to more than {STATE_DUMP >> 20} MiB")
    return text
