"""How large the files of a job may be."""

MAX_PACKED_BYTES = 64 << 20
"""Of a code archive."""

MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 10_000
"""What a code archive may unpack to; it may have as many folders."""

MAX_DATA_BYTES = 1 << 30
"""Of a data set; what ArtifactService takes at most."""

CHUNK_BYTES = 1 << 20
"""Of a file on its way in a stream."""


def mebibytes(size_bytes: int) -> str:
    """`12.3 MiB`, for messages."""
    return f"{size_bytes / 2**20:.1f} MiB"
