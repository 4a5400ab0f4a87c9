/* Messages into records (commitlog/record.py), each with room for its entry's header before it. */

#include "log.h"

#include "crc32.h"
#include "queue_table.h"

#include <structmember.h>

#define LAYOUT_NAME "native._log.layout"
#define TOPIC_BYTES_V1_MAX 127
#define PROPERTIES_BYTES_MAX 32767
#define FIXED_BYTES (RECORD_BODY_AT + 1 + 2)

enum { TOPIC, QUEUE_ID, BODY, PROPERTIES, FLAG, SYS_FLAG, BORN_MS, BORN_HOST, STORE_HOST, RECONSUMED, PREPARED, FIELDS };

static const char *const field_names[FIELDS] = {
    "topic",    "queue_id",          "body",      "properties", "flag",
    "sys_flag", "born_timestamp_ms", "born_host", "store_host", "reconsume_times",
    "prepared_transaction_offset",
};

/* Where the slots of the class Message lie in its objects. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t offsets[FIELDS];
} layout;

static void layout_free(PyObject *capsule) {
    layout *self = PyCapsule_GetPointer(capsule, LAYOUT_NAME);
    if (self == NULL) return;
    Py_DECREF(self->type);
    PyMem_Free(self);
}

FUNCTION(log_message_layout) {
    if (takes("message_layout", count, 1) < 0) return NULL;
    if (!PyType_Check(args[0])) return PyErr_Format(PyExc_TypeError, "message_layout takes a class");
    layout *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL) return PyErr_NoMemory();
    for (int field = 0; field < FIELDS; field++) {
        PyObject *member = PyObject_GetAttrString(args[0], field_names[field]);
        int is_slot = member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type) &&
                      ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX;
        if (is_slot) self->offsets[field] = ((PyMemberDescrObject *)member)->d_member->offset;
        Py_XDECREF(member);
        if (is_slot) continue;
        PyMem_Free(self);
        if (member == NULL) return NULL;
        return PyErr_Format(PyExc_TypeError, "%s is not a slot", field_names[field]);
    }
    self->type = (PyTypeObject *)Py_NewRef(args[0]);
    PyObject *capsule = PyCapsule_New(self, LAYOUT_NAME, layout_free);
    if (capsule == NULL) {
        Py_DECREF(self->type);
        PyMem_Free(self);
    }
    return capsule;
}

/* One message, checked; all pointers are borrowed from it. */
typedef struct {
    const uint8_t *topic, *body, *properties, *born_host, *store_host;
    Py_ssize_t topic_bytes, body_bytes, properties_bytes;
    int32_t queue_id, flag, sys_flag, reconsumed;
    int64_t born_ms, prepared;
    int64_t queue_offset;
} fields;

static int read_i32(PyObject *object, int32_t *value) {
    int64_t wide;
    if (!is_int_within(object, INT32_MIN, INT32_MAX, &wide)) return 0;
    *value = (int32_t)wide;
    return 1;
}

static int read_bytes(PyObject *object, Py_ssize_t bytes_max, const uint8_t **data, Py_ssize_t *bytes) {
    if (object == NULL || !PyBytes_CheckExact(object) || PyBytes_GET_SIZE(object) > bytes_max) return 0;
    *data = (const uint8_t *)PyBytes_AS_STRING(object);
    *bytes = PyBytes_GET_SIZE(object);
    return 1;
}

static int read_topic(PyObject *object, fields *found) {
    if (object == NULL || !PyUnicode_CheckExact(object)) return 0;
    found->topic = (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &found->topic_bytes);
    if (found->topic == NULL) PyErr_Clear(); /* lone surrogates: the Python version says so */
    return found->topic != NULL && found->topic_bytes <= TOPIC_BYTES_V1_MAX;
}

#define SLOT(field) (*(PyObject **)((char *)message + self->offsets[field]))

