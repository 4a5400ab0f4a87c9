/* Committed entries into the units of the consume queues (commitlog/dispatch.py), a run for each queue. */

#include "queue_table.h"
#include "record.h"

#define TAGS "TAGS\x01"
#define TAGS_BYTES 5

/* A record that belongs in a queue. */
typedef struct {
    record parts;
    int32_t queue_id, size;
    int64_t queue_offset;
} queued_record;

/* Whether such a record, an ordinary one, fills `bytes` bytes. */
static int read_queued(const uint8_t *at, Py_ssize_t bytes, queued_record *found) {
    if (!read_record(at, bytes, &found->parts) || get_i32(at + RECORD_SYS_FLAG_AT) & NOT_QUEUED) return 0;
    found->size = (int32_t)bytes;
    found->queue_id = get_i32(at + RECORD_QUEUE_ID_AT);
    found->queue_offset = get_i64(at + RECORD_QUEUE_OFFSET_AT);
    return found->queue_id >= 0 && found->queue_offset >= 0 && found->queue_offset < INT64_MAX / 2;
}

/* Java's String.hashCode of UTF-8 with other bytes than ASCII; -1 with an exception. */
static int hash_text(const uint8_t *text, Py_ssize_t bytes, uint32_t *code) {
    PyObject *tag = PyUnicode_DecodeUTF8((const char *)text, bytes, "replace");
    if (tag == NULL) return -1;
    *code = 0;
    for (Py_ssize_t at = 0; at < PyUnicode_GET_LENGTH(tag); at++) {
        Py_UCS4 point = PyUnicode_READ_CHAR(tag, at);
        if (point > 0xFFFF) {
            *code = *code * 31 + (0xD800 + ((point - 0x10000) >> 10));
            point = 0xDC00 + (point & 0x3FF);
        }
        *code = *code * 31 + point;
    }
    Py_DECREF(tag);
    return 0;
}

static int hash_tag(const uint8_t *tag, Py_ssize_t bytes, uint32_t *code) {
    *code = 0;
    for (Py_ssize_t at = 0; at < bytes; at++) {
        if (tag[at] >= 0x80) return hash_text(tag, bytes, code);
        *code = *code * 31 + tag[at];
    }
    return 0;
}

/* The code of the last TAGS property that is not empty, else 0; -1 with an exception. */
static int tags_code(const record *found, int64_t *code) {
    const uint8_t *at = found->properties, *end = at + found->properties_bytes, *tag = NULL;
    Py_ssize_t tag_bytes = 0;
    while (at < end) {
        const uint8_t *piece_end = memchr(at, VALUE_END, (size_t)(end - at));
        if (piece_end == NULL) piece_end = end;
        if (piece_end - at > TAGS_BYTES && memcmp(at, TAGS, TAGS_BYTES) == 0) {
            tag = at + TAGS_BYTES;
            tag_bytes = piece_end - tag;
        }
        at = piece_end + 1;
    }
    uint32_t hash = 0;
    if (tag != NULL && hash_tag(tag, tag_bytes, &hash) < 0) return -1;
    *code = (int32_t)hash;
    return 0;
}

/* First round: counts the messages of each queue, whose offsets must follow each other. 0: not ordinary. */
static int count_records(const uint8_t *data, Py_ssize_t bytes, int64_t entries, queue_table *table) {
    queued_record found;
    for (Py_ssize_t at = 0; at < bytes; at += ENTRY_HEADER_BYTES + found.size) {
        if (entries-- == 0) return 0;
        if (!read_queued(data + at + ENTRY_HEADER_BYTES, record_bytes_at(data + at, bytes - at), &found)) return 0;
        queue_entry *queue = queue_table_find(table, found.parts.topic, found.parts.topic_bytes, found.queue_id);
        if (queue->count++ == 0)
            queue->next_offset = found.queue_offset;
        else if (found.queue_offset != queue->next_offset + queue->count - 1)
            return 0;
    }
    return entries == 0;
}

