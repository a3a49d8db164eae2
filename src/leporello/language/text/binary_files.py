"""Tell binary files from texts: by the first bytes of known formats, and by the share of control bytes.

NUL bytes are not judged here: they occur in UTF-16.
"""

from __future__ import annotations

# First bytes of known formats
MAGIC = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF87a": "a GIF picture",
    b"GIF89a": "a GIF picture",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive (or .docx, .xlsx, .epub, .pt)",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "gzip within gzip",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\0": "an xz archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x7fELF": "an ELF program or library",
    b"MZ\x90\0": "a Windows program",
    b"\xca\xfe\xba\xbe": "a Java class or a macOS program",
    b"\xcf\xfa\xed\xfe": "a macOS program",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office document",
    b"SQLite format 3\0": "an SQLite database",
    b"\0asm": "a WebAssembly module",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"OggS": "an Ogg sound",
    b"ID3": "an MP3 sound",
    b"RIFF": "a RIFF sound or film",
}

# Bell, backspace, tab, the line and page ends and escape do occur in texts.
CONTROLS = bytes({*range(32), 0x7F} - {0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1B})
MAX_CONTROL_SHARE = 0.05  # of all bytes; random bytes have a tenth


def known_format(head: bytes) -> str | None:
    """The binary format of a file that begins with these bytes; None if it is none of `MAGIC`."""
    for first_bytes, name in MAGIC.items():
        if head.startswith(first_bytes):
            return name
    return None


def control_byte_share(head: bytes) -> str | None:
    """The share of control bytes in words, if it is larger than in texts; else None."""
    share = (len(head) - len(head.translate(None, CONTROLS))) / max(1, len(head))
    return f"{share:.0%} of its bytes are control bytes" if share > MAX_CONTROL_SHARE else None
