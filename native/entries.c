/* DLedger's entries (commitlog/entry.py): header, header CRC, body CRC, index units. */

#include "log.h"

#include "crc32.h"

#define PACKED_NAME "native._log.packed"

int takes(const char *name, Py_ssize_t count, Py_ssize_t expected) {
    if (count == expected) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, count);
    return -1;
}

static void packed_free(PyObject *capsule) {
    PyObject *bytes = PyCapsule_GetPointer(capsule, PACKED_NAME);
    if (bytes != Py_None) Py_XDECREF(bytes);
}

PyObject *packed_new(PyObject *bytes) {
    PyObject *capsule = PyCapsule_New(bytes, PACKED_NAME, packed_free);
    if (capsule == NULL) Py_DECREF(bytes);
    return capsule;
}

/* A capsule's bytes, borrowed; NULL with an exception when they were taken out before. */
static PyObject *packed_bytes(PyObject *capsule) {
    PyObject *bytes = PyCapsule_GetPointer(capsule, PACKED_NAME);
    if (bytes == Py_None) return PyErr_Format(PyExc_ValueError, "these bodies are laid out already");
    return bytes;
}

static void write_unit(uint8_t *at, int64_t position, int32_t size, int64_t index, int64_t term) {
    put_i32(at, ENTRY_MAGIC);
    put_i64(at + 4, position);
    put_i32(at + 12, size);
    put_i64(at + 16, index);
    put_i64(at + 24, term);
}

static void fill_entry(uint8_t *entry, int32_t size, int64_t index, int64_t term, int64_t position) {
    put_i64(entry + ENTRY_INDEX_AT, index);
    put_i64(entry + ENTRY_TERM_AT, term);
    put_i64(entry + ENTRY_POSITION_AT, position);
    put_i32(entry + ENTRY_CHANNEL_AT, 0);
    uint8_t *body = entry + ENTRY_HEADER_BYTES;
    put_i64(body + RECORD_PHYSICAL_OFFSET_AT, position + ENTRY_HEADER_BYTES);
    put_u32(entry + ENTRY_HEADER_CRC_AT, crc32_of(0, entry, ENTRY_HEADER_CRC_AT));
    put_u32(entry + ENTRY_BODY_CRC_AT, crc32_of(0, body, (size_t)(size - ENTRY_HEADER_BYTES)));
    put_i32(entry + ENTRY_BODY_BYTES_AT, size - ENTRY_HEADER_BYTES);
}

/* find_channel(data, start) -> where the next entry begins whose channel is not 0 | -1 */
FUNCTION(log_find_channel) {
    Py_buffer data;
    if (takes("find_channel", count, 2) < 0) return NULL;
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "start is negative");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *bytes = data.buf;
    Py_ssize_t found = -1;
    while (data.len - start >= ENTRY_HEADER_BYTES) {
        if (get_i32(bytes + start + ENTRY_CHANNEL_AT) != 0) {
            found = start;
            break;
        }
        int32_t size = get_i32(bytes + start + ENTRY_SIZE_AT);
        start += size < ENTRY_HEADER_BYTES ? ENTRY_HEADER_BYTES : size;
    }
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(found);
}

static PyObject *fill_entries(PyObject *data, int64_t index, int64_t term, int64_t position,
                              Py_ssize_t entries) {
    PyObject *units = PyBytes_FromStringAndSize(NULL, entries * INDEX_UNIT_BYTES);
    PyObject *positions = units == NULL ? NULL : PyList_New(entries);
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(data);
    for (Py_ssize_t number = 0; positions != NULL && number < entries; number++) {
        int32_t size = get_i32(at + ENTRY_SIZE_AT);
        PyObject *own = PyLong_FromLongLong(position);
        if (own == NULL) {
            Py_CLEAR(positions);
            break;
        }
        PyList_SET_ITEM(positions, number, own);
        fill_entry(at, size, index + number, term, position);
        write_unit((uint8_t *)PyBytes_AS_STRING(units) + number * INDEX_UNIT_BYTES, position, size,
                   index + number, term);
        at += size;
        position += size;
    }
    PyObject *result = positions == NULL ? NULL : PyTuple_Pack(3, data, units, positions);
    Py_XDECREF(units);
    Py_XDECREF(positions);
    return result;
}

static Py_ssize_t count_entries(PyObject *data) {
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(data), *end = at + PyBytes_GET_SIZE(data);
    Py_ssize_t entries = 0;
    for (; at < end; at += get_i32(at + ENTRY_SIZE_AT)) entries++;
    return entries;
}

/* lay_out(packed, first index, term, position) -> (entries, units, positions); the packed bodies are used up */
FUNCTION(log_lay_out) {
    int64_t index, term, position;
    if (takes("lay_out", count, 4) < 0) return NULL;
    PyObject *data = packed_bytes(args[0]);
    if (data == NULL) return NULL;
    if (!is_int_within(args[1], 0, INT64_MAX / 2, &index) || !is_int_within(args[2], 0, INT64_MAX, &term) ||
        !is_int_within(args[3], 0, INT64_MAX / 2, &position))
        return PyErr_Format(PyExc_ValueError, "index, term or position out of range");
    PyObject *result = fill_entries(data, index, term, position, count_entries(data));
    if (result != NULL) {
        PyCapsule_SetPointer(args[0], Py_None);
        Py_DECREF(data);
    }
    return result;
}

