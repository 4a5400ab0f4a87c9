/* What a pull reads: the units of a queue that it takes, and the records they lead to. */

#include "crc32.h"
#include "log.h"
#include "remoting.h"

#define HOLE_SIZE INT32_MAX

static bool is_units(PyObject *object) {
    return PyBytes_Check(object) && PyBytes_GET_SIZE(object) % QUEUE_UNIT_BYTES == 0;
}

/* take_units(units, codes or None, most, room, how many are taken) -> (units taken, how many, the bytes of their
   records, examined, is full), or None when a unit is a hole or damaged. A unit that is larger than the room still
   comes if it is the first. */
PyObject *pulls_take_units(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !is_units(args[0]) || (args[1] != Py_None && !PyAnySet_Check(args[1])))
        return PyErr_Format(PyExc_TypeError, "take_units takes units, a set of codes and three numbers");
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(args[0]), *end = at + PyBytes_GET_SIZE(args[0]);
    Py_ssize_t most = PyLong_AsSsize_t(args[2]), room = PyLong_AsSsize_t(args[3]), taken = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(args[0]));
    if (found == NULL) return NULL;
    char *to = PyBytes_AS_STRING(found);
    Py_ssize_t examined = 0, added = 0;
    int64_t record_bytes = 0;
    bool is_full = false;
    for (; at < end && !is_full; at += QUEUE_UNIT_BYTES) {
        int32_t size = get_i32(at + 8);
        int is_wanted = 1;
        if (size <= 0 || size == HOLE_SIZE) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        if (args[1] != Py_None) {
            PyObject *code = PyLong_FromLongLong(get_i64(at + 12));
            is_wanted = code == NULL ? -1 : PySet_Contains(args[1], code);
            Py_XDECREF(code);
            if (is_wanted < 0) goto wrong;
        }
        if (is_wanted) {
            if (taken + added > 0 && room < size) {
                is_full = true;
                break;
            }
            memcpy(to + QUEUE_UNIT_BYTES * added++, at, QUEUE_UNIT_BYTES);
            room -= size;
            record_bytes += size;
        }
        examined++;
        is_full = taken + added >= most;
    }
    if (_PyBytes_Resize(&found, QUEUE_UNIT_BYTES * added) < 0) return NULL;
    return Py_BuildValue("NnLnO", found, added, (long long)record_bytes, examined, is_full ? Py_True : Py_False);
wrong:
    Py_DECREF(found);
    return NULL;
}

/* Bytes of the log from `position` on. */
typedef struct {
    Py_buffer data;
    int64_t position;
} Part;

/* Whether a record stands `at` bytes into the part, as the part's kind can tell: cold ones have their entry's header
   before them, with CRCs; cached ones were checked when they came, and say where they stand. */
static bool is_record(const Part *part, int64_t at, int64_t size, bool is_cold) {
    const uint8_t *record = (const uint8_t *)part->data.buf + at;
    if (!is_cold)
        return size >= RECORD_BYTES_MIN && get_i32(record) == size &&
               get_i64(record + RECORD_PHYSICAL_OFFSET_AT) == part->position + at;
    if (at < ENTRY_HEADER_BYTES) return false;
    const uint8_t *entry = record - ENTRY_HEADER_BYTES;
    uint32_t header_crc = get_u32(entry + ENTRY_HEADER_CRC_AT), body_crc = get_u32(entry + ENTRY_BODY_CRC_AT);
    if (get_i32(entry) != ENTRY_MAGIC || get_i32(entry + ENTRY_SIZE_AT) != size + ENTRY_HEADER_BYTES ||
        get_i32(entry + ENTRY_BODY_BYTES_AT) != size ||
        get_i64(entry + ENTRY_POSITION_AT) != part->position + at - ENTRY_HEADER_BYTES)
        return false;
    if (header_crc != 0 && crc32_of(0, entry, ENTRY_HEADER_CRC_AT) != header_crc) return false;
    return (header_crc | body_crc) == 0 || crc32_of(0, record, (size_t)size) == body_crc;
}

/* Where a unit's record begins and ends; false when no record can. */
static bool read_unit(const uint8_t *unit, int64_t *position, int64_t *end) {
    int32_t size = get_i32(unit + 8);
    *position = get_i64(unit);
    if (size <= 0 || *position < ENTRY_HEADER_BYTES || *position > INT64_MAX - size) return false;
    *end = *position + size;
    return true;
}

/* The records of all units one after the other, into `to` unless it is NULL; how many bytes that are, -1 when one of
   them is not there. */
