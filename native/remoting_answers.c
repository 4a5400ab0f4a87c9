/* SendAnswers: the answers of a connection's stored sends, from a template, all in one piece of bytes. */

#include "remoting.h"

#include <stdio.h>

enum { A_OPAQUE, A_FLAG, A_TYPE, A_HEADER, ANSWER_SLOTS, POSITION_DIGITS = 16, NUMBER_BYTES = 21, WORDS_BYTES = 8 };
static const char *const request_names[ANSWER_SLOTS] = {"opaque", "flag", "serialize_type", "header"};

typedef struct {
    PyObject_HEAD
    Layout request, header;
    /* json_head ends with the host of the message id; binary_head are code, language and version, binary_fields
       the fields before the message id; host_hex begins the id. */
    PyObject *json_head, *binary_head, *binary_fields, *host_hex;
} SendAnswers;

/* One answer's words. */
typedef struct {
    long opaque, queue_id;
    long long position, queue_offset;
    const char *key;
    Py_ssize_t key_size;
} Answer;

static inline char *put(char *to, const char *data, Py_ssize_t size) {
    memcpy(to, data, (size_t)size);
    return to + size;
}
#define PUT(to, text) put(to, "" text, sizeof(text) - 1)

static inline char *put_object(char *to, PyObject *bytes) {
    return put(to, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

static char *put_number(char *to, long long number) {
    char digits[NUMBER_BYTES], *at = digits + NUMBER_BYTES;
    unsigned long long left = number < 0 ? 0ull - (unsigned long long)number : (unsigned long long)number;
    do *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0) *--at = '-';
    return put(to, at, digits + NUMBER_BYTES - at);
}

static char *put_position(char *to, long long position) {
    for (int digit = POSITION_DIGITS - 1; digit >= 0; digit--, position >>= 4)
        to[digit] = "0123456789ABCDEF"[position & 15];
    return to + POSITION_DIGITS;
}

static inline char *put_word(char *to, uint32_t word) {
    for (int byte = 3; byte >= 0; byte--, word >>= 8) to[byte] = (char)(word & 0xFF);
    return to + 4;
}

static char *put_json(const SendAnswers *self, char *to, const Answer *answer) {
    to = put_position(put_object(to, self->json_head), answer->position);
    to = put_number(PUT(to, "\",\"queueId\":\""), answer->queue_id);
    to = put_number(PUT(to, "\",\"queueOffset\":\""), answer->queue_offset);
    to = put(PUT(to, "\",\"transactionId\":\""), answer->key, answer->key_size);
    return PUT(put_number(PUT(to, "\"},\"opaque\":"), answer->opaque), "}");
}

/* A field's name and room for the size of its value, which end_field fills in. */
#define BEGIN_FIELD(to, name) (put(to, "\0" name, sizeof(name)) + 4)

static inline char *end_field(char *value, char *end) {
    put_word(value - 4, (uint32_t)(end - value));
    return end;
}

static char *put_binary(const SendAnswers *self, char *to, const Answer *answer) {
    to = put_word(put_object(to, self->binary_head), (uint32_t)answer->opaque);
    to = put_word(put_word(to, RESPONSE_FLAG), 0);
    char *fields = to + 4, *value;
    to = put_object(fields, self->binary_fields);
    value = BEGIN_FIELD(to, "\5msgId");
    to = end_field(value, put_position(put_object(value, self->host_hex), answer->position));
    value = BEGIN_FIELD(to, "\7queueId");
    to = end_field(value, put_number(value, answer->queue_id));
    value = BEGIN_FIELD(to, "\13queueOffset");
    to = end_field(value, put_number(value, answer->queue_offset));
    value = BEGIN_FIELD(to, "\15transactionId");
    to = end_field(value, put(value, answer->key, answer->key_size));
    put_word(fields - 4, (uint32_t)(to - fields));
    return to;
}

static bool long_at(const Layout *layout, PyObject *object, int slot, long *number) {
    PyObject *value = *slot_of(layout, object, slot);
    if (value == NULL || !PyLong_Check(value)) return false;
    *number = PyLong_AsLong(value);
    return *number != -1 || !PyErr_Occurred();
}

/* What the answer to a request says; false with an exception when it is no request that PlainSends takes. */
static bool find_words(const SendAnswers *self, PyObject *request, long *flag, long *serialize_type, Answer *answer) {
    if (Py_IS_TYPE(request, self->request.type)) {
        PyObject *header = *slot_of(&self->request, request, A_HEADER);
        if (header != NULL && Py_IS_TYPE(header, self->header.type) &&
            long_at(&self->request, request, A_OPAQUE, &answer->opaque) &&
            long_at(&self->request, request, A_FLAG, flag) &&
            long_at(&self->request, request, A_TYPE, serialize_type) &&
            long_at(&self->header, header, H_QUEUE_ID, &answer->queue_id)) {
            PyObject *text = *slot_of(&self->header, header, H_PROPERTIES);
            Py_ssize_t size;
            const char *data = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
            if (data != NULL && find_unique_key(data, size, &answer->key, &answer->key_size)) return true;
        }
    }
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "no plain send");
    return false;
}

