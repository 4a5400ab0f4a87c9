/* Two ways to one CRC-32: carry-less multiplication where the processor has it, tables elsewhere.

   The tables take eight bytes a step (Kounavis and Berry, "A Systematic Approach to Building High Performance
   Software-Based CRC Generators"). The other way folds 64 bytes a step (Gopal and others, "Fast CRC
   Computation for Generic Polynomials Using PCLMULQDQ Instruction"); what it leaves, 16 bytes, and whatever is
   shorter than a step go through the tables. */

#include "crc32.h"

#include <string.h>

#define STEPS 8

static uint32_t tables[STEPS][256];

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        tables[0][byte] = crc;
    }
    for (int step = 1; step < STEPS; step++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[step - 1][byte];
            tables[step][byte] = crc >> 8 ^ tables[0][crc & 0xFF];
        }
}

/* Both work on the inverted remainder. */
static uint32_t by_tables(uint32_t crc, const uint8_t *data, size_t size) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= STEPS) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
              tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
        data += STEPS;
        size -= STEPS;
    }
#endif
    while (size-- > 0) crc = crc >> 8 ^ tables[0][(crc ^ *data++) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLD_BYTES 64
static int has_clmul;

static void detect(void) {
    __builtin_cpu_init();
    has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i value, __m128i powers,
                                                                    __m128i next) {
    __m128i low = _mm_clmulepi64_si128(value, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static inline __m128i load(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)data);
}

/* `size` is at least FOLD_BYTES. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t by_folding(uint32_t crc, const uint8_t *data,
                                                                    size_t size) {
    /* x^(distance+32) and x^(distance-32) modulo the polynomial, bits reflected, for 512 and for 128 bits */
    const __m128i by_512 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i by_128 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    data += FOLD_BYTES;
    size -= FOLD_BYTES;
    while (size >= FOLD_BYTES) {
        a = fold(a, by_512, load(data));
        b = fold(b, by_512, load(data + 16));
        c = fold(c, by_512, load(data + 32));
        d = fold(d, by_512, load(data + 48));
        data += FOLD_BYTES;
        size -= FOLD_BYTES;
    }
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    while (size >= 16) {
        a = fold(a, by_128, load(data));
        data += 16;
        size -= 16;
    }
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return by_tables(by_tables(0, rest, sizeof rest), data, size);
}
#else
#define FOLD_BYTES SIZE_MAX
static const int has_clmul = 0;
static void detect(void) {}
static uint32_t by_folding(uint32_t crc, const uint8_t *data, size_t size) { return by_tables(crc, data, size); }
#endif

void crc32_prepare(void) {
    make_tables();
    detect();
}

uint32_t crc32_of(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    crc = has_clmul && size >= FOLD_BYTES ? by_folding(crc, data, size) : by_tables(crc, data, size);
    return ~crc;
}
