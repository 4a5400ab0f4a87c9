/* CRC-32 of zip and zlib: polynomial 0xEDB88320, reflected, first and last inverted. */
#ifndef LEDGERMQ_CRC32_H
#define LEDGERMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Must be called once before the others. */
void crc32_prepare(void);

/* The CRC of `size` bytes that follow bytes whose CRC is `crc`; 0 to begin with. */
uint32_t crc32_of(uint32_t crc, const uint8_t *data, size_t size);

#endif
