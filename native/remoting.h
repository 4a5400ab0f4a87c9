/* What the files of the module native._remoting share: a command's header as it was found in a frame, and the
   making of the project's own Python objects, whose classes are handed in. */
#ifndef LEDGERMQ_REMOTING_H
#define LEDGERMQ_REMOTING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

enum { ONEWAY_FLAG = 2, RESPONSE_FLAG = 1, FIELDS_MAX = 48, DIGITS_MAX = 18 };

/* How a step ended. UNUSUAL: nothing is wrong yet, but the Python version has to do it. FAILED: an exception
   is set. */
typedef enum { DONE, UNUSUAL, FAILED } Outcome;

/* Text inside a frame, which stays the owner of the bytes. */
typedef enum { ABSENT, TEXT, NUMBER, LITERAL, NOTHING } SliceKind;
typedef struct {
    const uint8_t *start;
    Py_ssize_t size;
    SliceKind kind;
    bool is_escaped;
    bool is_ascii;
} Slice;

typedef struct {
    Slice key;
    Slice value;
} Field;

/* A command's header. `language_number` is -1 when `language` holds the name. */
typedef struct {
    int32_t code, opaque, flag, version;
    int language_number, serialize_type, field_count;
    Slice language, remark;
    Field fields[FIELDS_MAX];
} Head;

Outcome read_json_head(const uint8_t *start, const uint8_t *end, Head *head);
Outcome read_binary_head(const uint8_t *start, const uint8_t *end, Head *head);

/* A new string, or the one in `known` when it says the same; then that is kept there. NULL with the outcome in
   `outcome` when the bytes are not UTF-8 or hold an escape that is not a plain one. `known` may be NULL. */
PyObject *slice_string(const Slice *slice, PyObject **known, Outcome *outcome);

/* A number of at most 18 digits and no sign. */
Outcome slice_number(const Slice *slice, int64_t *number);

static inline bool slice_is(const Slice *slice, const char *text, size_t size) {
    return (size_t)slice->size == size && !slice->is_escaped && memcmp(slice->start, text, size) == 0;
}
#define SLICE_IS(slice, text) slice_is(slice, "" text, sizeof(text) - 1)

/* Where a class with __slots__ keeps its attributes. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t offsets[16];
} Layout;

/* Learns the places of `count` attributes. Raises TypeError when one is no slot. */
int layout_of(Layout *layout, PyObject *type, const char *const *names, int count);

/* A new object with empty slots, which is not followed by the garbage collector if `is_leaf`: it may then hold
   nothing but texts, bytes, numbers and other leaves. */
PyObject *layout_new(const Layout *layout, bool is_leaf);

static inline PyObject **slot_of(const Layout *layout, PyObject *object, int slot) {
    return (PyObject **)((char *)object + layout->offsets[slot]);
}

/* Slots of RemotingCommand, SendMessageRequestHeader and Message, in the order of these names. */
enum { C_CODE, C_OPAQUE, C_FLAG, C_REMARK, C_EXT_FIELDS, C_BODY, C_LANGUAGE, C_VERSION, C_TYPE, C_HEADER };
enum {
    H_PRODUCER_GROUP, H_TOPIC, H_DEFAULT_TOPIC, H_DEFAULT_QUEUES, H_QUEUE_ID, H_SYS_FLAG, H_BORN, H_FLAG,
    H_PROPERTIES, H_RECONSUMED, H_UNIT_MODE, H_RECONSUMED_MAX, H_BATCH, H_BROKER_NAME, HEADER_SLOTS
};
extern const char *const command_names[C_HEADER + 1];
extern const char *const header_names[HEADER_SLOTS];

/* The header of a send, read from a command's fields. */
Outcome read_send_header(const Layout *layout, const Head *head, PyObject *known[3], PyObject **made);

PyObject *pulls_take_units(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pulls_spans_of(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pulls_gather_records(PyObject *module, PyObject *const *args, Py_ssize_t count);

PyObject *hpack_is_plain(PyObject *module, PyObject *fields);

bool is_frame_reader(PyObject *object);

/* The commands of data that are nothing but whole frames of plain requests, none of them large. 1 with a new list; 0
   when they are something else; -1 with an exception. */
int frames_read_plain(PyObject *frame_reader, const uint8_t *data, Py_ssize_t size, PyObject **commands,
                      long *open_count, long *code);

int add_frame_reader(PyObject *module);
int add_poller(PyObject *module);
int add_field_reader(PyObject *module);
int add_plain_sends(PyObject *module);
int add_send_answers(PyObject *module);

/* The value of the property UNIQ_KEY, if an ordinary message has these properties: one whose key is letters
   and digits, and none with a rule of its own (CLUSTER, DELAY, TRAN_MSG, TIMER_D…). */
bool find_unique_key(const char *properties, Py_ssize_t size, const char **key, Py_ssize_t *key_size);

#endif
