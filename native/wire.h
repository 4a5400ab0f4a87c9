/* Big-endian numbers, and Python numbers within bounds. */
#ifndef LEDGERMQ_WIRE_H
#define LEDGERMQ_WIRE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SWAP_32(value) __builtin_bswap32(value)
#define SWAP_64(value) __builtin_bswap64(value)
#else
#define SWAP_32(value) (value)
#define SWAP_64(value) (value)
#endif

static inline uint32_t get_u32(const uint8_t *at) {
    uint32_t raw;
    memcpy(&raw, at, sizeof raw);
    return SWAP_32(raw);
}

static inline int32_t get_i32(const uint8_t *at) { return (int32_t)get_u32(at); }

static inline int64_t get_i64(const uint8_t *at) {
    uint64_t raw;
    memcpy(&raw, at, sizeof raw);
    return (int64_t)SWAP_64(raw);
}

static inline void put_u32(uint8_t *at, uint32_t value) {
    uint32_t raw = SWAP_32(value);
    memcpy(at, &raw, sizeof raw);
}

static inline void put_i32(uint8_t *at, int32_t value) { put_u32(at, (uint32_t)value); }

static inline void put_i64(uint8_t *at, int64_t value) {
    uint64_t raw = SWAP_64((uint64_t)value);
    memcpy(at, &raw, sizeof raw);
}

/* Whether `object` is an int from `low` to `high`; no exception is left set. */
static inline int is_int_within(PyObject *object, int64_t low, int64_t high, int64_t *value) {
    int overflow;
    if (object == NULL || !PyLong_Check(object)) return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow && *value >= low && *value <= high;
}

#endif
