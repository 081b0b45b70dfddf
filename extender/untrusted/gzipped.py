"""Files that are compressed with gzip."""


def unpacked(data: bytes, most: int) -> bytes:
    """The bytes, decompressed if they are in gzip format. Raises ``OSError`` if they are corrupt, or more
    than ``most`` when decompressed."""
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
        raise OSError(0, f"it decompresses to more than {most >> 20} MiB")
    return text