/* Whether the message is of the ordinary kind: V1, IPv4 hosts, in a queue, all within its bounds. */
static int read_fields(const layout *self, PyObject *message, Py_ssize_t body_max, fields *found) {
    Py_ssize_t born_bytes, store_bytes;
    if (!Py_IS_TYPE(message, self->type)) return 0;
    PyObject *queue_id = SLOT(QUEUE_ID);
    return read_topic(SLOT(TOPIC), found) && queue_id != NULL && PyLong_CheckExact(queue_id) &&
           read_i32(queue_id, &found->queue_id) && read_i32(SLOT(FLAG), &found->flag) &&
           read_i32(SLOT(SYS_FLAG), &found->sys_flag) && !(found->sys_flag & (HOSTS_V6 | NOT_QUEUED)) &&
           read_i32(SLOT(RECONSUMED), &found->reconsumed) &&
           is_int_within(SLOT(BORN_MS), INT64_MIN, INT64_MAX, &found->born_ms) &&
           is_int_within(SLOT(PREPARED), INT64_MIN, INT64_MAX, &found->prepared) &&
           read_bytes(SLOT(BODY), body_max, &found->body, &found->body_bytes) &&
           read_bytes(SLOT(PROPERTIES), PROPERTIES_BYTES_MAX, &found->properties, &found->properties_bytes) &&
           read_bytes(SLOT(BORN_HOST), RECORD_HOST_BYTES, &found->born_host, &born_bytes) &&
           born_bytes == RECORD_HOST_BYTES &&
           read_bytes(SLOT(STORE_HOST), RECORD_HOST_BYTES, &found->store_host, &store_bytes) &&
           store_bytes == RECORD_HOST_BYTES;
}

static Py_ssize_t record_bytes(const fields *message) {
    return FIXED_BYTES + message->body_bytes + message->topic_bytes + message->properties_bytes;
}

static void write_record(uint8_t *at, const fields *message, int64_t store_ms) {
    put_i32(at + RECORD_SIZE_AT, (int32_t)record_bytes(message));
    put_u32(at + RECORD_MAGIC_AT, RECORD_MAGIC_V1);
    put_u32(at + RECORD_BODY_CRC_AT, crc32_of(0, message->body, (size_t)message->body_bytes) & 0x7FFFFFFF);
    put_i32(at + RECORD_QUEUE_ID_AT, message->queue_id);
    put_i32(at + RECORD_FLAG_AT, message->flag);
    put_i64(at + RECORD_QUEUE_OFFSET_AT, message->queue_offset);
    put_i64(at + RECORD_PHYSICAL_OFFSET_AT, 0);
    put_i32(at + RECORD_SYS_FLAG_AT, message->sys_flag);
    put_i64(at + RECORD_BORN_TIMESTAMP_MS_AT, message->born_ms);
    memcpy(at + RECORD_BORN_HOST_AT, message->born_host, RECORD_HOST_BYTES);
    put_i64(at + RECORD_STORE_TIMESTAMP_MS_AT, store_ms);
    memcpy(at + RECORD_STORE_HOST_AT, message->store_host, RECORD_HOST_BYTES);
    put_i32(at + RECORD_RECONSUME_TIMES_AT, message->reconsumed);
    put_i64(at + RECORD_PREPARED_TRANSACTION_OFFSET_AT, message->prepared);
    put_i32(at + RECORD_BODY_BYTES_AT, (int32_t)message->body_bytes);
    at += RECORD_BODY_AT;
    memcpy(at, message->body, (size_t)message->body_bytes);
    at += message->body_bytes;
    *at++ = (uint8_t)message->topic_bytes;
    memcpy(at, message->topic, (size_t)message->topic_bytes);
    at += message->topic_bytes;
    *at++ = (uint8_t)(message->properties_bytes >> 8);
    *at++ = (uint8_t)message->properties_bytes;
    memcpy(at, message->properties, (size_t)message->properties_bytes);
}

/* 1: the queue's next offset is in `known`; 0: it is not, or no number; -1: exception. */
static int begin_queue(queue_entry *queue, PyObject *topic, PyObject *queue_id, PyObject *known) {
    queue->key = PyTuple_Pack(2, topic, queue_id);
    if (queue->key == NULL) return -1;
    PyObject *next = PyDict_GetItemWithError(known, queue->key);
    if (next == NULL) return PyErr_Occurred() ? -1 : 0;
    return is_int_within(next, 0, INT64_MAX / 2, &queue->next_offset);
}

