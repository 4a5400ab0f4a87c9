from typing import Final

VERSION: Final[int]

def crc32(data: bytes | bytearray | memoryview, /) -> int: ...