static int64_t copy_records(PyObject *units, const Part *parts, Py_ssize_t part_count, bool is_cold, char *to) {
    const uint8_t *unit = (const uint8_t *)PyBytes_AS_STRING(units), *units_end = unit + PyBytes_GET_SIZE(units);
    int64_t sum = 0, position, end;
    Py_ssize_t part = 0;
    for (; unit < units_end; unit += QUEUE_UNIT_BYTES) {
        if (!read_unit(unit, &position, &end)) return -1;
        int64_t size = end - position;
        while (part < part_count && end > parts[part].position + parts[part].data.len) part++;
        if (part == part_count || position < parts[part].position) return -1;
        int64_t at = position - parts[part].position;
        if (to == NULL) {
            if (!is_record(&parts[part], at, size, is_cold)) return -1;
        } else {
            memcpy(to + sum, (const char *)parts[part].data.buf + at, (size_t)size);
        }
        sum += size;
    }
    return sum;
}

static PyObject *gather(PyObject *units, const Part *parts, Py_ssize_t count, bool is_cold) {
    int64_t bytes = copy_records(units, parts, count, is_cold, NULL);
    if (bytes == -1) Py_RETURN_NONE;
    PyObject *gathered = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (gathered != NULL) copy_records(units, parts, count, is_cold, PyBytes_AS_STRING(gathered));
    return gathered;
}

/* -1 with an exception, and without the list. */
static int add_span(PyObject *spans, int64_t start, int64_t end) {
    PyObject *span = Py_BuildValue("LL", (long long)start, (long long)end);
    int error = span == NULL ? -1 : PyList_Append(spans, span);
    Py_XDECREF(span);
    if (error < 0) Py_DECREF(spans);
    return error;
}

/* spans_of(units, gap) -> (the bytes of all records, of the largest, where to read their entries: from and to, in as
   few goes as it takes that pass over no more than the gap); instead of these None when they overlap or go back. All
   is None when a unit is none of a record. */
PyObject *pulls_spans_of(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    int64_t gap, sum = 0, largest = 0, start = -1, last = -1, position, end;
    if (count != 2 || !is_units(args[0]) || !is_int_within(args[1], 0, INT32_MAX, &gap))
        return PyErr_Format(PyExc_TypeError, "spans_of takes units and a gap");
    const uint8_t *unit = (const uint8_t *)PyBytes_AS_STRING(args[0]), *units_end = unit + PyBytes_GET_SIZE(args[0]);
    PyObject *spans = PyList_New(0);
    if (spans == NULL) return NULL;
    bool is_ascending = true;
    for (; unit < units_end; unit += QUEUE_UNIT_BYTES) {
        if (!read_unit(unit, &position, &end)) {
            Py_DECREF(spans);
            Py_RETURN_NONE;
        }
        sum += end - position;
        largest = Py_MAX(largest, end - position);
        is_ascending = is_ascending && position >= last;
        if (is_ascending && (last < 0 || position - last > gap)) {
            if (last >= 0 && add_span(spans, start, last) < 0) return NULL;
            start = position - ENTRY_HEADER_BYTES;
        }
        last = end;
    }
    if (is_ascending && last >= 0 && add_span(spans, start, last) < 0) return NULL;
    PyObject *found = is_ascending ? spans : Py_None;
    PyObject *result = Py_BuildValue("LLO", (long long)sum, (long long)largest, found);
    Py_DECREF(spans);
    return result;
}

/* gather_records(units, parts, is cold) -> the units' records, which ascend, back to back; each is checked.
   None when one is not whole in one of the parts, which are (position, bytes), or is not right. */
PyObject *pulls_gather_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !is_units(args[0]) || !PyList_Check(args[1]) || !PyBool_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "gather_records takes units, parts and a truth value");
    Py_ssize_t opened = 0, part_count = PyList_GET_SIZE(args[1]);
    Part *parts = PyMem_New(Part, part_count + 1);
    PyObject *gathered = NULL;
    if (parts == NULL) return PyErr_NoMemory();
    for (; opened < part_count; opened++) {
        PyObject *pair = PyList_GET_ITEM(args[1], opened);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 ||
            !is_int_within(PyTuple_GET_ITEM(pair, 0), 0, INT64_MAX / 2, &parts[opened].position)) {
            PyErr_SetString(PyExc_TypeError, "a part is no position and bytes");
            break;
        }
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(pair, 1), &parts[opened].data, PyBUF_SIMPLE) < 0) break;
    }
    if (opened == part_count) gathered = gather(args[0], parts, part_count, args[2] == Py_True);
    while (opened > 0) PyBuffer_Release(&parts[--opened].data);
    PyMem_Free(parts);
    return gathered;
}