/* Second round: writes the units; next_offset becomes the offset behind the last. -1 with an exception. */
static int write_units(const uint8_t *data, Py_ssize_t bytes, int64_t position, queue_table *table) {
    queued_record found;
    int64_t code;
    for (Py_ssize_t at = 0; at < bytes; at += ENTRY_HEADER_BYTES + found.size) {
        read_queued(data + at + ENTRY_HEADER_BYTES, record_bytes_at(data + at, bytes - at), &found);
        queue_entry *queue = queue_table_find(table, found.parts.topic, found.parts.topic_bytes, found.queue_id);
        if (tags_code(&found.parts, &code) < 0) return -1;
        Py_ssize_t number = PyBytes_GET_SIZE(queue->units) / QUEUE_UNIT_BYTES - queue->count--;
        uint8_t *unit = (uint8_t *)PyBytes_AS_STRING(queue->units) + number * QUEUE_UNIT_BYTES;
        put_i64(unit, position + at + ENTRY_HEADER_BYTES);
        put_i32(unit + 8, found.size);
        put_i64(unit + 12, code);
    }
    return 0;
}

/* 1: every queue has its topic's name and room for its units; 0: a topic is not known; -1: exception. */
static int begin_runs(queue_table *table, PyObject *topics) {
    for (Py_ssize_t number = 0; number < table->used; number++) {
        queue_entry *queue = &table->entries[number];
        PyObject *raw = PyBytes_FromStringAndSize((const char *)queue->topic, queue->topic_bytes);
        if (raw == NULL) return -1;
        PyObject *topic = PyDict_GetItemWithError(topics, raw);
        Py_DECREF(raw);
        if (topic == NULL) return PyErr_Occurred() ? -1 : 0;
        queue->key = Py_BuildValue("OiL", topic, (int)queue->queue_id, (long long)queue->next_offset);
        queue->units = PyBytes_FromStringAndSize(NULL, queue->count * QUEUE_UNIT_BYTES);
        if (queue->key == NULL || queue->units == NULL) return -1;
    }
    return 1;
}

static PyObject *runs_of(const queue_table *table) {
    PyObject *runs = PyList_New(table->used);
    for (Py_ssize_t number = 0; runs != NULL && number < table->used; number++) {
        const queue_entry *queue = &table->entries[number];
        PyObject *run = PyTuple_Pack(4, PyTuple_GET_ITEM(queue->key, 0), PyTuple_GET_ITEM(queue->key, 1),
                                     PyTuple_GET_ITEM(queue->key, 2), queue->units);
        if (run == NULL)
            Py_CLEAR(runs);
        else
            PyList_SET_ITEM(runs, number, run);
    }
    return runs;
}

/* parse_units(data, entries, position, topics) -> [(topic, queue id, first offset, units)] | None when not all
   records are ordinary. `data` stands at `position` in the log; `topics` has the name of each topic's bytes. */
FUNCTION(log_parse_units) {
    int64_t entries, position;
    Py_buffer data;
    queue_table table;
    if (takes("parse_units", count, 4) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *result = NULL;
    int is_ordinary = 0;
    if (PyDict_CheckExact(args[3]) && is_int_within(args[1], 0, data.len / ENTRY_HEADER_BYTES, &entries) &&
        is_int_within(args[2], 0, INT64_MAX / 2, &position)) {
        if (queue_table_init(&table, (Py_ssize_t)entries) < 0) {
            PyBuffer_Release(&data);
            return NULL;
        }
        is_ordinary = count_records(data.buf, data.len, entries, &table) ? begin_runs(&table, args[3]) : 0;
        if (is_ordinary > 0 && write_units(data.buf, data.len, position, &table) == 0) result = runs_of(&table);
        queue_table_free(&table);
    }
    PyBuffer_Release(&data);
    return is_ordinary == 0 ? Py_NewRef(Py_None) : result;
}
