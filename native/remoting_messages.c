/* PlainSends: messages of the sends that only have to be checked against an open topic. */

#include "remoting.h"

enum { T_QUEUES, T_WRITE_QUEUES, T_SYS_FLAG, T_IS_RETRY, TOPIC_ITEMS };
enum {
    M_TOPIC, M_QUEUE_ID, M_BODY, M_PROPERTIES, M_FLAG, M_SYS_FLAG, M_BORN, M_BORN_HOST, M_STORE_HOST,
    M_RECONSUMED, M_PREPARED, MESSAGE_SLOTS
};
static const char *const message_names[MESSAGE_SLOTS] = {
    "topic", "queue_id", "body", "properties", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "store_host", "reconsume_times", "prepared_transaction_offset"};

typedef struct {
    PyObject_HEAD
    Layout send, header, message;
    PyObject *store_host, *suffix, *zero;
    Py_ssize_t body_bytes_max, properties_bytes_max;
    long plain_sys_flags;
} PlainSends;

/* A slot's value if it is of this type, which may be NULL for any; else NULL. */
static inline PyObject *value_at(const Layout *layout, PyObject *object, int slot, PyTypeObject *type) {
    PyObject *value = *slot_of(layout, object, slot);
    return value != NULL && Py_IS_TYPE(value, type) ? value : NULL;
}

static inline bool small_int(PyObject *value, long *number) {
    if (value == NULL || !PyLong_CheckExact(value)) return false;
    int overflow;
    *number = PyLong_AsLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* The properties as they are stored: ended, and with what the broker adds. */
static Outcome stored_properties(PlainSends *self, PyObject *text, PyObject **made) {
    Py_ssize_t size, key_size, suffix_size = PyBytes_GET_SIZE(self->suffix);
    const char *key, *data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return FAILED;
        PyErr_Clear();
        return UNUSUAL;
    }
    if (!find_unique_key(data, size, &key, &key_size)) return UNUSUAL;
    bool is_ended = data[size - 1] == 2;
    Py_ssize_t whole = size + !is_ended + suffix_size;
    if (whole > self->properties_bytes_max) return UNUSUAL;
    PyObject *stored = PyBytes_FromStringAndSize(NULL, whole);
    if (stored == NULL) return FAILED;
    char *to = PyBytes_AS_STRING(stored);
    memcpy(to, data, (size_t)size);
    if (!is_ended) to[size++] = 2;
    memcpy(to + size, PyBytes_AS_STRING(self->suffix), (size_t)suffix_size);
    *made = stored;
    return DONE;
}

/* The system flags of header and topic together, if this send may go to the topic as it is. */
static Outcome check(PlainSends *self, PyObject *header, PyObject *topics, PyObject *body, PyObject **sys_flag) {
    const Layout *layout = &self->header;
    PyObject *topic_name = value_at(layout, header, H_TOPIC, &PyUnicode_Type);
    PyObject *own_flag = value_at(layout, header, H_SYS_FLAG, &PyLong_Type);
    long queue_id, flag, queues, topic_flag;
    if (topic_name == NULL || *slot_of(layout, header, H_BATCH) != Py_False) return UNUSUAL;
    PyObject *topic = PyDict_GetItemWithError(topics, topic_name);
    if (topic == NULL) return PyErr_Occurred() ? FAILED : UNUSUAL;
    if (!PyTuple_Check(topic) || PyTuple_GET_SIZE(topic) != TOPIC_ITEMS) return UNUSUAL;
    if (!small_int(PyTuple_GET_ITEM(topic, T_QUEUES), &queues) || PyTuple_GET_ITEM(topic, T_IS_RETRY) != Py_False ||
        !small_int(PyTuple_GET_ITEM(topic, T_SYS_FLAG), &topic_flag) || !small_int(own_flag, &flag) ||
        !small_int(*slot_of(layout, header, H_QUEUE_ID), &queue_id))
        return UNUSUAL;
    if (queue_id < 0 || queue_id >= queues || flag & ~self->plain_sys_flags) return UNUSUAL;
    if (PyBytes_GET_SIZE(body) > self->body_bytes_max) return UNUSUAL;
    *sys_flag = topic_flag == 0 ? Py_NewRef(own_flag) : PyLong_FromLong(flag | topic_flag);
    return *sys_flag == NULL ? FAILED : DONE;
}

