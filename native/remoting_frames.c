/* FrameReader: all whole frames of a chunk in one call, each a RemotingCommand, or a SendRequest with its typed
   header if it is an ordinary send. A frame that is out of the ordinary is given as the bytes of its payload. */

#include "remoting.h"

enum { FRAME_BYTES_MIN = 8, LENGTH_BYTES = 4, JSON_HEADER = 0, BINARY_HEADER = 1, KNOWN_KEYS = 24 };
enum { SEND_MESSAGE = 10, SEND_MESSAGE_V2 = 310, SEND_BATCH_MESSAGE = 320 };

typedef struct {
    PyObject_HEAD
    Layout command, send, header;
    PyObject *languages, *other_language;
    uint32_t frame_bytes_max, header_bytes_max, large_bytes;
    PyObject *known_language, *known_names[3], *known_keys[KNOWN_KEYS];
} FrameReader;

/* What one call has found so far. `code` is the code of all commands, -1 when they differ; `is_plain`: all are
   requests, and none is left to Python. */
typedef struct {
    PyObject *commands, *large;
    long open_count, code;
    bool is_plain;
} Found;

static PyObject *fields_dict(FrameReader *reader, const Head *head, Outcome *outcome) {
    PyObject *dict = PyDict_New();
    if (dict == NULL) *outcome = FAILED;
    for (int at = 0; at < head->field_count && *outcome == DONE; at++) {
        PyObject **known = at < KNOWN_KEYS ? &reader->known_keys[at] : NULL;
        PyObject *key = slice_string(&head->fields[at].key, known, outcome);
        PyObject *value = key == NULL ? NULL : slice_string(&head->fields[at].value, NULL, outcome);
        if (value != NULL && PyDict_SetItem(dict, key, value) < 0) *outcome = FAILED;
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (*outcome == DONE) return dict;
    Py_XDECREF(dict);
    return NULL;
}

/* Fills the slots that all commands have, but for the fields. */
static Outcome fill(FrameReader *reader, PyObject *command, const Head *head, const uint8_t *body, Py_ssize_t size) {
    const Layout *layout = &reader->command;
    Outcome outcome = DONE;
    PyObject *language;
    if (head->language_number < 0) {
        language = slice_string(&head->language, &reader->known_language, &outcome);
        if (language == NULL) return outcome;
    } else {
        bool is_known = head->language_number < PyTuple_GET_SIZE(reader->languages);
        language = is_known ? PyTuple_GET_ITEM(reader->languages, head->language_number) : reader->other_language;
        Py_INCREF(language);
    }
    *slot_of(layout, command, C_LANGUAGE) = language;
    PyObject *remark = Py_None;
    if (head->remark.kind == TEXT) {
        remark = slice_string(&head->remark, NULL, &outcome);
        if (remark == NULL) return outcome;
    } else {
        Py_INCREF(remark);
    }
    *slot_of(layout, command, C_REMARK) = remark;
    PyObject *made[] = {
        *slot_of(layout, command, C_CODE) = PyLong_FromLong(head->code),
        *slot_of(layout, command, C_OPAQUE) = PyLong_FromLong(head->opaque),
        *slot_of(layout, command, C_FLAG) = PyLong_FromLong(head->flag),
        *slot_of(layout, command, C_VERSION) = PyLong_FromLong(head->version),
        *slot_of(layout, command, C_TYPE) = PyLong_FromLong(head->serialize_type),
        *slot_of(layout, command, C_BODY) = PyBytes_FromStringAndSize((const char *)body, size),
    };
    for (size_t at = 0; at < sizeof(made) / sizeof(made[0]); at++)
        if (made[at] == NULL) return FAILED;
    return DONE;
}

static Outcome make_command(FrameReader *reader, const Head *head, const uint8_t *body, Py_ssize_t size, PyObject **made) {
    Outcome outcome = DONE;
    PyObject *fields = fields_dict(reader, head, &outcome);
    if (fields == NULL) return outcome;
    PyObject *command = layout_new(&reader->command, false);
    if (command == NULL) {
        Py_DECREF(fields);
        return FAILED;
    }
    *slot_of(&reader->command, command, C_EXT_FIELDS) = fields;
    outcome = fill(reader, command, head, body, size);
    if (outcome == DONE) *made = command;
    else Py_DECREF(command);
    return outcome;
}

/* Whether a field of it counts that the typed header does not keep: a signature is checked over all fields,
   quotas ask for the gRPC client, and what another node has forwarded is not forwarded again. */
static bool keeps_fields(const Head *head) {
    for (int at = head->field_count - 1; at >= 0; at--) {
        const Slice *key = &head->fields[at].key;
        bool is_kept = SLICE_IS(key, "AccessKey") || SLICE_IS(key, "LEDGERMQ_GRPC_HOST") ||
                       SLICE_IS(key, "LEDGERMQ_FORWARDED");
        if (is_kept && head->fields[at].value.size > 0) return true;
    }
    return false;
}

static Outcome make_send(FrameReader *reader, const Head *head, const uint8_t *body, Py_ssize_t size, PyObject **made) {
    PyObject *header;
    Outcome outcome = read_send_header(&reader->header, head, reader->known_names, &header);
    if (outcome != DONE) return outcome;
    PyObject *command = layout_new(&reader->send, true);
    if (command == NULL) {
        Py_DECREF(header);
        return FAILED;
    }
    *slot_of(&reader->send, command, C_HEADER) = header;
    if (keeps_fields(head)) *slot_of(&reader->command, command, C_EXT_FIELDS) = fields_dict(reader, head, &outcome);
    if (outcome == DONE) outcome = fill(reader, command, head, body, size);
    if (outcome == DONE) *made = command;
    else Py_DECREF(command);
    return outcome;
}

static inline bool is_send(const Head *head) {
    bool is_code = head->code == SEND_MESSAGE_V2 || head->code == SEND_MESSAGE || head->code == SEND_BATCH_MESSAGE;
    return is_code && !(head->flag & RESPONSE_FLAG);
}

/* Notes the place and the size of the last command. */
static int note_large(Found *found, uint32_t size) {
    if (found->large == NULL) found->large = PyList_New(0);
    if (found->large == NULL) return -1;
    PyObject *pair = Py_BuildValue("nI", PyList_GET_SIZE(found->commands) - 1, size);
    if (pair == NULL) return -1;
    int error = PyList_Append(found->large, pair);
    Py_DECREF(pair);
    return error;
}

/* One payload of `size` bytes: header word, header, body. */
static int take_payload(FrameReader *reader, const uint8_t *payload, uint32_t size, uint32_t word, Found *found) {
    Head head;
    PyObject *made = NULL;
    const uint8_t *header = payload + LENGTH_BYTES, *body = header + (word & 0xFFFFFF);
    Py_ssize_t body_bytes = payload + size - body;
    Outcome outcome = UNUSUAL;
    if (word >> 24 == JSON_HEADER) outcome = read_json_head(header, body, &head);
    else if (word >> 24 == BINARY_HEADER) outcome = read_binary_head(header, body, &head);
    if (outcome == DONE) {
        outcome = is_send(&head) ? make_send(reader, &head, body, body_bytes, &made) : UNUSUAL;
        if (outcome == UNUSUAL) outcome = make_command(reader, &head, body, body_bytes, &made);
    }
    if (outcome == FAILED) return -1;
    if (outcome == UNUSUAL) {
        made = PyBytes_FromStringAndSize((const char *)payload, size);
        if (made == NULL) return -1;
        found->is_plain = false;
    } else {
        if (head.flag & RESPONSE_FLAG) found->is_plain = false;
        if (!(head.flag & (ONEWAY_FLAG | RESPONSE_FLAG))) found->open_count++;
        if (PyList_GET_SIZE(found->commands) == 0) found->code = head.code;
        else if (found->code != head.code) found->code = -1;
    }
    int error = PyList_Append(found->commands, made);
    Py_DECREF(made);
    if (error == 0 && size >= reader->large_bytes) error = note_large(found, size);
    return error;
}

static inline uint32_t read_word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* All whole frames from `at` on; `at` is then where the next one begins, which needs so many bytes. */
static Outcome take_frames(FrameReader *reader, const uint8_t **at, const uint8_t *end, Py_ssize_t *needed, Found *found) {
    *needed = FRAME_BYTES_MIN;
    while (end - *at >= FRAME_BYTES_MIN) {
        uint32_t length = read_word(*at), word = read_word(*at + LENGTH_BYTES), header_bytes = word & 0xFFFFFF;
        if (length > reader->frame_bytes_max || length < LENGTH_BYTES || header_bytes > length - LENGTH_BYTES ||
            header_bytes > reader->header_bytes_max)
            return UNUSUAL;
        if ((Py_ssize_t)length > end - *at - LENGTH_BYTES) {
            *needed = LENGTH_BYTES + (Py_ssize_t)length;
            return DONE;
        }
        if (take_payload(reader, *at + LENGTH_BYTES, length, word, found) < 0) return FAILED;
        *at += LENGTH_BYTES + length;
    }
    return DONE;
}

static bool is_all_small(const FrameReader *reader, const uint8_t *at, const uint8_t *end) {
    while (end - at >= FRAME_BYTES_MIN) {
        uint32_t length = read_word(at);
        if (length >= reader->large_bytes || (Py_ssize_t)length > end - at - LENGTH_BYTES) return false;
        at += LENGTH_BYTES + length;
    }
    return at == end;
}

int frames_read_plain(PyObject *frame_reader, const uint8_t *data, Py_ssize_t size, PyObject **commands,
                      long *open_count, long *code) {
    FrameReader *reader = (FrameReader *)frame_reader;
    if (!is_all_small(reader, data, data + size)) return 0;
    const uint8_t *at = data;
    Py_ssize_t needed;
    Found found = {PyList_New(0), NULL, 0, -1, true};
    if (found.commands == NULL) return -1;
    Outcome outcome = take_frames(reader, &at, data + size, &needed, &found);
    bool is_taken = outcome == DONE && found.is_plain && found.large == NULL && at == data + size;
    Py_XDECREF(found.large);
    if (!is_taken) {
        Py_DECREF(found.commands);
        return outcome == FAILED ? -1 : 0;
    }
    *commands = found.commands;
    *open_count = found.open_count;
    *code = found.code;
    return 1;
}

/* read(data, start) -> (commands, end, bytes needed from there, open requests, code of all or -1, is plain, places
   and sizes of the large ones or None); None when a length is wrong. */
static PyObject *reader_read(FrameReader *reader, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "read takes bytes and where to begin");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), size = PyBytes_GET_SIZE(args[0]), needed;
    if (first == -1 && PyErr_Occurred()) return NULL;
    if (first < 0 || first > size) return PyErr_Format(PyExc_ValueError, "the data do not reach to %zd", first);
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[0]), *at = data + first;
    Found found = {PyList_New(0), NULL, 0, -1, true};
    if (found.commands == NULL) return NULL;
    Outcome outcome = take_frames(reader, &at, data + size, &needed, &found);
    PyObject *large = found.large == NULL ? Py_None : found.large, *result = NULL;
    if (outcome == DONE)
        result = Py_BuildValue("OnnllOO", found.commands, (Py_ssize_t)(at - data), needed, found.open_count,
                               found.code, found.is_plain ? Py_True : Py_False, large);
    else if (outcome == UNUSUAL) result = Py_NewRef(Py_None);
    Py_DECREF(found.commands);
    Py_XDECREF(found.large);
    return result;
}

