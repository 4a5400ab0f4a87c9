/* FieldReader: the header fields of an ordinary HPACK block (RFC 7541) in one call, and whether they are those of an
   ordinary request. grpc_endpoint/http2 has both in Python, and does what is out of the ordinary. */

#include "remoting.h"

enum { SYMBOLS = 257, EOS = 256, CODE_BITS_MAX = 30, CODE_BITS_MIN = 5, FIELD_EXTRA_BYTES = 32 };
enum { PACKED_BYTES_MAX = 4096, TEXT_BYTES_MAX = PACKED_BYTES_MAX * 8 / CODE_BITS_MIN + 1, INTEGER_MAX = 1 << 28 };

typedef struct {
    PyObject_HEAD
    PyObject *fixed; /* the static table */
    /* The Huffman code is canonical: the codes of one length are consecutive numbers. */
    uint32_t first_code[CODE_BITS_MAX + 1], code_count[CODE_BITS_MAX + 1], first_symbol[CODE_BITS_MAX + 1];
    uint16_t symbols[SYMBOLS];
} FieldReader;

/* A block that is read. The first `gone` entries of the dynamic table do not count any more. */
typedef struct {
    const FieldReader *reader;
    const uint8_t *at, *end;
    PyObject *entries;
    Py_ssize_t gone;
    long table_bytes, table_bytes_max;
} Block;

static Outcome read_integer(Block *block, uint32_t *value, uint32_t most) {
    if (*value < most) return DONE;
    for (int shift = 0; block->at < block->end && shift <= 28; shift += 7) {
        uint8_t byte = *block->at++;
        uint64_t sum = *value + ((uint64_t)(byte & 0x7F) << shift);
        if (sum > INTEGER_MAX) return UNUSUAL;
        *value = (uint32_t)sum;
        if (byte < 0x80) return DONE;
    }
    return UNUSUAL;
}

/* The length of the text; -1 when it is none. */
static Py_ssize_t unpack(const FieldReader *reader, const uint8_t *data, Py_ssize_t size, char *text) {
    uint32_t code = 0;
    int bits = 0;
    char *to = text;
    for (Py_ssize_t at = 0; at < size; at++)
        for (int bit = 7; bit >= 0; bit--) {
            code = code << 1 | (data[at] >> bit & 1);
            if (++bits > CODE_BITS_MAX) return -1;
            uint32_t place = code - reader->first_code[bits];
            if (place >= reader->code_count[bits]) continue;
            uint16_t symbol = reader->symbols[reader->first_symbol[bits] + place];
            if (symbol == EOS) return -1;
            *to++ = (char)symbol;
            code = 0;
            bits = 0;
        }
    return bits < 8 && code == (1u << bits) - 1 ? to - text : -1;
}

static Outcome read_text(Block *block, PyObject **made) {
    if (block->at >= block->end) return UNUSUAL;
    uint8_t first = *block->at++;
    uint32_t size = first & 0x7F;
    if (read_integer(block, &size, 0x7F) != DONE || (Py_ssize_t)size > block->end - block->at) return UNUSUAL;
    const char *data = (const char *)block->at;
    Py_ssize_t length = size;
    char text[TEXT_BYTES_MAX];
    if (first >= 0x80) {
        if (size > PACKED_BYTES_MAX) return UNUSUAL;
        length = unpack(block->reader, block->at, size, text);
        if (length < 0) return UNUSUAL;
        data = text;
    }
    block->at += size;
    *made = PyUnicode_DecodeLatin1(data, length, NULL);
    return *made == NULL ? FAILED : DONE;
}

/* A field of the tables, borrowed. */
static Outcome find_field(const Block *block, uint32_t index, PyObject **field) {
    Py_ssize_t fixed = PyTuple_GET_SIZE(block->reader->fixed);
    if (index == 0) return UNUSUAL;
    if ((Py_ssize_t)index < fixed) {
        *field = PyTuple_GET_ITEM(block->reader->fixed, index);
        return DONE;
    }
    Py_ssize_t place = PyList_GET_SIZE(block->entries) - 1 - ((Py_ssize_t)index - fixed);
    if (place < block->gone) return UNUSUAL;
    *field = PyList_GET_ITEM(block->entries, place);
    return DONE;
}

static bool is_field(PyObject *object) {
    return PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 2 && PyUnicode_Check(PyTuple_GET_ITEM(object, 0)) &&
           PyUnicode_Check(PyTuple_GET_ITEM(object, 1));
}