static Outcome admit_one(PlainSends *self, PyObject *send, PyObject *topics, PyObject *born_host, PyObject **made,
                         Py_ssize_t *body_bytes) {
    if (!Py_IS_TYPE(send, self->send.type)) return UNUSUAL;
    PyObject *header = value_at(&self->send, send, C_HEADER, self->header.type);
    PyObject *body = value_at(&self->send, send, C_BODY, &PyBytes_Type);
    if (header == NULL || body == NULL) return UNUSUAL;
    PyObject *properties = value_at(&self->header, header, H_PROPERTIES, &PyUnicode_Type);
    PyObject *flag = value_at(&self->header, header, H_FLAG, &PyLong_Type);
    PyObject *born = value_at(&self->header, header, H_BORN, &PyLong_Type);
    PyObject *reconsumed = value_at(&self->header, header, H_RECONSUMED, &PyLong_Type);
    if (properties == NULL || flag == NULL || born == NULL || reconsumed == NULL) return UNUSUAL;
    PyObject *sys_flag, *stored;
    Outcome outcome = check(self, header, topics, body, &sys_flag);
    if (outcome != DONE) return outcome;
    outcome = stored_properties(self, properties, &stored);
    if (outcome != DONE) {
        Py_DECREF(sys_flag);
        return outcome;
    }
    PyObject *message = layout_new(&self->message, true);
    if (message == NULL) {
        Py_DECREF(sys_flag);
        Py_DECREF(stored);
        return FAILED;
    }
    const Layout *layout = &self->message;
    *slot_of(layout, message, M_TOPIC) = Py_NewRef(*slot_of(&self->header, header, H_TOPIC));
    *slot_of(layout, message, M_QUEUE_ID) = Py_NewRef(*slot_of(&self->header, header, H_QUEUE_ID));
    *slot_of(layout, message, M_BODY) = Py_NewRef(body);
    *slot_of(layout, message, M_PROPERTIES) = stored;
    *slot_of(layout, message, M_FLAG) = Py_NewRef(flag);
    *slot_of(layout, message, M_SYS_FLAG) = sys_flag;
    *slot_of(layout, message, M_BORN) = Py_NewRef(born);
    *slot_of(layout, message, M_BORN_HOST) = Py_NewRef(born_host);
    *slot_of(layout, message, M_STORE_HOST) = Py_NewRef(self->store_host);
    *slot_of(layout, message, M_RECONSUMED) = Py_NewRef(reconsumed);
    *slot_of(layout, message, M_PREPARED) = Py_NewRef(self->zero);
    *body_bytes += PyBytes_GET_SIZE(body);
    *made = message;
    return DONE;
}

/* admit(requests, first, most, open topics, born host, messages) -> (how many, bytes of their bodies): appends the
   messages of the sends from `first` on, up to the first one that has to be looked at more closely. */
static PyObject *sends_admit(PlainSends *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !PyList_Check(args[0]) || !PyDict_Check(args[3]) || !PyBytes_CheckExact(args[4]) ||
        !PyList_Check(args[5]) || args[0] == args[5])
        return PyErr_Format(PyExc_TypeError, "admit takes requests, two numbers, topics, a host and messages");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), most = PyLong_AsSsize_t(args[2]), body_bytes = 0;
    if (PyErr_Occurred()) return NULL;
    if (first < 0) return PyErr_Format(PyExc_ValueError, "no request has the place %zd", first);
    Py_ssize_t at = first;
    while (at < PyList_GET_SIZE(args[0]) && at - first < most) {
        PyObject *message;
        Outcome outcome = admit_one(self, PyList_GET_ITEM(args[0], at), args[3], args[4], &message, &body_bytes);
        if (outcome == FAILED) return NULL;
        if (outcome == UNUSUAL) break;
        int error = PyList_Append(args[5], message);
        Py_DECREF(message);
        if (error < 0) return NULL;
        at++;
    }
    return Py_BuildValue("nn", at - first, body_bytes);
}

static PyObject *sends_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *send, *header, *message, *store_host, *suffix;
    Py_ssize_t body_bytes_max, properties_bytes_max;
    long plain_sys_flags;
    if (named != NULL && PyDict_GET_SIZE(named) > 0)
        return PyErr_Format(PyExc_TypeError, "PlainSends takes no named arguments");
    if (!PyArg_ParseTuple(args, "OOOSSnnl", &send, &header, &message, &store_host, &suffix, &body_bytes_max,
                          &properties_bytes_max, &plain_sys_flags))
        return NULL;
    PlainSends *made = (PlainSends *)type->tp_alloc(type, 0);
    if (made == NULL) return NULL;
    made->store_host = Py_NewRef(store_host);
    made->suffix = Py_NewRef(suffix);
    made->body_bytes_max = body_bytes_max;
    made->properties_bytes_max = properties_bytes_max;
    made->plain_sys_flags = plain_sys_flags;
    made->zero = PyLong_FromLong(0);
    Layout body = {0};
    if (made->zero == NULL || layout_of(&made->send, send, &command_names[C_HEADER], 1) < 0 ||
        layout_of(&body, send, &command_names[C_BODY], 1) < 0 ||
        layout_of(&made->header, header, header_names, HEADER_SLOTS) < 0 ||
        layout_of(&made->message, message, message_names, MESSAGE_SLOTS) < 0) {
        Py_XDECREF(body.type);
        Py_DECREF(made);
        return NULL;
    }
    Py_DECREF(body.type);
    made->send.offsets[C_HEADER] = made->send.offsets[0];
    made->send.offsets[C_BODY] = body.offsets[0];
    return (PyObject *)made;
}

static void sends_free(PlainSends *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->send.type);
    Py_XDECREF(self->header.type);
    Py_XDECREF(self->message.type);
    Py_XDECREF(self->store_host);
    Py_XDECREF(self->suffix);
    Py_XDECREF(self->zero);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"admit", (PyCFunction)(void (*)(void))sends_admit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, sends_make},
    {Py_tp_dealloc, sends_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"native._remoting.PlainSends", sizeof(PlainSends), 0, Py_TPFLAGS_DEFAULT, type_slots};

int add_plain_sends(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int error = PyModule_AddObjectRef(module, "PlainSends", type);
    Py_DECREF(type);
    return error;
}