/* bodies(packed) -> list of bodies */
FUNCTION(log_bodies) {
    if (takes("bodies", count, 1) < 0) return NULL;
    PyObject *data = packed_bytes(args[0]);
    if (data == NULL) return NULL;
    Py_ssize_t entries = count_entries(data);
    PyObject *bodies = PyList_New(entries);
    const char *at = PyBytes_AS_STRING(data);
    for (Py_ssize_t number = 0; bodies != NULL && number < entries; number++) {
        int32_t size = get_i32((const uint8_t *)at + ENTRY_SIZE_AT);
        PyObject *body = PyBytes_FromStringAndSize(at + ENTRY_HEADER_BYTES, size - ENTRY_HEADER_BYTES);
        if (body == NULL)
            Py_CLEAR(bodies);
        else
            PyList_SET_ITEM(bodies, number, body);
        at += size;
    }
    return bodies;
}

/* Whether a whole entry with these numbers stands at `at`, of which `left` bytes are there. */
static int is_entry(const uint8_t *at, Py_ssize_t left, int64_t index, int64_t term, int64_t position) {
    if (left < ENTRY_HEADER_BYTES) return 0;
    int32_t size = get_i32(at + ENTRY_SIZE_AT), body_bytes = get_i32(at + ENTRY_BODY_BYTES_AT);
    if (get_i32(at) != ENTRY_MAGIC || get_i64(at + ENTRY_INDEX_AT) != index ||
        get_i64(at + ENTRY_TERM_AT) != term || get_i64(at + ENTRY_POSITION_AT) != position)
        return 0;
    if (body_bytes < 0 || size < ENTRY_HEADER_BYTES || size - ENTRY_HEADER_BYTES != body_bytes || size > left)
        return 0;
    uint32_t header_crc = get_u32(at + ENTRY_HEADER_CRC_AT), body_crc = get_u32(at + ENTRY_BODY_CRC_AT);
    if (header_crc != 0 && crc32_of(0, at, ENTRY_HEADER_CRC_AT) != header_crc) return 0;
    if (header_crc == 0 && body_crc == 0) return 1;
    return crc32_of(0, at + ENTRY_HEADER_BYTES, (size_t)body_bytes) == body_crc;
}

static int are_entries(const uint8_t *data, Py_ssize_t bytes, int64_t first, int64_t last, int64_t term) {
    if (bytes < ENTRY_HEADER_BYTES) return 0;
    int64_t base = get_i64(data + ENTRY_POSITION_AT), index = first;
    if (base < 0 || base > INT64_MAX / 2) return 0;
    for (Py_ssize_t at = 0; at < bytes; index++) {
        if (index > last || !is_entry(data + at, bytes - at, index, term, base + at)) return 0;
        at += get_i32(data + at + ENTRY_SIZE_AT);
    }
    return index - 1 == last;
}

/* verify_entries(data, first index, last index, term) -> whether all is right; False: let Python say what is not */
FUNCTION(log_verify_entries) {
    int64_t first, last, term;
    Py_buffer data;
    if (takes("verify_entries", count, 4) < 0) return NULL;
    if (!is_int_within(args[1], 0, INT64_MAX / 2, &first) || !is_int_within(args[2], first, INT64_MAX / 2, &last) ||
        !is_int_within(args[3], 0, INT64_MAX, &term))
        Py_RETURN_FALSE;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    int is_right = are_entries(data.buf, data.len, first, last, term);
    PyBuffer_Release(&data);
    return PyBool_FromLong(is_right);
}

/* How many entries `data` is, by their sizes; -1 when it is not whole ones. */
static Py_ssize_t whole_entries(const uint8_t *data, Py_ssize_t bytes) {
    Py_ssize_t entries = 0;
    for (Py_ssize_t at = 0; at < bytes; entries++) {
        if (bytes - at < ENTRY_HEADER_BYTES) return -1;
        int32_t size = get_i32(data + at + ENTRY_SIZE_AT);
        if (get_i32(data + at) != ENTRY_MAGIC || size < ENTRY_HEADER_BYTES || size > bytes - at) return -1;
        at += size;
    }
    return entries;
}

/* encode_units(data) -> index units | None when the data is not whole entries */
FUNCTION(log_encode_units) {
    Py_buffer data;
    if (takes("encode_units", count, 1) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *at = data.buf;
    Py_ssize_t entries = whole_entries(at, data.len);
    PyObject *units = entries < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(NULL, entries * INDEX_UNIT_BYTES);
    for (Py_ssize_t number = 0; units != NULL && number < entries; number++) {
        int32_t size = get_i32(at + ENTRY_SIZE_AT);
        write_unit((uint8_t *)PyBytes_AS_STRING(units) + number * INDEX_UNIT_BYTES, get_i64(at + ENTRY_POSITION_AT),
                   size, get_i64(at + ENTRY_INDEX_AT), get_i64(at + ENTRY_TERM_AT));
        at += size;
    }
    PyBuffer_Release(&data);
    return units;
}
