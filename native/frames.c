/* Frames between members of a group (dledger/codec.py): the two kinds that every batch takes, whole ones and as they
   should be. Anything else is left to Python. */

#include "log.h"

enum { LENGTHS_BYTES = 8, LENGTH_BYTES = 4, VALUES_MAX = 15, APPEND_REQUEST = 6, APPEND_RESPONSE = 7 };
enum { SHARED_BYTES_MIN = 256 * 1024 };
enum { REQUEST_VALUES = 7, RESPONSE_VALUES = 6, NUMBER_BYTES_MAX = 9, FIXED_ARRAY = 0x90 };

/* msgpack's shortest form of a number from -32 on; where it ends. */
static uint8_t *put_number(uint8_t *at, int64_t value) {
    uint64_t raw = (uint64_t)value;
    int bytes = raw < 128 || value < 0 ? 0 : raw <= 0xFF ? 1 : raw <= 0xFFFF ? 2 : raw <= 0xFFFFFFFF ? 4 : 8;
    if (bytes == 0) {
        *at = (uint8_t)value;
        return at + 1;
    }
    *at++ = (uint8_t)(bytes == 1 ? 0xCC : bytes == 2 ? 0xCD : bytes == 4 ? 0xCE : 0xCF);
    for (int left = bytes - 1; left >= 0; left--) *at++ = (uint8_t)(raw >> 8 * left);
    return at;
}

/* encode_numbers(values, data_bytes): lengths and header of a frame that is a kind and its numbers. */
FUNCTION(log_encode_numbers) {
    uint8_t frame[LENGTHS_BYTES + 1 + VALUES_MAX * NUMBER_BYTES_MAX], *at = frame + LENGTHS_BYTES;
    int64_t value, data_bytes;
    if (takes("encode_numbers", count, 2) < 0) return NULL;
    if (!PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) > VALUES_MAX ||
        !is_int_within(args[1], 0, INT32_MAX, &data_bytes))
        Py_RETURN_NONE;
    *at++ = (uint8_t)(FIXED_ARRAY | PyTuple_GET_SIZE(args[0]));
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(args[0]); number++) {
        if (!is_int_within(PyTuple_GET_ITEM(args[0], number), -1, INT64_MAX, &value)) Py_RETURN_NONE;
        at = put_number(at, value);
    }
    uint32_t header_bytes = (uint32_t)(at - frame - LENGTHS_BYTES);
    put_u32(frame, LENGTH_BYTES + header_bytes + (uint32_t)data_bytes);
    put_u32(frame + LENGTH_BYTES, header_bytes);
    return PyBytes_FromStringAndSize((const char *)frame, at - frame);
}

/* Reads a number from -1 on in any of msgpack's unsigned forms, or as one byte; where it ends, or NULL. */
static const uint8_t *get_number(const uint8_t *at, const uint8_t *end, int64_t *value) {
    if (at == end) return NULL;
    uint8_t form = *at++;
    if (form < 0x80 || form == 0xFF) {
        *value = (int8_t)form;
        return at;
    }
    if (form < 0xCC || form > 0xCF || end - at < 1 << (form - 0xCC)) return NULL;
    uint64_t raw = 0;
    for (int left = 1 << (form - 0xCC); left > 0; left--) raw = raw << 8 | *at++;
    *value = (int64_t)raw;
    return *value < 0 ? NULL : at;
}

/* How many numbers an array holds that is all of the header, 0 when it is anything else. */
static int get_numbers(const uint8_t *at, const uint8_t *end, int64_t *values) {
    if (at == end || (*at & 0xF0) != FIXED_ARRAY) return 0;
    int count = *at++ & 0x0F;
    for (int number = 0; number < count; number++)
        if ((at = get_number(at, end, &values[number])) == NULL) return 0;
    return at == end ? count : 0;
}

/* Sets the attributes of a frozen dataclass with slots. Takes over the values; NULL among them is an error. */
static PyObject *make(PyObject *type, PyObject *names, PyObject **values, Py_ssize_t count) {
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)type, 0);
    int is_good = made != NULL && PyTuple_GET_SIZE(names) == count;
    for (Py_ssize_t at = 0; at < count; at++) {
        is_good = is_good && values[at] != NULL &&
                  PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(names, at), values[at]) == 0;
        Py_XDECREF(values[at]);
    }
    if (is_good) return made;
    Py_XDECREF(made);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "not the fields of this kind");
    return NULL;
}

static PyObject *number(int64_t value) { return PyLong_FromLongLong(value); }