/* 1: all are ordinary, with `total` bytes of entries; 0: some are not; -1: exception. */
static int read_all(const layout *self, PyObject *messages, PyObject *known, Py_ssize_t body_max,
                    Py_ssize_t record_max, queue_table *table, fields *found, Py_ssize_t *total) {
    Py_ssize_t count = PyList_GET_SIZE(messages);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *message = PyList_GET_ITEM(messages, number);
        fields *own = &found[number];
        if (!read_fields(self, message, body_max, own) || record_bytes(own) > record_max) return 0;
        queue_entry *queue = queue_table_find(table, own->topic, own->topic_bytes, own->queue_id);
        if (queue->key == NULL) {
            int is_known = begin_queue(queue, SLOT(TOPIC), SLOT(QUEUE_ID), known);
            if (is_known <= 0) return is_known;
        }
        own->queue_offset = queue->next_offset++;
        *total += ENTRY_HEADER_BYTES + record_bytes(own);
    }
    return 1;
}

static PyObject *next_offsets(const queue_table *table) {
    PyObject *taken = PyDict_New();
    for (Py_ssize_t number = 0; taken != NULL && number < table->used; number++) {
        PyObject *next = PyLong_FromLongLong(table->entries[number].next_offset);
        if (next == NULL || PyDict_SetItem(taken, table->entries[number].key, next) < 0) Py_CLEAR(taken);
        Py_XDECREF(next);
    }
    return taken;
}

static PyObject *write_all(const fields *found, Py_ssize_t count, Py_ssize_t total, int64_t store_ms) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, total);
    if (data == NULL) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(data);
    for (Py_ssize_t number = 0; number < count; number++) {
        Py_ssize_t bytes = record_bytes(&found[number]);
        put_i32(at, ENTRY_MAGIC);
        put_i32(at + ENTRY_SIZE_AT, (int32_t)(ENTRY_HEADER_BYTES + bytes));
        write_record(at + ENTRY_HEADER_BYTES, &found[number], store_ms);
        at += ENTRY_HEADER_BYTES + bytes;
    }
    return packed_new(data);
}

static PyObject *offsets_of(const fields *found, Py_ssize_t count) {
    PyObject *offsets = PyList_New(count);
    for (Py_ssize_t number = 0; offsets != NULL && number < count; number++) {
        PyObject *offset = PyLong_FromLongLong(found[number].queue_offset);
        if (offset == NULL)
            Py_CLEAR(offsets);
        else
            PyList_SET_ITEM(offsets, number, offset);
    }
    return offsets;
}

/* encode_records(layout, messages, known offsets, store ms, body max, record max)
   -> (packed, its bytes, queue offsets, next offsets) | None when not all messages are ordinary */
FUNCTION(log_encode_records) {
    int64_t store_ms, body_max, record_max;
    if (takes("encode_records", count, 6) < 0) return NULL;
    const layout *self = PyCapsule_GetPointer(args[0], LAYOUT_NAME);
    if (self == NULL) return NULL;
    if (!PyList_CheckExact(args[1]) || !PyDict_CheckExact(args[2]) ||
        !is_int_within(args[3], INT64_MIN, INT64_MAX, &store_ms) ||
        !is_int_within(args[4], 0, INT32_MAX, &body_max) ||
        !is_int_within(args[5], 0, INT32_MAX - ENTRY_HEADER_BYTES, &record_max))
        Py_RETURN_NONE;
    Py_ssize_t messages = PyList_GET_SIZE(args[1]), total = 0;
    queue_table table;
    if (queue_table_init(&table, messages) < 0) return NULL;
    fields *found = PyMem_Calloc((size_t)messages + 1, sizeof *found);
    int is_ordinary = -1;
    if (found == NULL)
        PyErr_NoMemory();
    else
        is_ordinary = read_all(self, args[1], args[2], body_max, record_max, &table, found, &total);
    PyObject *result = NULL;
    if (is_ordinary == 0) result = Py_NewRef(Py_None);
    if (is_ordinary > 0) {
        PyObject *packed = write_all(found, messages, total, store_ms);
        PyObject *offsets = packed == NULL ? NULL : offsets_of(found, messages);
        PyObject *taken = offsets == NULL ? NULL : next_offsets(&table);
        if (taken != NULL) result = Py_BuildValue("OnOO", packed, total, offsets, taken);
        Py_XDECREF(packed);
        Py_XDECREF(offsets);
        Py_XDECREF(taken);
    }
    PyMem_Free(found);
    queue_table_free(&table);
    return result;
}
