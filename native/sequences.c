/* The sequence numbers in committed entries (commitlog/sequences.py), a run for each stretch of them. */

#include "record.h"

#define SEQUENCED (-1)
#define START "LEDGERMQ_SEQ\x01"
#define START_BYTES 13
#define WRITER_CHARS_MAX 64
#define DIGEST_START "LEDGERMQ_SUM\x01"
#define DIGEST_START_BYTES 13
#define DIGEST_BYTES 16

/* Numbers that follow each other, of one writer, partition, batch and store time, in entries that do. */
typedef struct {
    const uint8_t *key;
    Py_ssize_t key_bytes;
    const uint8_t *digest; /* the last record's */
    Py_ssize_t digest_bytes;
    int64_t batch, first, count, index, stored_ms;
} run;

static int is_writer_char(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

/* A decimal number without sign and leading zero, up to `most`, that `end_mark` ends; what is behind it. */
static const uint8_t *read_number(const uint8_t *at, const uint8_t *end, uint8_t end_mark, int64_t most, int64_t *value) {
    const uint8_t *start = at;
    *value = 0;
    while (at < end && *at >= '0' && *at <= '9') {
        int digit = *at++ - '0';
        if (*value > (most - digit) / 10) return NULL;
        *value = *value * 10 + digit;
    }
    if (at == start || at == end || *at != end_mark || (*start == '0' && at - start > 1)) return NULL;
    return at + 1;
}

/* The digest that stands here, if one does. */
static void read_digest(const uint8_t *at, const uint8_t *end, run *found) {
    found->digest = at;
    found->digest_bytes = 0;
    if (end - at <= DIGEST_START_BYTES + DIGEST_BYTES || memcmp(at, DIGEST_START, DIGEST_START_BYTES) != 0) return;
    at += DIGEST_START_BYTES;
    for (int digit = 0; digit < DIGEST_BYTES; digit++)
        if (!((at[digit] >= '0' && at[digit] <= '9') || (at[digit] >= 'a' && at[digit] <= 'f'))) return;
    if (at[DIGEST_BYTES] != VALUE_END) return;
    found->digest = at;
    found->digest_bytes = DIGEST_BYTES;
}

/* The numbers in the properties of a sequenced record. */
static int read_sequence(const uint8_t *at, Py_ssize_t bytes, run *found) {
    const uint8_t *end = at + bytes;
    int64_t partition;
    if (bytes < START_BYTES || memcmp(at, START, START_BYTES) != 0) return 0;
    found->key = at += START_BYTES;
    while (at < end && is_writer_char(*at)) at++;
    if (at == found->key || at - found->key > WRITER_CHARS_MAX || at == end || *at != '|') return 0;
    at = read_number(at + 1, end, '|', INT32_MAX, &partition);
    if (at == NULL) return 0;
    found->key_bytes = at - 1 - found->key;
    at = read_number(at, end, '|', INT64_MAX, &found->batch);
    if (at == NULL) return 0;
    at = read_number(at, end, VALUE_END, INT32_MAX, &found->first);
    if (at == NULL) return 0;
    read_digest(at, end, found);
    return 1;
}

/* 1: `found` has the record's numbers; 0: it is not sequenced; -1: Python has to look. */
static int read_sequenced(const uint8_t *at, Py_ssize_t bytes, run *found) {
    record parts;
    if (!is_ordinary(at, bytes)) return -1;
    if (get_i64(at + RECORD_PREPARED_TRANSACTION_OFFSET_AT) != SEQUENCED) return 0;
    if (!read_record(at, bytes, &parts) || !is_ascii(parts.topic, parts.topic_bytes)) return -1;
    found->stored_ms = get_i64(at + RECORD_STORE_TIMESTAMP_MS_AT);
    found->count = 1;
    return read_sequence(parts.properties, parts.properties_bytes, found) ? 1 : -1;
}

static int follows(const run *before, const run *next) {
    return before->count > 0 && before->key_bytes == next->key_bytes &&
           memcmp(before->key, next->key, (size_t)next->key_bytes) == 0 && before->batch == next->batch &&
           before->first + before->count == next->first && before->index + before->count == next->index &&
           before->stored_ms == next->stored_ms;
}

static int append_run(PyObject *runs, const run *done) {
    if (done->count == 0) return 0;
    PyObject *item = Py_BuildValue("y#LLLLLy#", (const char *)done->key, done->key_bytes, (long long)done->batch,
                                   (long long)done->first, (long long)done->count, (long long)done->index,
                                   (long long)done->stored_ms, (const char *)done->digest, done->digest_bytes);
    int failed = item == NULL ? -1 : PyList_Append(runs, item);
    Py_XDECREF(item);
    return failed;
}

/* 1: `runs` has them all; 0: Python has to look; -1: exception. */
static int find_runs(const uint8_t *data, Py_ssize_t bytes, int64_t entries, int64_t index, PyObject *runs) {
    run current = {.count = 0}, next = {.count = 0};
    for (Py_ssize_t at = 0; at < bytes; index++) {
        Py_ssize_t size = record_bytes_at(data + at, bytes - at);
        if (entries-- == 0) return 0;
        next.index = index;
        int is_sequenced = read_sequenced(data + at + ENTRY_HEADER_BYTES, size, &next);
        if (is_sequenced < 0) return 0;
        at += ENTRY_HEADER_BYTES + size;
        if (!is_sequenced) continue;
        if (follows(&current, &next)) {
            current.count++;
            current.digest = next.digest;
            current.digest_bytes = next.digest_bytes;
            continue;
        }
        if (append_run(runs, &current) < 0) return -1;
        current = next;
    }
    if (entries != 0) return 0;
    return append_run(runs, &current) < 0 ? -1 : 1;
}

/* sequence_runs(data, entries, first index) -> [(key, batch, first number, count, index, store time, digest)] | None */
FUNCTION(log_sequence_runs) {
    int64_t entries, index;
    Py_buffer data;
    if (takes("sequence_runs", count, 3) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    int found = 0;
    PyObject *runs = PyList_New(0);
    if (runs == NULL)
        found = -1;
    else if (is_int_within(args[1], 0, INT64_MAX, &entries) && is_int_within(args[2], 0, INT64_MAX / 2, &index))
        found = find_runs(data.buf, data.len, entries, index, runs);
    PyBuffer_Release(&data);
    if (found > 0) return runs;
    Py_XDECREF(runs);
    return found == 0 ? Py_NewRef(Py_None) : NULL;
}
