"""Files that gzip has packed."""


def unpacked(data: bytes, most: int) -> bytes:
    """The bytes, unpacked if they are those of gzip. Raises ``OSError`` if they are damaged, or more than
    ``most``."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    import gzip
    import zlib
    from io import BytesIO

    try:
        text = gzip.GzipFile(fileobj=BytesIO(data)).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(0, f"gzip: {error}") from None
    if len(text) > most:
        raise OSError(0, f"it unpacks to more than {most >> 20} MiB")
    return text
