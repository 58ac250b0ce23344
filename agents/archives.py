"""One small file in a tar archive, the form in which engines give and take files. Pure."""

import io
import tarfile


def holding(name: str, text: str) -> bytes:
    """An archive of one file that everyone may read.

    >>> text_in(holding("environment", "A=1"))
    'A=1'
    """
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o644
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def text_in(archive_bytes: bytes) -> str:
    """The content of the first regular file in it; empty where there is none."""
    with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            if file is not None:
                return file.read().decode(errors="replace")
    return ""
