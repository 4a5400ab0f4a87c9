/* The keys of committed records as hashes (commitlog/key_segment.py), and these sorted into buckets
   (commitlog/key_segment.py). */

#include "crc32.h"
#include "record.h"

#define KEY_UNIT_BYTES 8
#define BUCKET_ROW_BYTES 8
#define BUCKET_BITS_MAX 16
#define UNITS_MAX (1 << 28)
#define ROLLBACK 0xC
#define NAME_END 1
#define KEYS "KEYS\x01"
#define KEYS_BYTES 5
#define UNIQUE "UNIQ_KEY\x01"
#define UNIQUE_BYTES 9

typedef struct {
    uint8_t *bytes;
    size_t used, room;
    int64_t earliest_ms, latest_ms;
} unit_list;

/* The topic of the last record, and the CRC of it and the sign behind it. */
typedef struct {
    const uint8_t *name;
    Py_ssize_t bytes;
    uint32_t crc;
} known_topic;

/* 0: not ASCII, Python has to look whether it is a topic. */
static int take_topic(known_topic *known, const record *found) {
    if (known->bytes == found->topic_bytes && memcmp(known->name, found->topic, (size_t)known->bytes) == 0) return 1;
    if (!is_ascii(found->topic, found->topic_bytes)) return 0;
    known->name = found->topic;
    known->bytes = found->topic_bytes;
    known->crc = crc32_of(crc32_of(0, found->topic, (size_t)found->topic_bytes), (const uint8_t *)"#", 1);
    return 1;
}

/* Room for `count` units more; -1 with an exception. */
static int reserve(unit_list *units, size_t count) {
    size_t needed = units->used + count * KEY_UNIT_BYTES;
    if (needed <= units->room) return 0;
    size_t room = needed > 2 * units->room ? needed : 2 * units->room;
    uint8_t *bytes = PyMem_Realloc(units->bytes, room);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    units->bytes = bytes;
    units->room = room;
    return 0;
}

static void add_key(unit_list *units, uint32_t crc, const uint8_t *key, Py_ssize_t bytes, uint32_t low) {
    if (bytes == 0) return;
    put_u32(units->bytes + units->used, crc32_of(crc, key, (size_t)bytes));
    put_u32(units->bytes + units->used + 4, low);
    units->used += KEY_UNIT_BYTES;
}

static void add_words(unit_list *units, uint32_t crc, const uint8_t *at, const uint8_t *end, uint32_t low) {
    while (at < end) {
        const uint8_t *word_end = memchr(at, ' ', (size_t)(end - at));
        if (word_end == NULL) word_end = end;
        add_key(units, crc, at, word_end - at, low);
        at = word_end + 1;
    }
}

/* Adds the units of one record; -1 with an exception. */
static int add_record(unit_list *units, const record *found, uint32_t crc, int64_t stored_ms, uint32_t low) {
    const uint8_t *at = found->properties, *end = at + found->properties_bytes;
    size_t used = units->used;
    if (reserve(units, (size_t)found->properties_bytes / 2 + 1) < 0) return -1;
    while (at < end) {
        const uint8_t *piece_end = memchr(at, VALUE_END, (size_t)(end - at));
        if (piece_end == NULL) piece_end = end;
        if (piece_end - at > KEYS_BYTES && memcmp(at, KEYS, KEYS_BYTES) == 0)
            add_words(units, crc, at + KEYS_BYTES, piece_end, low);
        else if (piece_end - at > UNIQUE_BYTES && memcmp(at, UNIQUE, UNIQUE_BYTES) == 0)
            add_key(units, crc, at + UNIQUE_BYTES, piece_end - at - UNIQUE_BYTES, low);
        at = piece_end + 1;
    }
    if (units->used == used) return 0;
    if (stored_ms < units->earliest_ms) units->earliest_ms = stored_ms;
    if (stored_ms > units->latest_ms) units->latest_ms = stored_ms;
    return 0;
}

/* 1: `units` has all keys; 0: not ordinary; -1: exception. */
static int find_keys(const uint8_t *data, Py_ssize_t bytes, int64_t header_bytes, int64_t position, unit_list *units) {
    known_topic topic = {.bytes = -1};
    record found;
    for (Py_ssize_t at = 0; at < bytes;) {
        Py_ssize_t left = bytes - at, start = at + (Py_ssize_t)header_bytes;
        Py_ssize_t size = header_bytes ? record_bytes_at(data + at, left) : left < RECORD_BYTES_MIN ? 0 : get_i32(data + at);
        if (size > bytes - start || !read_record(data + start, size, &found)) return 0;
        at = start + size;
        if ((get_i32(data + start + RECORD_SYS_FLAG_AT) & ROLLBACK) == ROLLBACK) continue;
        if (!take_topic(&topic, &found)) return 0;
        uint32_t low = (uint32_t)(position + start);
        if (add_record(units, &found, topic.crc, get_i64(data + start + RECORD_STORE_TIMESTAMP_MS_AT), low) < 0) return -1;
    }
    return 1;
}