static long size_of(PyObject *field) {
    return (long)PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(field, 0)) +
           (long)PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(field, 1)) + FIELD_EXTRA_BYTES;
}

static int keep(Block *block, PyObject *field) {
    if (PyList_Append(block->entries, field) < 0) return -1;
    block->table_bytes += size_of(field);
    while (block->table_bytes > block->table_bytes_max && block->gone < PyList_GET_SIZE(block->entries))
        block->table_bytes -= size_of(PyList_GET_ITEM(block->entries, block->gone++));
    return 0;
}

static Outcome read_literal(Block *block, uint8_t first, PyObject **made) {
    bool is_kept = first >= 0x40;
    uint32_t mask = is_kept ? 0x3F : 0x0F, index = first & mask;
    PyObject *name = NULL, *value = NULL, *known;
    Outcome outcome = read_integer(block, &index, mask);
    if (outcome != DONE) return outcome;
    if (index > 0) {
        outcome = find_field(block, index, &known);
        if (outcome == DONE) name = Py_NewRef(PyTuple_GET_ITEM(known, 0));
    } else {
        outcome = read_text(block, &name);
    }
    if (outcome == DONE) outcome = read_text(block, &value);
    if (outcome == DONE) {
        *made = PyTuple_Pack(2, name, value);
        if (*made == NULL || (is_kept && keep(block, *made) < 0)) outcome = FAILED;
    }
    Py_XDECREF(name);
    Py_XDECREF(value);
    return outcome;
}

static Outcome read_field(Block *block, PyObject **made) {
    uint8_t first = *block->at++;
    if (first < 0x80) return (first & 0xE0) == 0x20 ? UNUSUAL : read_literal(block, first, made);
    uint32_t index = first & 0x7F;
    Outcome outcome = read_integer(block, &index, 0x7F);
    if (outcome == DONE) outcome = find_field(block, index, made);
    if (outcome == DONE) Py_INCREF(*made);
    return outcome;
}

/* Below 0 `room` stays so: the fields are more than are wanted, but the table has to be kept. */
static Outcome read_block(Block *block, PyObject *fields, long *room) {
    while (block->at < block->end) {
        PyObject *field = NULL;
        Outcome outcome = read_field(block, &field);
        if (outcome == DONE) {
            *room -= size_of(field);
            if (*room >= 0 && PyList_Append(fields, field) < 0) outcome = FAILED;
        }
        Py_XDECREF(field);
        if (outcome != DONE) return outcome;
    }
    return DONE;
}