/* The bytes of a push: a copy, but of a large one a view of `source`, which is little more than these bytes. */
static PyObject *entry_bytes(PyObject *source, const Py_buffer *all, const uint8_t *data, Py_ssize_t size) {
    if (size < SHARED_BYTES_MIN || size < all->len / 2 || !PyBytes_CheckExact(source))
        return PyBytes_FromStringAndSize((const char *)data, size);
    PyObject *view = PyMemoryView_FromObject(source);
    Py_ssize_t start = data - (const uint8_t *)all->buf;
    PyObject *part = view == NULL ? NULL : PySequence_GetSlice(view, start, start + size);
    Py_XDECREF(view);
    return part;
}

/* `types`: ((class, names of its fields) of AppendRequest, AppendResponse, EntryRange), codes by number. */
static PyObject *make_request(PyObject *types, const int64_t *values, PyObject *entry_data) {
    if (entry_data == NULL) return NULL;
    PyObject *entries[] = {number(values[4]), number(values[5]), number(values[6]), entry_data};
    PyObject *range = make(PyTuple_GET_ITEM(types, 4), PyTuple_GET_ITEM(types, 5), entries, 4);
    PyObject *own[] = {number(values[1]), number(values[2]), number(values[3]), range};
    return make(PyTuple_GET_ITEM(types, 0), PyTuple_GET_ITEM(types, 1), own, 4);
}

static PyObject *make_response(PyObject *types, const int64_t *values) {
    PyObject *key = number(values[2]);
    PyObject *code = key == NULL ? NULL : PyObject_GetItem(PyTuple_GET_ITEM(types, 6), key);
    Py_XDECREF(key);
    if (code == NULL) {
        if (PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
        return NULL;
    }
    PyObject *own[] = {number(values[1]), code, number(values[3]), number(values[4]), number(values[5])};
    return make(PyTuple_GET_ITEM(types, 2), PyTuple_GET_ITEM(types, 3), own, 5);
}

/* The message of one whole frame; NULL, perhaps with an exception, when it is left to Python. */
static PyObject *message_of(PyObject *types, PyObject *source, const Py_buffer *all, const uint8_t *frame,
                            uint32_t header_bytes, const uint8_t *end) {
    int64_t values[VALUES_MAX];
    const uint8_t *header = frame + LENGTHS_BYTES, *data = header + header_bytes;
    int found = get_numbers(header, data, values);
    if (found == REQUEST_VALUES && values[0] == APPEND_REQUEST) {
        int is_range = values[4] >= 0 && values[4] <= values[5] && values[6] >= 0 && end > data;
        return is_range ? make_request(types, values, entry_bytes(source, all, data, end - data)) : NULL;
    }
    if (found == RESPONSE_VALUES && values[0] == APPEND_RESPONSE && data == end) return make_response(types, values);
    return NULL;
}

/* decode_pushes(source, start, frame_bytes_max, types): ([message, ...], where the frames of these end). */
FUNCTION(log_decode_pushes) {
    Py_buffer source;
    int64_t start, frame_bytes_max;
    if (takes("decode_pushes", count, 4) < 0) return NULL;
    if (!PyTuple_CheckExact(args[3]) || PyTuple_GET_SIZE(args[3]) != 7)
        return PyErr_Format(PyExc_TypeError, "decode_pushes takes three classes, their fields and the codes");
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *messages = PyList_New(0);
    int is_good = messages != NULL && is_int_within(args[1], 0, source.len, &start) &&
                  is_int_within(args[2], 0, INT32_MAX, &frame_bytes_max);
    while (is_good && source.len - start >= LENGTHS_BYTES) {
        const uint8_t *frame = (const uint8_t *)source.buf + start;
        uint32_t length = get_u32(frame), header_bytes = get_u32(frame + LENGTH_BYTES);
        if (length > frame_bytes_max || header_bytes > NUMBER_BYTES_MAX * VALUES_MAX ||
            header_bytes + LENGTH_BYTES > length || source.len - start - LENGTH_BYTES < length)
            break;
        PyObject *message = message_of(args[3], args[0], &source, frame, header_bytes, frame + LENGTH_BYTES + length);
        is_good = message == NULL ? !PyErr_Occurred() : PyList_Append(messages, message) == 0;
        Py_XDECREF(message);
        if (message == NULL) break;
        start += (int64_t)length + LENGTH_BYTES;
    }
    PyBuffer_Release(&source);
    if (is_good) return Py_BuildValue("(NL)", messages, (long long)start);
    Py_XDECREF(messages);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "decode_pushes takes bytes and two numbers");
    return NULL;
}