/* key_units(data, header bytes, position) -> (units, earliest, latest) | None when not all is ordinary. */
FUNCTION(log_key_units) {
    int64_t header_bytes, position;
    Py_buffer data;
    if (takes("key_units", count, 3) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    unit_list units = {.earliest_ms = INT64_MAX, .latest_ms = INT64_MIN};
    PyObject *result = NULL;
    int is_found = 0;
    if (is_int_within(args[1], 0, ENTRY_HEADER_BYTES, &header_bytes) &&
        (header_bytes == 0 || header_bytes == ENTRY_HEADER_BYTES) && is_int_within(args[2], 0, INT64_MAX / 2, &position))
        is_found = find_keys(data.buf, data.len, header_bytes, position, &units);
    if (is_found > 0)
        result = Py_BuildValue("y#LL", units.bytes == NULL ? "" : (const char *)units.bytes, (Py_ssize_t)units.used,
                               (long long)units.earliest_ms, (long long)units.latest_ms);
    PyMem_Free(units.bytes);
    PyBuffer_Release(&data);
    return is_found == 0 ? Py_NewRef(Py_None) : result;
}

static uint32_t bucket_of(const uint8_t *unit, int64_t bits) { return (uint32_t)((uint64_t)get_u32(unit) >> (32 - bits)); }

/* ends[bucket] becomes the number of units in it and all before it. Each bucket keeps the order of its units. */
static void sort_units(PyObject *const *pieces, Py_ssize_t piece_count, int64_t bits, uint32_t *ends, uint8_t *sorted) {
    uint32_t buckets = 1u << bits, before = 0;
    for (Py_ssize_t piece = 0; piece < piece_count; piece++) {
        const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(pieces[piece]), *end = at + PyBytes_GET_SIZE(pieces[piece]);
        for (; at < end; at += KEY_UNIT_BYTES) ends[bucket_of(at, bits)]++;
    }
    for (uint32_t bucket = 0; bucket < buckets; bucket++) {
        uint32_t units = ends[bucket];
        ends[bucket] = before;
        before += units;
    }
    for (Py_ssize_t piece = 0; piece < piece_count; piece++) {
        const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(pieces[piece]), *end = at + PyBytes_GET_SIZE(pieces[piece]);
        for (; at < end; at += KEY_UNIT_BYTES)
            memcpy(sorted + (size_t)ends[bucket_of(at, bits)]++ * KEY_UNIT_BYTES, at, KEY_UNIT_BYTES);
    }
}

/* A row for each bucket: the end of its units, and their CRC, which begins with the bucket's number + 1. */
static void write_rows(const uint32_t *ends, uint32_t buckets, const uint8_t *sorted, uint8_t *rows) {
    size_t begin = 0;
    for (uint32_t bucket = 0; bucket < buckets; bucket++) {
        size_t bytes = (ends[bucket] - begin) * KEY_UNIT_BYTES;
        put_u32(rows + (size_t)bucket * BUCKET_ROW_BYTES, ends[bucket]);
        put_u32(rows + (size_t)bucket * BUCKET_ROW_BYTES + 4, crc32_of(bucket + 1, sorted + begin * KEY_UNIT_BYTES, bytes));
        begin = ends[bucket];
    }
}

/* The bytes of all pieces; -1 when one is not what it should be. */
static int64_t bytes_of(PyObject *pieces) {
    int64_t bytes = 0;
    for (Py_ssize_t piece = 0; piece < PyTuple_GET_SIZE(pieces); piece++) {
        PyObject *item = PyTuple_GET_ITEM(pieces, piece);
        if (!PyBytes_CheckExact(item) || PyBytes_GET_SIZE(item) % KEY_UNIT_BYTES != 0) return -1;
        bytes += PyBytes_GET_SIZE(item);
    }
    return bytes > (int64_t)UNITS_MAX * KEY_UNIT_BYTES ? -1 : bytes;
}

/* sort_keys(pieces, bits) -> (rows, units) | None. `pieces` is a tuple of bytes, all of whole units. */
FUNCTION(log_sort_keys) {
    int64_t bits;
    if (takes("sort_keys", count, 2) < 0) return NULL;
    if (!PyTuple_CheckExact(args[0]) || !is_int_within(args[1], 0, BUCKET_BITS_MAX, &bits)) Py_RETURN_NONE;
    int64_t bytes = bytes_of(args[0]);
    if (bytes < 0) Py_RETURN_NONE;
    uint32_t buckets = 1u << bits;
    uint32_t *ends = PyMem_Calloc(buckets, sizeof *ends);
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)buckets * BUCKET_ROW_BYTES);
    PyObject *sorted = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    PyObject *result = NULL;
    if (ends == NULL) PyErr_NoMemory();
    if (ends != NULL && rows != NULL && sorted != NULL) {
        Py_BEGIN_ALLOW_THREADS
        sort_units(((PyTupleObject *)args[0])->ob_item, PyTuple_GET_SIZE(args[0]), bits, ends,
                   (uint8_t *)PyBytes_AS_STRING(sorted));
        write_rows(ends, buckets, (const uint8_t *)PyBytes_AS_STRING(sorted), (uint8_t *)PyBytes_AS_STRING(rows));
        Py_END_ALLOW_THREADS
        result = PyTuple_Pack(2, rows, sorted);
    }
    PyMem_Free(ends);
    Py_XDECREF(rows);
    Py_XDECREF(sorted);
    return result;
}
