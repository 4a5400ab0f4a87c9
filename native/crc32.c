/* Two ways to one CRC-32: carry-less multiplication where the processor has it, tables elsewhere.

   The tables take eight bytes a step (Kounavis and Berry, "A Systematic Approach to Building High Performance
   Software-Based CRC Generators"). The other way folds 64 or 256 bytes a step (Gopal and others, "Fast CRC
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
#define WIDE_BYTES 256
#define CLMUL __attribute__((target("pclmul,sse4.1")))
#define WIDE __attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))

static int has_clmul, has_wide_clmul;

static void detect(void) {
    __builtin_cpu_init();
    has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    has_wide_clmul = has_clmul && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

CLMUL static inline __m128i fold(__m128i value, __m128i powers,
                                                                    __m128i next) {
    __m128i low = _mm_clmulepi64_si128(value, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL static inline __m128i load(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)data);
}

/* x^(distance+32) and x^(distance-32) modulo the polynomial, bits reflected, for a distance in bits. */
#define POWERS_2048 0x1322D1430, 0x11542778A
#define POWERS_512 0x1C6E41596, 0x154442BD4
#define POWERS_128 0x0CCAA009E, 0x1751997D0

/* What four neighbouring parts of 16 bytes, and the bytes that follow them, come to. */
CLMUL static uint32_t finish(__m128i a, __m128i b, __m128i c, __m128i d, const uint8_t *data, size_t size) {
    const __m128i by_128 = _mm_set_epi64x(POWERS_128);
    uint8_t rest[16];
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; size >= 16; data += 16, size -= 16) a = fold(a, by_128, load(data));
    _mm_storeu_si128((__m128i *)rest, a);
    return by_tables(by_tables(0, rest, sizeof rest), data, size);
}

/* `size` is at least FOLD_BYTES. */
CLMUL static uint32_t by_folding(uint32_t crc, const uint8_t *data, size_t size) {
    const __m128i by_512 = _mm_set_epi64x(POWERS_512);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += FOLD_BYTES, size -= FOLD_BYTES; size >= FOLD_BYTES; data += FOLD_BYTES, size -= FOLD_BYTES) {
        a = fold(a, by_512, load(data));
        b = fold(b, by_512, load(data + 16));
        c = fold(c, by_512, load(data + 32));
        d = fold(d, by_512, load(data + 48));
    }
    return finish(a, b, c, d, data, size);
}

WIDE static inline __m512i fold_wide(__m512i value, __m512i powers, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(value, powers, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(value, powers, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(low, high), next);
}

/* As by_folding, four times as wide; `size` is at least WIDE_BYTES. */
WIDE static uint32_t by_wide_folding(uint32_t crc, const uint8_t *data, size_t size) {
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(POWERS_2048));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(POWERS_512));
    __m512i parts[4];
    for (int at = 0; at < 4; at++) parts[at] = _mm512_loadu_si512(data + 64 * at);
    parts[0] = _mm512_xor_si512(parts[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (data += WIDE_BYTES, size -= WIDE_BYTES; size >= WIDE_BYTES; data += WIDE_BYTES, size -= WIDE_BYTES)
        for (int at = 0; at < 4; at++)
            parts[at] = fold_wide(parts[at], by_2048, _mm512_loadu_si512(data + 64 * at));
    __m512i all = parts[0];
    for (int at = 1; at < 4; at++) all = fold_wide(all, by_512, parts[at]);
    for (; size >= FOLD_BYTES; data += FOLD_BYTES, size -= FOLD_BYTES)
        all = fold_wide(all, by_512, _mm512_loadu_si512(data));
    return finish(_mm512_extracti32x4_epi32(all, 0), _mm512_extracti32x4_epi32(all, 1),
                  _mm512_extracti32x4_epi32(all, 2), _mm512_extracti32x4_epi32(all, 3), data, size);
}
#else
#define FOLD_BYTES SIZE_MAX
#define WIDE_BYTES SIZE_MAX
#define has_clmul 0
#define has_wide_clmul 0
#define by_folding by_tables
#define by_wide_folding by_tables
static void detect(void) {}
#endif

void crc32_prepare(void) {
    make_tables();
    detect();
}

uint32_t crc32_of(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    if (has_wide_clmul && size >= WIDE_BYTES) return ~by_wide_folding(crc, data, size);
    if (has_clmul && size >= FOLD_BYTES) return ~by_folding(crc, data, size);
    return ~by_tables(crc, data, size);
}