static PyObject *reader_read(FieldReader *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !PyBytes_Check(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read(block, entries, table_bytes, table_bytes_max, list_bytes_max)");
        return NULL;
    }
    PyObject *entries = args[1];
    Py_ssize_t before = PyList_GET_SIZE(entries);
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Block block = {self, data, data + PyBytes_GET_SIZE(args[0]), entries, 0, PyLong_AsLong(args[2]),
                   PyLong_AsLong(args[3])};
    long room = PyLong_AsLong(args[4]);
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t at = 0; at < before; at++)
        if (!is_field(PyList_GET_ITEM(entries, at))) {
            PyErr_SetString(PyExc_TypeError, "an entry is no field");
            return NULL;
        }
    PyObject *fields = PyList_New(0);
    if (fields == NULL) return NULL;
    Outcome outcome = read_block(&block, fields, &room);
    if (outcome == DONE) {
        if (block.gone == 0 || PyList_SetSlice(entries, 0, block.gone, NULL) == 0) {
            PyObject *found = Py_BuildValue("Ol", room < 0 ? Py_None : fields, block.table_bytes);
            Py_DECREF(fields);
            return found;
        }
        outcome = FAILED;
    }
    Py_DECREF(fields);
    /* Python reads the block from its begin. */
    if (outcome == FAILED || PyList_SetSlice(entries, before, PyList_GET_SIZE(entries), NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

#define TEXT_IS(text, size, other) ((size) == (Py_ssize_t)sizeof(other) - 1 && memcmp(text, other, (size_t)(size)) == 0)

static const char *ascii_of(PyObject *text, Py_ssize_t *size) {
    if (!PyUnicode_Check(text) || !PyUnicode_IS_COMPACT_ASCII(text)) return NULL;
    *size = PyUnicode_GET_LENGTH(text);
    return (const char *)PyUnicode_1BYTE_DATA(text);
}

/* A bit for each of them; 0: unknown. */
static int pseudo_bit(const char *name, Py_ssize_t size) {
    if (TEXT_IS(name, size, ":method")) return 1;
    if (TEXT_IS(name, size, ":scheme")) return 2;
    if (TEXT_IS(name, size, ":path")) return 4;
    return TEXT_IS(name, size, ":authority") ? 8 : 0;
}

static bool is_plain_name(const char *name, Py_ssize_t size) {
    if (size == 0 || TEXT_IS(name, size, "connection") || TEXT_IS(name, size, "keep-alive") ||
        TEXT_IS(name, size, "proxy-connection") || TEXT_IS(name, size, "transfer-encoding") ||
        TEXT_IS(name, size, "upgrade"))
        return false;
    for (Py_ssize_t at = 0; at < size; at++)
        if (!((name[at] >= 'a' && name[at] <= 'z') || (name[at] >= '0' && name[at] <= '9') || name[at] == '-' ||
              name[at] == '_' || name[at] == '.'))
            return false;
    return true;
}

static bool is_printable(const char *text, Py_ssize_t size) {
    for (Py_ssize_t at = 0; at < size; at++)
        if (text[at] < ' ' || text[at] > '~') return false;
    return true;
}

PyObject *hpack_is_plain(PyObject *module, PyObject *fields) {
    if (!PyList_CheckExact(fields)) {
        PyErr_SetString(PyExc_TypeError, "not a list");
        return NULL;
    }
    int seen = 0;
    bool is_behind = false;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(fields); at++) {
        PyObject *field = PyList_GET_ITEM(fields, at);
        Py_ssize_t name_size, value_size;
        if (!is_field(field)) Py_RETURN_FALSE;
        const char *name = ascii_of(PyTuple_GET_ITEM(field, 0), &name_size);
        const char *value = ascii_of(PyTuple_GET_ITEM(field, 1), &value_size);
        if (name == NULL || value == NULL || !is_printable(value, value_size)) Py_RETURN_FALSE;
        if (name_size > 0 && name[0] == ':') {
            int bit = pseudo_bit(name, name_size);
            if (bit == 0 || seen & bit || is_behind) Py_RETURN_FALSE;
            seen |= bit;
        } else {
            is_behind = true;
            if (!is_plain_name(name, name_size)) Py_RETURN_FALSE;
        }
    }
    return PyBool_FromLong((seen & 7) == 7);
}

static int learn_code(FieldReader *self, const uint8_t *lengths) {
    uint32_t code = 0, known = 0;
    for (int bits = 1; bits <= CODE_BITS_MAX; bits++) {
        code <<= 1;
        self->first_code[bits] = code;
        self->first_symbol[bits] = known;
        for (int symbol = 0; symbol < SYMBOLS; symbol++)
            if (lengths[symbol] == bits) self->symbols[known++] = (uint16_t)symbol;
        self->code_count[bits] = known - self->first_symbol[bits];
        code += self->code_count[bits];
    }
    bool is_complete = known == SYMBOLS && code == 1u << CODE_BITS_MAX;
    return is_complete && self->first_symbol[CODE_BITS_MIN] == 0 ? 0 : -1;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const uint8_t *lengths;
    Py_ssize_t length_count;
    PyObject *fixed;
    if (!PyArg_ParseTuple(args, "y#O!:FieldReader", &lengths, &length_count, &PyTuple_Type, &fixed)) return NULL;
    FieldReader *self = (FieldReader *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    bool is_right = length_count == SYMBOLS && learn_code(self, lengths) == 0;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(fixed); at++) is_right &= is_field(PyTuple_GET_ITEM(fixed, at));
    if (!is_right) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, "not the lengths of a canonical code and a table of fields");
        return NULL;
    }
    self->fixed = Py_NewRef(fixed);
    return (PyObject *)self;
}

static void reader_dealloc(FieldReader *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->fixed);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    "native._remoting.FieldReader", sizeof(FieldReader), 0, Py_TPFLAGS_DEFAULT, reader_slots};

int add_field_reader(PyObject *module) {
    PyObject *type = PyType_FromSpec(&reader_spec);
    if (type == NULL) return -1;
    int error = PyModule_AddObjectRef(module, "FieldReader", type);
    Py_DECREF(type);
    return error;
}
