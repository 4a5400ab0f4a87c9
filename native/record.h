/* The parts of an ordinary record (commitlog/record.py): V1 with IPv4 hosts. All others are left to Python. */
#ifndef LEDGERMQ_RECORD_H
#define LEDGERMQ_RECORD_H

#include "log.h"

#define VALUE_END 2

typedef struct {
    const uint8_t *topic, *properties;
    Py_ssize_t topic_bytes, properties_bytes;
} record;

/* The bytes of the record in the entry at `at`; 0 when no whole entry is there. */
static inline Py_ssize_t record_bytes_at(const uint8_t *at, Py_ssize_t left) {
    if (left < ENTRY_HEADER_BYTES) return 0;
    int32_t size = get_i32(at + ENTRY_SIZE_AT);
    return size <= ENTRY_HEADER_BYTES || size > left ? 0 : size - ENTRY_HEADER_BYTES;
}

/* Whether `bytes` bytes begin as an ordinary record of that size does. */
static inline int is_ordinary(const uint8_t *at, Py_ssize_t bytes) {
    return bytes >= RECORD_BYTES_MIN && get_i32(at) == bytes && get_u32(at + RECORD_MAGIC_AT) == RECORD_MAGIC_V1 &&
           !(get_i32(at + RECORD_SYS_FLAG_AT) & HOSTS_V6);
}

/* Whether an ordinary record fills `bytes` bytes. */
static inline int read_record(const uint8_t *at, Py_ssize_t bytes, record *found) {
    if (!is_ordinary(at, bytes)) return 0;
    int32_t body_bytes = get_i32(at + RECORD_BODY_BYTES_AT);
    Py_ssize_t left = bytes - RECORD_BYTES_MIN; /* for body, topic and properties */
    if (body_bytes < 0 || body_bytes > left) return 0;
    left -= body_bytes;
    const uint8_t *topic_size = at + RECORD_BODY_AT + body_bytes;
    if (*topic_size > left) return 0;
    left -= *topic_size;
    found->topic = topic_size + 1;
    found->topic_bytes = *topic_size;
    found->properties = found->topic + found->topic_bytes + 2;
    found->properties_bytes = found->properties[-2] << 8 | found->properties[-1];
    return found->properties_bytes == left && left <= INT16_MAX;
}

static inline int is_ascii(const uint8_t *text, Py_ssize_t bytes) {
    for (Py_ssize_t at = 0; at < bytes; at++)
        if (text[at] >= 0x80) return 0;
    return 1;
}

#endif