static PyObject *reader_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *command, *send, *header, *languages, *other;
    unsigned int frame_bytes_max, header_bytes_max, large_bytes;
    if (named != NULL && PyDict_GET_SIZE(named) > 0)
        return PyErr_Format(PyExc_TypeError, "FrameReader takes no named arguments");
    if (!PyArg_ParseTuple(args, "OOOO!UIII", &command, &send, &header, &PyTuple_Type, &languages, &other,
                          &frame_bytes_max, &header_bytes_max, &large_bytes))
        return NULL;
    FrameReader *reader = (FrameReader *)type->tp_alloc(type, 0);
    if (reader == NULL) return NULL;
    reader->languages = Py_NewRef(languages);
    reader->other_language = Py_NewRef(other);
    reader->frame_bytes_max = frame_bytes_max;
    reader->header_bytes_max = header_bytes_max;
    reader->large_bytes = large_bytes;
    if (layout_of(&reader->command, command, command_names, C_HEADER) < 0 ||
        layout_of(&reader->header, header, header_names, HEADER_SLOTS) < 0)
        goto wrong;
    /* A SendRequest has its fields in the header; the other slots are the command's. */
    static const char *const send_names[] = {"header"};
    Layout own;
    if (layout_of(&own, send, send_names, 1) < 0) goto wrong;
    reader->send = reader->command;
    reader->send.type = own.type;
    reader->send.offsets[C_HEADER] = own.offsets[0];
    if (!PyType_IsSubtype(own.type, reader->command.type)) {
        PyErr_SetString(PyExc_TypeError, "the class of sends is no command");
        goto wrong;
    }
    return (PyObject *)reader;
wrong:
    Py_DECREF(reader);
    return NULL;
}

static void reader_free(FrameReader *reader) {
    PyTypeObject *type = Py_TYPE(reader);
    Py_XDECREF(reader->command.type);
    Py_XDECREF(reader->send.type);
    Py_XDECREF(reader->header.type);
    Py_XDECREF(reader->languages);
    Py_XDECREF(reader->other_language);
    Py_XDECREF(reader->known_language);
    for (int at = 0; at < 3; at++) Py_XDECREF(reader->known_names[at]);
    for (int at = 0; at < KNOWN_KEYS; at++) Py_XDECREF(reader->known_keys[at]);
    type->tp_free(reader);
    Py_DECREF(type);
}

bool is_frame_reader(PyObject *object) { return Py_TYPE(object)->tp_dealloc == (destructor)reader_free; }

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, reader_make},
    {Py_tp_dealloc, reader_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"native._remoting.FrameReader", sizeof(FrameReader), 0, Py_TPFLAGS_DEFAULT, type_slots};

int add_frame_reader(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int error = PyModule_AddObjectRef(module, "FrameReader", type);
    Py_DECREF(type);
    return error;
}