typedef struct {
    PyObject *bytes;
    Py_ssize_t used;
} Output;

static int put_answer(const SendAnswers *self, Output *output, const Answer *answer, bool is_json) {
    Py_ssize_t heads = is_json ? PyBytes_GET_SIZE(self->json_head)
                               : PyBytes_GET_SIZE(self->binary_head) + PyBytes_GET_SIZE(self->binary_fields) +
                                     PyBytes_GET_SIZE(self->host_hex);
    Py_ssize_t most = output->used + heads + answer->key_size + 256;
    if (PyBytes_GET_SIZE(output->bytes) < most && _PyBytes_Resize(&output->bytes, most * 2) < 0) return -1;
    char *frame = PyBytes_AS_STRING(output->bytes) + output->used, *header = frame + WORDS_BYTES;
    char *end = is_json ? put_json(self, header, answer) : put_binary(self, header, answer);
    uint32_t header_bytes = (uint32_t)(end - header);
    put_word(put_word(frame, 4 + header_bytes), header_bytes | (is_json ? 0 : 1u << 24));
    output->used += WORDS_BYTES + header_bytes;
    return 0;
}

/* render(requests, first, end, positions, queue offsets, first result) -> (frames, how many): the answers to the
   requests from `first` to `end` that want one. */
static PyObject *answers_render(SendAnswers *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !PyList_Check(args[0]) || !PyList_Check(args[3]) || !PyList_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "render takes requests, two numbers, positions, offsets and a number");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]), result = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t results = Py_MIN(PyList_GET_SIZE(args[3]), PyList_GET_SIZE(args[4]));
    if (first < 0 || end < first || end > PyList_GET_SIZE(args[0]) || result < 0 || result > results ||
        end - first > results - result)
        return PyErr_Format(PyExc_ValueError, "not so many requests or results");
    Output output = {PyBytes_FromStringAndSize(NULL, (end - first) * 384 + 1), 0};
    Py_ssize_t answers = 0;
    if (output.bytes == NULL) return NULL;
    for (Py_ssize_t at = first; at < end; at++, result++) {
        Answer answer;
        long flag, serialize_type;
        if (!find_words(self, PyList_GET_ITEM(args[0], at), &flag, &serialize_type, &answer)) goto wrong;
        if (flag & ONEWAY_FLAG) continue;
        answer.position = PyLong_AsLongLong(PyList_GET_ITEM(args[3], result));
        answer.queue_offset = PyLong_AsLongLong(PyList_GET_ITEM(args[4], result));
        if (PyErr_Occurred() || put_answer(self, &output, &answer, serialize_type == 0) < 0) goto wrong;
        answers++;
    }
    if (_PyBytes_Resize(&output.bytes, output.used) < 0) return NULL;
    return Py_BuildValue("Nn", output.bytes, answers);
wrong:
    Py_XDECREF(output.bytes);
    return NULL;
}

static PyObject *answers_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *request, *header, *json_head, *binary_head, *binary_fields, *host_hex;
    if (named != NULL && PyDict_GET_SIZE(named) > 0)
        return PyErr_Format(PyExc_TypeError, "SendAnswers takes no named arguments");
    if (!PyArg_ParseTuple(args, "OOSSSS", &request, &header, &json_head, &binary_head, &binary_fields, &host_hex))
        return NULL;
    SendAnswers *made = (SendAnswers *)type->tp_alloc(type, 0);
    if (made == NULL) return NULL;
    made->json_head = Py_NewRef(json_head);
    made->binary_head = Py_NewRef(binary_head);
    made->binary_fields = Py_NewRef(binary_fields);
    made->host_hex = Py_NewRef(host_hex);
    if (layout_of(&made->request, request, request_names, ANSWER_SLOTS) < 0 ||
        layout_of(&made->header, header, header_names, HEADER_SLOTS) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return (PyObject *)made;
}

static void answers_free(SendAnswers *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->request.type);
    Py_XDECREF(self->header.type);
    Py_XDECREF(self->json_head);
    Py_XDECREF(self->binary_head);
    Py_XDECREF(self->binary_fields);
    Py_XDECREF(self->host_hex);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"render", (PyCFunction)(void (*)(void))answers_render, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, answers_make},
    {Py_tp_dealloc, answers_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"native._remoting.SendAnswers", sizeof(SendAnswers), 0, Py_TPFLAGS_DEFAULT, type_slots};

int add_send_answers(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int error = PyModule_AddObjectRef(module, "SendAnswers", type);
    Py_DECREF(type);
    return error;
}
